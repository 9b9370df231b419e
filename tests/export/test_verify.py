"""A folder that says something else than the model is never kept, whatever is wrong with it."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from encore.errors import EncoreError
from encore.export import verify
from encore.export.verify import Written, verify_export
from encore.export.write_export import export_model
from tests.export.opened import RULES, opened_model
from tests.model.tokenizers import LLAMA_3_TOKENS

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
        mix_RK=np.eye(len(RULES)),
        labels=RULES,
        dtype=dtype,
        architecture="LlamaForSequenceClassification",
    )


def changed(name: str, **values: object) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def one_weight(name: str, factor: float) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name][0, 0] *= factor
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def without_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def template_with_a_line_break(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + "{{ '\\n' }}")


def special_tokens_added(folder: Path) -> None:
    begin = {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    token = {"id": "<|begin_of_text|>", "ids": [0], "tokens": ["<|begin_of_text|>"]}
    processor = {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|begin_of_text|>": token},
    }
    changed("tokenizer.json", post_processor=processor)(folder)


def first_token_left_to_the_tokenizer(folder: Path) -> None:
    """Right for readers that add special tokens, wrong for those that do not."""
    special_tokens_added(folder)
    path = folder / "chat_template.jinja"
    text = path.read_text()
    assert "{{- '<|begin_of_text|>' -}}" in text
    path.write_text(text.replace("{{- '<|begin_of_text|>' -}}", ""))


ROPE = {"rope_type": "default", "rope_theta": 500.0}


DAMAGES: dict[str, tuple[Damage, str]] = {
    "another rope": (changed("config.json", rope_parameters=ROPE, rope_theta=500.0), "differ by"),
    "pads with an end": (changed("config.json", pad_token_id=END), "differ by"),
    "another activation": (changed("config.json", hidden_act="relu"), "differ by"),
    "another norm": (changed("config.json", rms_norm_eps=0.1), "differ by"),
    "fewer labels": (
        changed("config.json", id2label={"0": "one"}),
        "not load|1 weights miss",
    ),
    "more layers": (changed("config.json", num_hidden_layers=3), "9 weights missing"),
    "another head": (one_weight("score.weight", 1.5), r"1 of its tensors .* first score\.weight"),
    "one weight": (one_weight("model.layers.0.mlp.up_proj.weight", 1.02), "1 of its tensors"),
    "a weight less": (without_weight, r"1 weights missing .* first model\.norm\.weight"),
    "a line break": (template_with_a_line_break, "its text gives .* other ones"),
    "special tokens": (special_tokens_added, "its text gives"),
    "no special tokens": (
        first_token_left_to_the_tokenizer,
        "its text without special tokens added gives",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "does not load"),
    "no config": (lambda f: (f / "config.json").write_text("{"), "not load"),
}


IN_BFLOAT16 = {"another rope", "one weight", "a weight less"}


@pytest.mark.parametrize("name", DAMAGES)
def test_whatever_readers_would_misread_is_found(tmp_path, name):
    damage, message = DAMAGES[name]
    dtype = "bfloat16" if name in IN_BFLOAT16 else "float32"
    export = written(tmp_path / "export", dtype=dtype)
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
    (export.folder / "model.safetensors").unlink()
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        export.folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(EncoreError, match=f"under {RULES[1]!r}, at most 1e-05 was expected"):
        verify_export(dataclasses.replace(export, tensors=tensors))


def test_the_export_is_never_opened_twice_beside_the_model(tmp_path, monkeypatch):
    real, opened_before = verify._open, []

    def watched(written, dtype):
        assert [one for one in opened_before if one() is not None] == []
        model = real(written, dtype)
        opened_before.append(weakref.ref(model))
        return model

    monkeypatch.setattr(verify, "_open", watched)
    export_model(opened_model(), out=tmp_path / "half", dtype="bfloat16")
    assert len(opened_before) == 2
