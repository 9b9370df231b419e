"""Load the tokenizer and the reward model of a backbone, from safetensors files only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from encore.core.errors import EncoreError, InputError
from encore.core.model_files import ModelFiles, ModelFinder
from encore.core.transformers_loading import load_weights, loading_errors
from encore.model.architectures import (
    TRUNKS,
    UNKNOWN_KIND,
    max_positions,
    position_offset,
    trunk_kind,
)
from encore.model.attention import register_segment_attention
from encore.model.backbone_options import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.reward_model import MultiHeadRewardModel, WholeClassifier

_BACKBONE = ModelFinder(name="backbone", error=EncoreError)
#: Number of labels that transformers assumes if a config does not say it.
_NUM_LABELS = 2


def load_tokenizer(
    config: BackboneConfig, *, is_as_downloaded: bool = False
) -> ConversationTokenizer:
    """Load the backbone's tokenizer and freeze its chat template.

    Args:
        config: Backbone and input format.
        is_as_downloaded: See `ConversationTokenizer`. If True, an architecture that cannot be
            trained is accepted too.

    Raises:
        EncoreError: There is no such model, or its tokenizer does not load.
        InputError: The architecture, template or pad token cannot be used.
    """
    files = _find(config)
    kind = TRUNKS.get(str(files.config.get("model_type")), UNKNOWN_KIND)
    if not is_as_downloaded or kind is not UNKNOWN_KIND:
        kind = trunk_kind(files.config, name=files.name)
    with loading_errors(
        f"backbone {files.name!r}: its tokenizer does not load; expected tokenizer.json and "
        "tokenizer_config.json"
    ):
        tokenizer = AutoTokenizer.from_pretrained(
            files.location, revision=files.hub_revision, trust_remote_code=False
        )
    template = None
    if config.chat_template is not None:
        problem = f"chat_template {config.chat_template!r}: no Jinja file that can be read"
        with loading_errors(problem):
            template = Path(config.chat_template).read_text(encoding="utf-8")
    num_positions = max_positions(files.config, kind)
    return ConversationTokenizer(
        tokenizer,
        num_embeddings=files.config.get("vocab_size"),
        max_length=min(config.max_length, num_positions or config.max_length),
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
    """Load a reward model on a pretrained or randomly initialised trunk, in training mode.

    Args:
        config: Backbone and number format.
        head_ids: Id of each head.
        seed: Seed of random weights.
        head_init: Start of the heads. ``zero``: zeros. ``own``: every head starts as the head of
            the backbone, a classifier with one label (a downloaded reward model). ``labels``: head
            r starts as label r of a classifier with as many labels.
        device: Device of the model.

    Raises:
        EncoreError: Weights are missing, incomplete or pickled.
        InputError: The architecture or its head does not fit.
    """
    files = _find(config)
    kind = trunk_kind(files.config, name=files.name)
    # A pooler belongs to another loss: its weights would get no gradient.
    options = {"add_pooling_layer": False} if kind.has_pooler else {}
    classifier_head = None
    if head_init != "zero":
        num_heads = 1 if head_init == "own" else len(head_ids)
        trunk, classifier_head = _load_trunk_and_head(config, files, device, num_heads=num_heads)
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
    if classifier_head is not None:
        model.heads.weight.data.copy_(classifier_head)  # a single label is copied to every head
    model.train()
    return model


def has_reward_head(config: BackboneConfig) -> bool:
    """Return True if a backbone is a decoder with a head of one label: a downloaded reward model.

    Only its config.json is read.

    Raises:
        EncoreError: There is no such model.
    """
    files = _find(config)
    is_classifier = any(
        name.endswith("ForSequenceClassification")
        for name in files.config.get("architectures") or ()
    )
    is_causal = trunk_kind(files.config, name=files.name).is_causal
    is_single = is_classifier and is_causal and num_labels(files.config) == 1
    return is_single and config.init == "pretrained"


def num_labels(model_config: Mapping[str, Any]) -> int:
    """Return the number of labels of a classifier's config.json."""
    labels = model_config.get("id2label") or {}
    return len(labels) or int(model_config.get("num_labels") or _NUM_LABELS)


def load_whole_classifier(
    config: BackboneConfig, *, head_ids: Sequence[str], pad_token_id: int, device: str = "cpu"
) -> WholeClassifier:
    """Load a downloaded sequence classifier of any architecture, run by transformers itself.

    Args:
        config: Classifier and number format.
        head_ids: Id of the head of each label.
        pad_token_id: Id of the token that fills padded rows.
        device: Device of the model.

    Raises:
        EncoreError: Weights are missing, incomplete or pickled.
    """
    files = _find(config)
    # The default attention of transformers ignores a cap on attention scores (Gemma 2).
    attention = "eager" if files.config.get("attn_logit_softcapping") else None
    classifier, _ = _load(
        AutoModelForSequenceClassification, config, files, device, attn_implementation=attention
    )
    model = WholeClassifier(classifier, head_ids=head_ids, pad_token_id=pad_token_id)
    model.to(device)
    model.eval()
    return model


def backbone_identity(config: BackboneConfig, tokenizer: ConversationTokenizer) -> dict[str, Any]:
    """Return what a training run records about its backbone. It names no path of a machine.

    Args:
        config: Backbone and input format.
        tokenizer: The backbone's tokenizer, from `load_tokenizer`.

    Raises:
        EncoreError: There is no such model.
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


def _find(config: BackboneConfig) -> ModelFiles:
    """Find the files of a backbone; weights are needed unless it is initialised randomly."""
    return _BACKBONE.find(
        config.model, revision=config.revision, needs_weights=config.init == "pretrained"
    )


def trunk_dtype(config: BackboneConfig, device: str) -> torch.dtype:
    """Return the number format of a trunk: ``auto`` is bfloat16 on CUDA, float32 on a CPU."""
    is_half = config.dtype == "bfloat16" or (config.dtype == "auto" and device.startswith("cuda"))
    return torch.bfloat16 if is_half else torch.float32


def _load_trunk_and_head(
    config: BackboneConfig, files: ModelFiles, device: str, *, num_heads: int
) -> tuple[Any, Any]:
    """Load a classifier with a linear head on the last token; return its trunk and head [R, D]."""
    if config.init == "random":
        raise InputError(
            f"backbone {files.name!r}: head_init 'own' with random weights; use head_init 'zero'"
        )
    classifier, unused = _load(AutoModelForSequenceClassification, config, files, device)
    head = getattr(classifier, "score", None)
    # Transformers ignores a stored bias silently if the architecture has none.
    has_bias = getattr(head, "bias", None) is not None or "score.bias" in unused
    if head is None or has_bias or head.weight.shape[0] != num_heads:
        raise InputError(
            f"backbone {files.name!r}: its head is not linear with {num_heads} labels and without "
            f"bias on the last token; use a causal reward model with num_labels {num_heads}, or "
            "do not start at this head (head_init 'zero', preference_head 'none')"
        )
    return getattr(classifier, classifier.base_model_prefix), head.weight.detach()


def _load(
    auto_class: Any, config: BackboneConfig, files: ModelFiles, device: str, **options: Any
) -> tuple[Any, set[str]]:
    """Load a transformers model of a class with ENCORE's attention, as `load_weights` does."""
    return load_weights(
        auto_class,
        files.location,
        name=f"backbone {files.name!r}",
        dtype=trunk_dtype(config, device),
        revision=files.hub_revision,
        device_map={"": device} if device.startswith("cuda") else None,
        **({"attn_implementation": register_segment_attention()} | options),
    )


def _random_trunk(
    config: BackboneConfig, files: ModelFiles, device: str, *, seed: int, **options: Any
) -> Any:
    """Build a trunk with random weights that follow from the seed."""
    model_config = AutoConfig.from_pretrained(
        files.location, revision=files.hub_revision, trust_remote_code=False
    )
    with torch.random.fork_rng(devices=[]):  # do not change the caller's random state
        torch.manual_seed(seed)
        trunk = AutoModel.from_config(
            model_config,
            dtype=torch.float32,
            attn_implementation=register_segment_attention(),
            **options,
        )
    for parameter in trunk.parameters():  # but not buffers: rotary frequencies stay float32
        parameter.data = parameter.data.to(trunk_dtype(config, device))
    return trunk
