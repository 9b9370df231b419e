"""Save and load a trained reward model: trunk, heads, frozen tokenizer and metadata.

A model folder holds the trunk as transformers saves it (``config.json``, ``*.safetensors``), the
tokenizer with its frozen template, ``heads.safetensors`` (``weight`` [R, D] float32, ``mean`` [R]
float64) and ``reward_model.json``; with head 0 also ``held_out_scores.safetensors``. No pickle is
written or read.
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
from encore.core.transformers_loading import quiet_transformers
from encore.model.backbone_options import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.held_out_scores import HeldOutScores, write_held_out_scores
from encore.model.load_backbone import load_reward_model, load_tokenizer
from encore.model.reward_model import MultiHeadRewardModel

DESCRIPTION_FILE = "reward_model.json"
HEADS_FILE = "heads.safetensors"
_PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


class _Description(BaseModel, frozen=True, extra="forbid"):
    """The content of reward_model.json."""

    head_ids: tuple[str, ...] = Field(min_length=1)
    max_length: int
    template_sha256: str
    metadata: dict[str, Any]


#: A reward model in evaluation mode, its tokenizer, and the metadata of its training.
LoadedModel = tuple[MultiHeadRewardModel, ConversationTokenizer, Mapping[str, Any]]


def save_model(
    folder: Path,
    model: MultiHeadRewardModel,
    tokenizer: ConversationTokenizer,
    *,
    metadata: Mapping[str, Any],
    held_out: HeldOutScores | None = None,
) -> None:
    """Write a model completely or not at all. An existing model in the folder is replaced.

    Args:
        folder: Model folder; missing parents are created.
        model: Trained model, with adapters merged.
        tokenizer: Tokenizer of its training.
        metadata: JSON values that describe data, settings and results of the training.
        held_out: Scores of the pairs that the training held out, for a model with head 0.

    Raises:
        OSError: The file system cannot write it.
    """
    description = _Description(
        head_ids=model.head_ids,
        max_length=tokenizer.max_length,
        template_sha256=tokenizer.template_sha256,
        metadata=dict(metadata),
    )
    if model.is_causal:  # transformers looks for the last token that is not padding
        model.trunk.config.pad_token_id = tokenizer.pad_token_id
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as temporary:
        with quiet_transformers():
            model.trunk.save_pretrained(temporary)
            tokenizer.hf_tokenizer.save_pretrained(temporary)
        heads = {"weight": model.heads.weight.detach().cpu(), "mean": model.mean_R.cpu()}
        save_file(heads, temporary / HEADS_FILE)
        write_json(temporary / DESCRIPTION_FILE, description)
        if held_out is not None:
            write_held_out_scores(temporary, held_out)


def load_model(
    folder: Path, *, device: str = "cpu", dtype: str = "auto", max_length: int | None = None
) -> LoadedModel:
    """Load a saved reward model in evaluation mode.

    Args:
        folder: Model folder that `save_model` wrote.
        device: Device of the model.
        dtype: Number format of the trunk: ``auto`` (bfloat16 on CUDA, else float32), ``float32``
            or ``bfloat16``.
        max_length: Longest conversation in tokens. None uses the limit of the training.

    Raises:
        InputError: The folder lacks files, holds pickled weights, or its heads or its template are
            not those of the training.
        EncoreError: The trunk or the tokenizer does not load.
    """
    path = folder / DESCRIPTION_FILE
    try:
        description = _Description.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: missing or damaged ({reason}); expected a folder that `encore train` wrote"
        ) from error
    if pickles := sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLE_SUFFIXES):
        raise InputError(
            f"model folder {folder}: pickled files ({', '.join(pickles)}) can run code and are not "
            "loaded; remove them: the weights are in *.safetensors"
        )
    length = max_length or description.max_length
    fields = {"model": str(folder), "dtype": dtype, "max_length": length}
    config = BackboneConfig.model_validate(fields)
    tokenizer = load_tokenizer(config)
    if tokenizer.template_sha256 != description.template_sha256:
        raise InputError(
            f"model folder {folder}: its chat template (SHA-256 {tokenizer.template_sha256[:12]}…) "
            f"is not the one it was trained with ({description.template_sha256[:12]}…); put the "
            "saved chat_template.jinja back"
        )
    model = load_reward_model(config, head_ids=description.head_ids, device=device)
    _load_heads(model, folder / HEADS_FILE)
    return model.eval(), tokenizer, description.metadata


def _load_heads(model: MultiHeadRewardModel, path: Path) -> None:
    """Load the weights and centres of the heads, which are in a file beside the trunk's weights.

    Raises:
        InputError: The file is missing, damaged, or of other heads.
    """
    try:
        tensors = load_file(path)
        heads = {"heads.weight": tensors["weight"], "mean_R": tensors["mean"]}
        model.load_state_dict(heads, strict=False)
    except (OSError, SafetensorError, LookupError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: cannot be used ({type(error).__name__}: {reason}); copy the folder again"
        ) from error
