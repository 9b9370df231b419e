"""A trained encoder, written so that transformers' own BERT classifier gives its scores.

`BertForSequenceClassification` reads the class token through a dense layer and tanh. A reward model
of ours pooled at the class token has neither: here the dense layer shrinks every coordinate by a
power of two, tanh changes so small a number by less than float32 can hold, and the classifier
undoes the shrinking.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from encore.export.classifier import write_tokenizer
from encore.model.loading import quiet_transformers
from encore.model.opening import OpenedModel

#: tanh(x / 4096) * 4096 = x - x³ / 5e7 + …: below 1e-6 for the states of a layer norm.
_SHRINK = 2.0**-12


def write_plain_bert(opened: OpenedModel, folder: Path) -> Path:
    """A folder for tools that know transformers alone.

    Args:
        opened: On a BERT, pooled at its class token, with one head.
        folder: Made.
    """
    model = opened.model
    assert model.pooling == "class-token"
    assert model.trunk.config.model_type == "bert"
    config = BertConfig(**_without_labels(model.trunk.config.to_dict()), num_labels=1)
    with quiet_transformers(), torch.no_grad():
        plain = BertForSequenceClassification(config)
        plain.bert.load_state_dict(model.trunk.state_dict(), strict=False)
        dense = plain.bert.pooler.dense
        dense.weight.copy_(torch.eye(model.hidden_size) * _SHRINK)
        dense.bias.zero_()
        plain.classifier.weight.copy_(model.heads.weight / _SHRINK)
        plain.classifier.bias.zero_()
        plain.save_pretrained(folder)
    write_tokenizer(opened.tokenizer, folder)
    return folder


def _without_labels(config: dict[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in config if name not in ("id2label", "label2id")}
