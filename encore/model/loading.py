"""From a backbone's config to a tokenizer and a reward model: safetensors only, one clear error."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from encore.core.errors import EncoreError, InputError
from encore.core.model_files import ModelFiles, ModelRole
from encore.model.attention import register_segment_attention
from encore.model.backbone_config import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.reward_model import MultiHeadRewardModel, WholeClassifier
from encore.model.trunks import OTHER, TRUNKS, max_positions, position_offset, trunk_kind

_BACKBONE = ModelRole(name="backbone", error=EncoreError)


def load_tokenizer(
    config: BackboneConfig, *, is_as_downloaded: bool = False
) -> ConversationTokenizer:
    """The backbone's tokenizer with its frozen template.

    Args:
        config: Which backbone.
        is_as_downloaded: See `ConversationTokenizer`; also of an architecture that cannot be
            trained on.

    Raises:
        EncoreError: no such model, or a tokenizer that does not load.
        InputError: an architecture, template or pad token that cannot be used.
    """
    files = _find(config)
    kind = TRUNKS.get(str(files.config.get("model_type")), OTHER)
    if not is_as_downloaded or kind is not OTHER:
        kind = trunk_kind(files.config, name=files.name)
    with loading(
        f"backbone {files.name!r}: its tokenizer does not load; expected tokenizer.json and "
        "tokenizer_config.json"
    ):
        tokenizer = AutoTokenizer.from_pretrained(
            files.location, revision=files.hub_revision, trust_remote_code=False
        )
    template = None
    if config.chat_template is not None:
        with loading(f"chat_template {config.chat_template!r}: no Jinja file that can be read"):
            template = Path(config.chat_template).read_text(encoding="utf-8")
    own = max_positions(files.config, kind)
    return ConversationTokenizer(
        tokenizer,
        num_embeddings=files.config.get("vocab_size"),
        max_length=min(config.max_length, own or config.max_length),
        template=template,
        is_as_downloaded=is_as_downloaded,
    )


def load_reward_model(
    config: BackboneConfig,
    *,
    head_ids: Sequence[str],
    seed: int = 0,
    head_init: Literal["zero", "own", "labels"] = "zero",
    device: str = "cpu",
) -> MultiHeadRewardModel:
    """A reward model on a pretrained (or seeded random) trunk, in training mode.

    Args:
        config: Which backbone.
        head_ids: One per head.
        seed: Of random weights.
        head_init: ``zero``; ``own``: every head begins as the head of a one-label sequence
            classifier (a downloaded reward model); ``labels``: each head begins as the label of
            its place of a classifier with as many labels.
        device: Where it goes.

    Raises:
        EncoreError: weights that are missing, incomplete or pickled.
        InputError: an architecture or head that does not fit.
    """
    files = _find(config)
    kind = trunk_kind(files.config, name=files.name)
    # A pooler would be a weight without gradient: it is for another loss.
    options = {"add_pooling_layer": False} if kind.has_pooler else {}
    own_head = None
    if head_init != "zero":
        num_labels = 1 if head_init == "own" else len(head_ids)
        trunk, own_head = _load_taken_apart(config, files, device, num_labels=num_labels)
    elif config.init == "random":
        trunk = _random_trunk(config, files, device, seed=seed, **options)
    else:
        trunk, _ = _load(AutoModel, config, files, device, **options)
    model = MultiHeadRewardModel(
        trunk,
        head_ids=head_ids,
        is_causal=kind.is_causal,
        position_offset=position_offset(files.config, kind),
    )
    model.to(device)
    if own_head is not None:
        model.heads.weight.data.copy_(own_head)  # one label becomes every head
    model.train()
    return model


def load_whole_classifier(
    config: BackboneConfig, *, head_ids: Sequence[str], pad_token_id: int, device: str = "cpu"
) -> WholeClassifier:
    """A downloaded sequence classifier of any kind, as transformers runs it, one head a label.

    Raises:
        EncoreError: as `load_reward_model`.
    """
    files = _find(config)
    # The default attention of transformers passes over a cap on attention scores (Gemma 2).
    attention = "eager" if files.config.get("attn_logit_softcapping") else None
    classifier, _ = _load(
        AutoModelForSequenceClassification, config, files, device, attn_implementation=attention
    )
    model = WholeClassifier(classifier, head_ids=head_ids, pad_token_id=pad_token_id)
    model.to(device)
    model.eval()
    return model


def backbone_identity(config: BackboneConfig, tokenizer: ConversationTokenizer) -> dict[str, Any]:
    """What a training run records about where it began: nothing that names a machine.

    Args:
        config: Which backbone.
        tokenizer: Its own, from `load_tokenizer`.

    Raises:
        EncoreError: no such model.
    """
    files = _find(config)
    config_text = json.dumps(files.config, sort_keys=True)
    return {
        "name": files.name,
        "revision": files.revision,
        "init": config.init,
        "config_sha256": hashlib.sha256(config_text.encode()).hexdigest(),
        "template_sha256": tokenizer.template_sha256,
        "max_length": tokenizer.max_length,
        "pad_token_id": tokenizer.pad_token_id,
    }


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and only errors of transformers inside the block."""
    verbosity = transformers_logging.get_verbosity()
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bar:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def loading(problem: str) -> Iterator[None]:
    """Run loaders of transformers quietly; any error in one line that begins with the problem."""
    try:
        with quiet_transformers():
            yield
    except Exception as error:  # files from outside can be wrong in any way
        reason = " ".join(str(error).split())[:300]
        raise EncoreError(f"{problem} ({type(error).__name__}: {reason})") from error


def _find(config: BackboneConfig) -> ModelFiles:
    return _BACKBONE.find(
        config.model, revision=config.revision, needs_weights=config.init == "pretrained"
    )


def trunk_dtype(config: BackboneConfig, device: str) -> torch.dtype:
    """The number format of a trunk: ``auto`` is bfloat16 on CUDA, float32 elsewhere."""
    is_half = config.dtype == "bfloat16" or (config.dtype == "auto" and device.startswith("cuda"))
    return torch.bfloat16 if is_half else torch.float32


def _load_taken_apart(
    config: BackboneConfig, files: ModelFiles, device: str, *, num_labels: int
) -> tuple[Any, Any]:
    """Trunk and head [labels, D] of a classifier whose head is linear on the last token."""
    if config.init == "random":
        raise InputError(
            f"backbone {files.name!r}: head_init 'own' with random weights; use head_init 'zero'"
        )
    classifier, unused = _load(AutoModelForSequenceClassification, config, files, device)
    head = getattr(classifier, "score", None)
    # Transformers passes silently over a bias that the architecture has no place for.
    has_bias = getattr(head, "bias", None) is not None or "score.bias" in unused
    if head is None or has_bias or head.weight.shape[0] != num_labels:
        raise InputError(
            f"backbone {files.name!r}: its head is not linear with {num_labels} labels and without "
            f"bias on the last token; use a causal reward model with num_labels {num_labels}, or "
            "head_init 'zero'"
        )
    return getattr(classifier, classifier.base_model_prefix), head.weight.detach()


def _load(
    auto_class: Any, config: BackboneConfig, files: ModelFiles, device: str, **options: Any
) -> tuple[Any, set[str]]:
    return load_weights(
        auto_class,
        files.location,
        name=f"backbone {files.name!r}",
        dtype=trunk_dtype(config, device),
        revision=files.hub_revision,
        trust_remote_code=False,
        device_map={"": device} if device.startswith("cuda") else None,
        **({"attn_implementation": register_segment_attention()} | options),
    )


def load_weights(
    auto_class: Any, location: str | Path, *, name: str, **options: Any
) -> tuple[Any, set[str]]:
    """A whole model of transformers, and the names of stored weights that it has no place for.

    Args:
        auto_class: Of transformers.
        location: Folder or hub id.
        name: What messages call it.
        options: Of its ``from_pretrained``.

    Raises:
        EncoreError: Weights that do not load or are not all there.
    """
    with loading(
        f"{name}: its weights do not load; expected complete *.safetensors of the architecture in "
        "config.json"
    ):
        model, report = auto_class.from_pretrained(
            location, use_safetensors=True, output_loading_info=True, **options
        )
    absent = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if absent:
        raise EncoreError(
            f"{name}: {len(absent)} weights missing or of another shape, first "
            f"{', '.join(absent[:3])}; they would be random: give a complete model"
        )
    return model, set(map(str, report["unexpected_keys"]))


def _random_trunk(
    config: BackboneConfig, files: ModelFiles, device: str, *, seed: int, **options: Any
) -> Any:
    model_config = AutoConfig.from_pretrained(
        files.location, revision=files.hub_revision, trust_remote_code=False
    )
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays as it was
        torch.manual_seed(seed)
        trunk = AutoModel.from_config(
            model_config,
            dtype=torch.float32,
            attn_implementation=register_segment_attention(),
            **options,
        )
    for parameter in trunk.parameters():  # not buffers: rotary frequencies stay float32
        parameter.data = parameter.data.to(trunk_dtype(config, device))
    return trunk
