"""An export scores as the model does in every architecture, and is written completely or not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from encore.core.errors import EncoreError, InputError
from encore.exports.classifier import fold, write_tensors
from encore.exports.weights_input import Composition
from encore.exports.write_export import export_model
from encore.model.architectures import TRUNKS
from encore.model.open_model import open_reward_model
from encore.model.score_sequences import score_sequences
from tests.exports.readers.conversations import reader_pairs
from tests.worlds.models import MEANS, RULES, WEIGHTS, opened_model, tiny_model, token_ids

pytestmark = pytest.mark.services

SEQUENCES = [token_ids(length, seed=length) for length in (3, 50, 17)]
DECODERS = sorted(name for name, kind in TRUNKS.items() if kind.is_causal)


def plain_scores(folder, sequences=SEQUENCES, **options) -> np.ndarray:
    model = AutoModelForSequenceClassification.from_pretrained(folder, **options)
    with torch.inference_mode():
        rows = [model.eval()(torch.from_numpy(ids).long()[None]).logits[0] for ids in sequences]
    return torch.stack(rows).double().numpy()


def scores_in_memory(opened, sequences=SEQUENCES) -> np.ndarray:
    pad = opened.tokenizer.pad_token_id
    return score_sequences(opened.model, sequences, pad_token_id=pad).astype(np.float64)


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", DECODERS)
def test_every_causal_architecture_scores_the_same_in_its_own_class(model_type, tmp_path):
    opened = opened_model(model_type)
    export_model(opened, out=tmp_path / "heads")
    expected_NR = scores_in_memory(opened)
    assert expected_NR.std() > 0.01  # equal scores would not tell models apart
    np.testing.assert_allclose(plain_scores(tmp_path / "heads"), expected_NR, atol=1e-5, rtol=0)


@given(
    weights=st.lists(st.floats(-3, 3), min_size=2, max_size=6).filter(any),
    seed=st.integers(0, 2**31),
)
def test_scoring_then_weighing_is_weighing_then_scoring(weights, seed):
    generator = torch.Generator().manual_seed(seed)
    head_ids = [f"rule-{index}" for index in range(len(weights))]
    weight_RD = torch.randn(len(weights), 8, generator=generator)
    hidden_ND = torch.randn(5, 8, generator=generator).double()
    by_id = dict(zip(head_ids, weights, strict=True))
    composed_N = (hidden_ND @ weight_RD.double().T) @ torch.tensor(weights, dtype=torch.float64)
    folded_D = fold(weight_RD, by_id, head_ids)[0]
    torch.testing.assert_close(hidden_ND @ folded_D, composed_N, rtol=1e-12, atol=1e-12)
    # In float32 1e8 + 1 is 1e8, so the small head would be lost.
    small = torch.tensor([[1e8], [1.0], [-1e8]])
    assert fold(small, {"a": 1.0, "b": 1.0, "c": 1.0}, "abc").item() == 1.0


def test_folding_an_export_of_all_heads_equals_folding_the_model(tmp_path):
    opened = opened_model()
    export_model(opened, out=tmp_path / "direct", weights=WEIGHTS)
    export_model(opened, out=tmp_path / "heads")
    reopened = open_reward_model(tmp_path / "heads", device="cpu", dtype="float32")
    export_model(reopened, out=tmp_path / "again", weights=WEIGHTS)
    # bfloat16 is the same weights rounded once: the folded head from float64 in one step.
    export_model(opened, out=tmp_path / "half", weights=WEIGHTS, dtype="bfloat16")
    direct, refolded, half = (
        load_file(tmp_path / name / "model.safetensors") for name in ("direct", "again", "half")
    )
    assert all(torch.equal(direct[name], refolded[name]) for name in direct)
    score = (half.pop("score.weight").float(), direct["score.weight"])
    assert all(torch.equal(half[name], direct[name].bfloat16()) for name in half)
    torch.testing.assert_close(*score, rtol=2**-8, atol=0)
    expected_N = scores_in_memory(opened) @ [WEIGHTS[rule] for rule in RULES]
    plain_N = plain_scores(tmp_path / "direct")[:, 0]
    np.testing.assert_allclose(plain_N, expected_N, atol=1e-5, rtol=0)


def test_rankings_that_bfloat16_flips_are_counted_over_pairs_and_labels(tmp_path):
    opened, pairs = opened_model(), reader_pairs()
    half = export_model(opened, out=tmp_path / "half", dtype="bfloat16", pairs=pairs)
    # The same count by hand: margins in memory against margins of the folder as it is read.
    encoded = opened.tokenizer.encode_pairs(pairs)
    sequences = [response.token_ids for pair in encoded for response in pair]
    memory_NR = scores_in_memory(opened, sequences)
    plain_NR = plain_scores(tmp_path / "half", sequences, dtype=torch.bfloat16)
    memory_sign_PR, plain_sign_PR = (
        np.sign(score_NR[::2] - score_NR[1::2]) for score_NR in (memory_NR, plain_NR)
    )
    assert half.verification.num_margins == len(pairs) * len(RULES)
    assert half.verification.num_flipped == (memory_sign_PR != plain_sign_PR).sum()


def test_large_models_are_written_in_shards_that_read_as_one(tmp_path):
    opened = opened_model()
    tensors = opened.model.trunk.state_dict()
    write_tensors(tensors, tmp_path, dtype="bfloat16", max_shard_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert set(index["weight_map"]) == set(tensors)
    assert set(index["weight_map"].values()) == set(files)
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name].bfloat16())


# --- output folders -------------------------------------------------------------------------------


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path, monkeypatch):
    opened, first = opened_model(), tmp_path / "first"
    export_model(opened, out=first)
    (tmp_path / "latest").symlink_to("first", target_is_directory=True)
    export_model(opened, out=tmp_path / "latest", weights=WEIGHTS)
    assert (tmp_path / "latest").is_symlink()
    assert json.loads((first / "encore_export.json").read_text())["kind"] == "composed"
    for folder in ("mine", "empty", "first/.git"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path / "empty")
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out, message in (
        (tmp_path / "mine", "something else in it than an export"),
        (tmp_path / "mine" / "notes.txt", r"something else in it than an export \(notes\.txt\)"),
        (Path(), "the working directory or one above it"),
        (Path(".."), "the working directory or one above it"),
        (first, r"something else in it than an export \(\.git\)"),
    ):
        with pytest.raises(InputError, match=message):
            export_model(opened, out=out, weights=WEIGHTS)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == contents


def test_a_failed_export_leaves_the_earlier_one_as_it_was(tmp_path):
    opened = opened_model()
    export_model(opened, out=tmp_path / "export")
    contents = {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()}
    opened.model.trunk.config.rms_norm_eps += 0.1  # now the config is wrong
    with pytest.raises(EncoreError, match="nothing was kept"):
        export_model(opened, out=tmp_path / "export")
    assert {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()} == contents
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


# --- refusals -------------------------------------------------------------------------------------


def test_a_model_that_no_plain_classifier_can_represent_is_refused_in_one_line(tmp_path):
    encoder = dataclasses.replace(opened_model(), model=tiny_model("bert", vocab_size=300).eval())
    rounded, sigmoid = opened_model(), opened_model()
    rounded.model.trunk.bfloat16()
    sigmoid.model.trunk.config.sentence_transformers = {"activation_fn": "torch.nn.Sigmoid"}
    no_weights = dict.fromkeys(RULES, 0.0)
    for opened, weights, message in (
        (encoder, None, "an encoder, .* the classifier of 'bert'"),
        (sigmoid, None, r"asks for a sigmoid after the head \(sentence_transformers"),
        (rounded, None, "opened in torch.bfloat16"),
        (opened_model(), no_weights, "all are 0"),
    ):
        with pytest.raises(EncoreError, match=message) as caught:
            export_model(opened, out=tmp_path / "export", weights=weights)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_export_file_of_another_model_is_refused(tmp_path):
    export_model(opened_model(), out=tmp_path / "heads")
    path = tmp_path / "heads" / "encore_export.json"
    original = json.loads(path.read_text())
    for damaged in ({"labels": None}, {"mean": []}, {"kind": "composed"}, {"labels": ["other"]}):
        path.write_text(json.dumps({**original, **damaged}))
        with pytest.raises(InputError, match="does not describe this model"):
            open_reward_model(tmp_path / "heads", device="cpu")


def test_a_composed_export_that_is_exported_again_keeps_its_origin(tmp_path):
    composition = Composition(
        weights=WEIGHTS,
        scheme="encore",
        params={"tau": 2.0},
        entropy_nats={"be-kind": 0.75},
        provenance={"judge": "big-judge", "uses_labels": True, "num_missing_shards": 2},
    )
    opened = opened_model(metadata={"evaluation": {"num_pairs": 9}})
    export_model(opened, out=tmp_path / "first", weights=composition, licence="apache-2.0")
    reopened = open_reward_model(tmp_path / "first", device="cpu", dtype="float32")
    # 0.5 x 0.25 + 0.3 x 0.5 + 0.2 x 0.75
    assert reopened.model.mean_R.tolist() == pytest.approx([0.425])
    second_export = export_model(reopened, out=tmp_path / "again")
    export_model(reopened, out=tmp_path / "twice", weights={"reward": 2.0})
    first, second, twice = (
        json.loads((tmp_path / name / "encore_export.json").read_text())
        for name in ("first", "again", "twice")
    )
    assert first["mean"] == dict(zip(RULES, MEANS, strict=True))
    assert (second["labels"], second["weights"]) == (["reward"], None)
    origin = second["model_metadata"]["composed"]
    assert {name: first[name] for name in origin} == origin
    assert (origin["weights"], origin["scheme"]) == (WEIGHTS, "encore")
    assert second["model_metadata"]["evaluation"] == {"num_pairs": 9}
    assert "no licence was stated" in second_export.notes[-1]
    assert "license: apache-2.0" in (tmp_path / "first" / "README.md").read_text()
    assert (twice["weights"], twice["mean"]) == ({"reward": 2.0}, {"reward": pytest.approx(0.425)})
