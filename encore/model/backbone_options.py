"""Options of the pretrained backbone of a reward model and of its input format."""

from __future__ import annotations

from functools import partial
from typing import Literal

from encore.core.config import StageConfig, option
from encore.model.model_options import NumberFormat

#: Ways to lay out responses in a batch; see `encore.model.layouts`.
LayoutName = Literal["packed", "prefix-shared", "sorted", "single"]
#: File that marks a folder as an export.
EXPORT_FILE = "encore_export.json"
#: Key of a model's metadata that says what its single head was composed from: weights, mean,
#: scheme, params, entropy_nats and weights_provenance, as in `EXPORT_FILE`.
COMPOSED = "composed"

_backbone_option = partial(option, group="Backbone")


class BackboneConfig(StageConfig):
    """The backbone of a training run and its input format; both are part of the run's identity."""

    model: str = option(name="backbone", min_length=1, metavar="FOLDER_OR_ID")
    """Model to start from: a folder with config.json, a tokenizer and *.safetensors, or a hub id
    such as meta-llama/Llama-3.1-8B-Instruct."""
    revision: str | None = _backbone_option(None)
    """Hub revision; the commit it resolves to is recorded."""
    init: Literal["pretrained", "random"] = _backbone_option("pretrained")
    """random: only config.json and the tokenizer are read; weights are random."""
    dtype: NumberFormat = option("auto", group="Memory and speed")
    """Number format of the weights; auto: bfloat16 on CUDA, float32 on CPU."""
    max_length: int = _backbone_option(1024, ge=16)
    """Longest conversation in tokens. The oldest tokens beyond it are cut, and counted. A model
    with fewer positions lowers it."""
    chat_template: str | None = _backbone_option(None)
    """Path of a Jinja file that replaces the tokenizer's template."""
