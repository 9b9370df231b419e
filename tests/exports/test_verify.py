"""A folder that does not describe the model is refused, whatever is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from encore.core.errors import EncoreError
from encore.exports.classifier import Written
from encore.exports.verify import verify_export
from encore.exports.write_export import export_model
from tests.worlds.models import RULES, edit_json, edit_tensors, opened_model
from tests.worlds.tokenizers import LLAMA_3_TOKENS

pytestmark = pytest.mark.services

TENSORS, UP = "model.safetensors", "model.layers.0.mlp.up_proj.weight"
END = LLAMA_3_TOKENS.index("<|eot_id|>")
Damage = Callable[[Path], None]


def written(folder: Path, *, dtype: str = "float32") -> Written:
    """Export a model, and return the record of its files and of the model in memory."""
    exported = export_model(opened_model(), out=folder, dtype=dtype)
    return dataclasses.replace(exported.written, folder=folder)


def change_config(**values: object) -> Damage:
    return lambda folder: edit_json(folder / "config.json", **values)


def change_tensors(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_tensors(folder / TENSORS, change)


def add_line_break_to_template(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + "{{ '\\n' }}")


def let_tokenizer_add_first_token(folder: Path) -> None:
    """Damage an export for readers that add no special tokens; for others it stays right."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("{{- '<|begin_of_text|>' -}}", ""))


ROPE = {"rope_type": "default", "rope_theta": 500.0}
DAMAGES: dict[str, tuple[Damage, str]] = {
    "another rope": (change_config(rope_parameters=ROPE, rope_theta=500.0), "differ by"),
    "pads with an end": (change_config(pad_token_id=END), "differ by"),
    "one weight": (change_tensors(lambda t: t[UP][0].mul_(1.02)), "1 of its tensors"),
    "a weight less": (
        change_tensors(lambda t: t.pop("model.norm.weight")),
        r"1 weights missing .* first model\.norm\.weight",
    ),
    "a line break": (add_line_break_to_template, "its text gives .* tokens other than"),
    "no special tokens": (
        let_tokenizer_add_first_token,
        "its text without special tokens added gives",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "does not load"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_an_export_that_readers_would_misread_is_refused(tmp_path, name):
    damage, message = DAMAGES[name]
    is_rounded = name in ("another rope", "one weight", "a weight less")
    export = written(tmp_path / "export", dtype="bfloat16" if is_rounded else "float32")
    damage(export.folder)
    with pytest.raises(EncoreError, match=message) as caught:
        verify_export(export)
    assert "\n" not in str(caught.value)


def test_large_scores_of_one_label_do_not_hide_wrong_scores_of_another(tmp_path):
    export = written(tmp_path / "export")
    with torch.no_grad():  # a label scores in the thousands: 1e-5 of that is much for the others
        export.source.model.heads.weight[0] *= 1e4
        tensors = {**export.tensors, "score.weight": export.source.model.heads.weight.clone()}
        tensors["score.weight"][1] *= 1 + 1e-3
    edit_tensors(export.folder / TENSORS, lambda on_disk: on_disk.update(tensors))
    with pytest.raises(EncoreError, match=f"under {RULES[1]!r}, at most 1e-05 was expected"):
        verify_export(dataclasses.replace(export, tensors=tensors))
