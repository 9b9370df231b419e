"""A trained reward model on disk: trunk, heads, frozen tokenizer and what they mean.

Layout: the trunk as transformers saves it (``config.json``, ``*.safetensors``), the tokenizer with
its frozen template, ``heads.safetensors`` (``weight`` [R, D] float32, ``mean`` [R] float64) and
``reward_model.json``. No pickle is written, and none is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from encore.core.errors import InputError
from encore.core.files import atomic_folder, write_json
from encore.model.backbone_config import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.loading import load_reward_model, load_tokenizer, quiet_transformers
from encore.model.reward_model import MultiHeadRewardModel

ABOUT_FILE = "reward_model.json"
HEADS_FILE = "heads.safetensors"
_PICKLED = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


class _About(BaseModel, frozen=True, extra="forbid"):
    """The content of reward_model.json."""

    head_ids: tuple[str, ...] = Field(min_length=1)
    max_length: int
    template_sha256: str
    metadata: dict[str, Any]


#: A reward model ready to score, its tokenizer, and what its training recorded.
LoadedModel = tuple[MultiHeadRewardModel, ConversationTokenizer, Mapping[str, Any]]


def save_model(
    folder: Path,
    model: MultiHeadRewardModel,
    tokenizer: ConversationTokenizer,
    *,
    metadata: Mapping[str, Any],
) -> None:
    """Write a model whole or not at all; one that was there is replaced.

    Args:
        folder: Its parent is made if it is not there.
        model: Adapters merged.
        tokenizer: The one it was trained with.
        metadata: JSON values: what was trained on, how, with which result.

    Raises:
        OSError: As the file system reports it.
    """
    about = _About(
        head_ids=model.head_ids,
        max_length=tokenizer.max_length,
        template_sha256=tokenizer.template_sha256,
        metadata=dict(metadata),
    )
    if model.is_causal:  # readers that look for the last real token need the true padding
        model.trunk.config.pad_token_id = tokenizer.pad_token_id
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as temporary:
        with quiet_transformers():
            model.trunk.save_pretrained(temporary)
            tokenizer.hf_tokenizer.save_pretrained(temporary)
        heads = {"weight": model.heads.weight.detach().cpu(), "mean": model.mean_R.cpu()}
        save_file(heads, temporary / HEADS_FILE)
        write_json(temporary / ABOUT_FILE, about)


def load_model(
    folder: Path, *, device: str = "cpu", dtype: str = "auto", max_length: int | None = None
) -> LoadedModel:
    """A saved reward model, in evaluation mode.

    Args:
        folder: As `save_model` wrote it.
        device: Where it goes.
        dtype: Of the trunk: ``auto`` (bfloat16 on CUDA, float32 elsewhere), ``float32``,
            ``bfloat16``.
        max_length: Tokens of a conversation; None: as it was trained.

    Raises:
        InputError: Not such a folder: files missing, pickled weights, heads that do not fit their
            names, a template that is not the one it was trained with.
        EncoreError: Trunk or tokenizer do not load.
    """
    path = folder / ABOUT_FILE
    try:
        about = _About.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: missing or damaged ({reason}); expected a folder that `encore train` wrote"
        ) from error
    if pickled := sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLED):
        raise InputError(
            f"model folder {folder}: pickled files ({', '.join(pickled)}) can run code and are not "
            "loaded; remove them: the weights are in *.safetensors"
        )
    length = max_length or about.max_length
    fields = {"model": str(folder), "dtype": dtype, "max_length": length}
    config = BackboneConfig.model_validate(fields)
    tokenizer = load_tokenizer(config)
    if tokenizer.template_sha256 != about.template_sha256:
        raise InputError(
            f"model folder {folder}: its chat template (SHA-256 {tokenizer.template_sha256[:12]}…) "
            f"is not the one it was trained with ({about.template_sha256[:12]}…); put the saved "
            "chat_template.jinja back"
        )
    model = load_reward_model(config, head_ids=about.head_ids, device=device)
    _read_heads(folder, model)
    return model.eval(), tokenizer, about.metadata


def _read_heads(folder: Path, model: MultiHeadRewardModel) -> None:
    """Put the saved weights and means into the model."""
    path = folder / HEADS_FILE
    try:
        tensors = load_file(path)
        heads = {"heads.weight": tensors["weight"], "mean_R": tensors["mean"]}
        model.load_state_dict(heads, strict=False)
    except (OSError, SafetensorError, LookupError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: cannot be used ({type(error).__name__}: {reason}); copy the folder again"
        ) from error
