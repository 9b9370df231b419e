"""The model card says what the scores mean, how to get them and where they come from."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest

from encore.exports.weights_input import Composition
from encore.exports.write_export import export_model
from tests.worlds.models import WEIGHTS, opened_model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"
METADATA = {
    "run_key": "0123abcd",
    "data_sha256": "d" * 64,
    "backbone_name": "meta-llama/Llama-3.1-8B-Instruct",
    "backbone_identity": {"revision": "e" * 40},
    "evaluation": {
        "num_pairs": 1234,
        "r2_by_head": {"be-kind": 0.25, "be-brief": None},
        "accuracy_half_by_head": {"be-kind": 0.625, "be-brief": 0.5},
    },
    "synthetic": [],
}
COMPOSITION = Composition(
    weights=WEIGHTS,
    scheme="encore",
    params={"tau": 2.0, "log_base": "e"},
    entropy_nats={"be-kind": 0.5, "be-brief": 1.5, "be-true": 2.25},
    provenance={"judge": "big-judge", "ratings_sha256": "f" * 64, "num_ratings": 7},
)


def card(tmp_path: Path, *, weights=WEIGHTS, **settings) -> str:
    opened = opened_model(metadata=settings.pop("metadata", METADATA))
    export_model(opened, out=tmp_path / "my-model", weights=weights, **settings)
    return (tmp_path / "my-model" / "README.md").read_text(encoding="utf-8")


def test_the_card_of_a_composed_model_has_weights_entropies_and_their_origin(tmp_path):
    text = card(tmp_path, weights=COMPOSITION)
    for line in (
        "| rule | mean rating | weight | entropy (nats) |",
        "| `be-kind` | 0.2500 | 0.5 | 0.5000 |",
        "| `be-true` | 0.7500 | 0.2 | 2.2500 |",
        "Weights by scheme `encore` (tau 2.0). Weights are softmax(−entropy / tau)",
        "Add 0.425000",  # 0.5 * 0.25 + 0.3 * 0.5 + 0.2 * 0.75
        "base_model: meta-llama/Llama-3.1-8B-Instruct",
        "1,234 pairs",
        "| `be-kind` | 0.250 | 62.5% |",
        "| `be-brief` | – | 50.0% |",
        *("d" * 64, "e" * 40, "f" * 64, "0" * 64, "0123abcd", "big-judge"),
    ):
        assert line in text


def test_synthetic_parts_are_marked_and_a_hostile_name_is_escaped(tmp_path):
    hostile = {"backbone_name": "a|b<script>\nc", "synthetic": ["backbone (made up)"]}
    text = card(tmp_path, metadata=METADATA | hostile)
    assert "> **Synthetic** (backbone (made up))" in text
    assert "- synthetic\n" in text
    assert "| backbone | a\\|b&lt;script> c |" in text
    image = "![x](https://evil.example/p.png)"
    composition = COMPOSITION.model_copy(
        update={"scheme": "`" + image, "params": {image: "[y](z)"}}
    )
    text = card(tmp_path / "second", weights=composition)
    assert f"Weights by scheme `` `{image} `` (`{image}` \\[y\\](z))" in text
    assert (
        "rewardbench --model my-model --not_quantized --torch_dtype float32 --max_length 500 "
        "--force_truncation --batch_size 1`"
    ) in text
    assert "nothing but transformers (4.51 or newer) is needed" in text


def test_the_example_code_of_the_card_prints_the_scores_of_the_card(tmp_path, monkeypatch):
    text = card(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 10
    assert code in PAGE.read_text(encoding="utf-8")  # the page loads an export as its card does
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "card", "exec"), {})  # noqa: S102 - the card asks its reader to run it
    [stated] = re.findall(r"prints `({'reward': -?[\d.]+})`", text)
    expected = ast.literal_eval(stated)["reward"]
    assert ast.literal_eval(printed.getvalue())["reward"] == pytest.approx(expected, abs=2e-6)


def test_weights_learnt_from_answers_are_marked(tmp_path):
    provenance = {"uses_labels": True, "uses_benchmark": True}
    weights = COMPOSITION.model_copy(update={"scheme": "bradley-terry", "provenance": provenance})
    result = export_model(opened_model(), out=tmp_path / "my-model", weights=weights)
    answers = "people's preferences and a benchmark's answers"
    assert f"**They were learnt from {answers}**" in (tmp_path / "my-model/README.md").read_text()
    assert any(f"weights were learnt from {answers}:" in note for note in result.notes)


def test_unknown_facts_are_not_claimed(tmp_path):
    opened = opened_model("olmo2")
    opened.model.mean_R.zero_()  # as of a downloaded model, which may not be centred
    exported = export_model(opened, out=tmp_path / "my-model", dtype="bfloat16")
    assert any("need transformers 5.19 or newer" in note for note in exported.notes)
    text = (tmp_path / "my-model" / "README.md").read_text()
    assert "None was recorded." in text
    for absent in ("mean rating", "## Scale", "longrope", "rewardbench --model"):
        assert absent not in text
    assert "3 scores of a response, one under each rule" in text
    assert "license: unknown" in text
    assert "base_model" not in text
    assert "vllm serve my-model --runner pooling --dtype bfloat16 --max-model-len 500`" in text
