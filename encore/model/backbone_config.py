"""Which pretrained model a reward model starts from, and how text becomes its input."""

from __future__ import annotations

from functools import partial
from typing import Literal

from encore.core.config import StageConfig, option

#: How responses are put side by side; see `encore.model.layouts`.
LayoutName = Literal["packed", "prefix-shared", "sorted", "single"]
#: The file by which a folder is known as an export.
EXPORT_FILE = "encore_export.json"
#: Under which a model's metadata keeps what its one head was folded from: weights, mean, scheme,
#: params, entropy_nats and weights_provenance, as `EXPORT_FILE` has them.
COMPOSED = "composed"

_backbone_option = partial(option, group="Backbone")


class BackboneConfig(StageConfig):
    """A backbone and its input format: part of a training run's identity."""

    model: str = option(
        name="backbone",
        min_length=1,
        metavar="FOLDER_OR_ID",
        help="What to start from: a folder with config.json, a tokenizer and *.safetensors, or a "
        "hub id such as meta-llama/Llama-3.1-8B-Instruct.",
    )
    revision: str | None = _backbone_option(
        None, help="Hub revision; the commit it resolves to is recorded."
    )
    init: Literal["pretrained", "random"] = _backbone_option(
        "pretrained",
        help="random: only config.json and the tokenizer are read; weights are seeded.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto",
        group="Memory and speed",
        help="Number format; auto: bfloat16 on CUDA, float32 on CPU.",
    )
    max_length: int = _backbone_option(
        1024,
        ge=16,
        help="Tokens of a conversation; the oldest beyond it are cut, and counted. Never "
        "more than the model has positions.",
    )
    chat_template: str | None = _backbone_option(
        None, help="Path of a Jinja file that replaces the tokenizer's template."
    )
