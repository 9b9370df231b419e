"""A folder that says something else than the model is never kept, whatever is wrong with it."""

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
from encore.export.classifier import Written
from encore.export.verify import verify_export
from encore.export.weights_input import Composition
from encore.export.write_export import export_model
from tests.export.opened import RULES, opened_model
from tests.worlds.models import edit_json, edit_tensors
from tests.worlds.tokenizers import LLAMA_3_TOKENS

TENSORS, UP = "model.safetensors", "model.layers.0.mlp.up_proj.weight"
END = LLAMA_3_TOKENS.index("<|eot_id|>")
Damage = Callable[[Path], None]


def written(folder: Path, *, dtype: str = "float32") -> Written:
    opened = opened_model()
    export_model(opened, out=folder, dtype=dtype)
    tensors = {f"model.{key}": value for key, value in opened.model.trunk.state_dict().items()}
    return Written(
        folder=folder,
        source=opened,
        tensors=tensors | {"score.weight": opened.model.heads.weight.detach()},
        composition=Composition(weights={}),
        dtype=dtype,
        architecture="LlamaForSequenceClassification",
    )


def configured(**values: object) -> Damage:
    return lambda folder: edit_json(folder / "config.json", **values)


def weighed(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_tensors(folder / TENSORS, change)


def template_with_a_line_break(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + "{{ '\\n' }}")


def first_token_left_to_the_tokenizer(folder: Path) -> None:
    """Right for readers that add special tokens, wrong for those that do not."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("{{- '<|begin_of_text|>' -}}", ""))


ROPE = {"rope_type": "default", "rope_theta": 500.0}
DAMAGES: dict[str, tuple[Damage, str]] = {
    "another rope": (configured(rope_parameters=ROPE, rope_theta=500.0), "differ by"),
    "pads with an end": (configured(pad_token_id=END), "differ by"),
    "one weight": (weighed(lambda t: t[UP][0].mul_(1.02)), "1 of its tensors"),
    "a weight less": (
        weighed(lambda t: t.pop("model.norm.weight")),
        r"1 weights missing .* first model\.norm\.weight",
    ),
    "a line break": (template_with_a_line_break, "its text gives .* tokens other than"),
    "no special tokens": (
        first_token_left_to_the_tokenizer,
        "its text without special tokens added gives",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "does not load"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_whatever_readers_would_misread_is_found(tmp_path, name):
    damage, message = DAMAGES[name]
    is_rounded = name in ("another rope", "one weight", "a weight less")
    export = written(tmp_path / "export", dtype="bfloat16" if is_rounded else "float32")
    damage(export.folder)
    with pytest.raises(EncoreError, match=message) as caught:
        verify_export(export)
    assert "\n" not in str(caught.value)


def test_a_label_of_large_scores_does_not_hide_what_is_wrong_with_another(tmp_path):
    export = written(tmp_path / "export")
    with torch.no_grad():  # one label scores in the thousands: 1e-5 of that is much elsewhere
        export.source.model.heads.weight[0] *= 1e4
        tensors = {**export.tensors, "score.weight": export.source.model.heads.weight.clone()}
        tensors["score.weight"][1] *= 1 + 1e-3
    edit_tensors(export.folder / TENSORS, lambda on_disk: on_disk.update(tensors))
    with pytest.raises(EncoreError, match=f"under {RULES[1]!r}, at most 1e-05 was expected"):
        verify_export(dataclasses.replace(export, tensors=tensors))
