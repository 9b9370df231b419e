"""An export scores as the model does, in every architecture, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from encore.data.records import Message, PreferencePair
from encore.errors import EncoreError, InputError
from encore.export import Composition, ExportAbout, export_model
from encore.export.classifier import classifier_tensors
from encore.export.export_files import write_tensors
from encore.model.opening import open_reward_model
from encore.model.scoring import score_sequences
from encore.model.trunks import TRUNKS
from tests.export.opened import MEANS, RULES, WEIGHTS, opened_model
from tests.model.tiny_models import tiny_model, token_ids

SEQUENCES = [token_ids(length, seed=length) for length in (3, 50, 17)]
DECODERS = sorted(name for name, kind in TRUNKS.items() if kind.is_causal)


def pairs(number: int) -> list[PreferencePair]:
    return [
        PreferencePair(
            pair_id=f"{index:032x}",
            source="mine",
            prompt=(Message(role="user", content=f"Question {index}?"),),
            chosen=f"Answer {index * 7}.",
            rejected=f"No {index}, never.",
        )
        for index in range(number)
    ]


def plain_scores(folder) -> torch.Tensor:
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=False)
    with torch.inference_mode():
        rows = [model.eval()(torch.from_numpy(ids).long()[None]).logits[0] for ids in SEQUENCES]
    return torch.stack(rows).double()


def own_scores(opened) -> torch.Tensor:
    score_NR = score_sequences(opened.model, SEQUENCES, pad_token_id=opened.tokenizer.pad_token_id)
    return torch.from_numpy(score_NR).double()


@pytest.mark.parametrize("model_type", DECODERS)
def test_every_causal_architecture_scores_the_same_in_its_own_class(model_type, tmp_path):
    opened = opened_model(model_type)
    heads = export_model(opened, out=tmp_path / "heads")
    expected_NR = own_scores(opened)
    assert expected_NR.std() > 0.01  # else anything would agree
    torch.testing.assert_close(plain_scores(tmp_path / "heads"), expected_NR, atol=1e-5, rtol=0)
    assert (heads.kind, heads.labels) == ("heads", RULES)
    assert heads.verification.max_difference < 1e-5
    assert heads.verification.num_probes >= 8


def test_folding_what_was_exported_with_all_heads_is_folding_the_model(tmp_path):
    opened = opened_model()
    export_model(opened, out=tmp_path / "direct", weights=WEIGHTS)
    export_model(opened, out=tmp_path / "heads")
    again = open_reward_model(tmp_path / "heads", device="cpu", dtype="float32")
    assert again.model.head_ids == RULES
    export_model(again, out=tmp_path / "again", weights=WEIGHTS)
    direct, refolded = (
        load_file(tmp_path / name / "model.safetensors") for name in ("direct", "again")
    )
    assert all(torch.equal(direct[name], refolded[name]) for name in direct)
    weight_R = torch.tensor([WEIGHTS[rule] for rule in RULES], dtype=torch.float64)
    expected_N = own_scores(opened) @ weight_R
    found_N = plain_scores(tmp_path / "direct")[:, 0]
    torch.testing.assert_close(found_N, expected_N, atol=1e-5, rtol=0)


def test_bfloat16_is_the_same_weights_rounded_once(tmp_path):
    opened = opened_model()
    export_model(opened, out=tmp_path / "half", weights=WEIGHTS, dtype="bfloat16")
    export_model(opened, out=tmp_path / "full", weights=WEIGHTS)
    half, full = (load_file(tmp_path / name / "model.safetensors") for name in ("half", "full"))
    assert {tensor.dtype for tensor in half.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in full.values()} == {torch.float32}
    trunk = [name for name in half if name != "score.weight"]
    assert all(torch.equal(half[name], full[name].bfloat16()) for name in trunk)
    # The folded head goes from float64 to bfloat16 in one step: half a unit of 8 bits at most.
    torch.testing.assert_close(
        half["score.weight"].float(), full["score.weight"], rtol=2**-8, atol=0
    )


def test_rankings_that_bfloat16_flips_are_counted_over_pairs_and_labels(tmp_path):
    opened = opened_model()
    half = export_model(opened, out=tmp_path / "half", dtype="bfloat16", pairs=pairs(40))
    checked = half.verification
    assert checked.num_margins == 40 * len(RULES)
    # The same count by hand: margins in memory against margins of the folder as it is read.
    encoded = opened.tokenizer.encode_pairs(pairs(40))
    sequences = [one.token_ids for pair in encoded for one in (pair.chosen, pair.rejected)]
    ours = score_sequences(opened.model, sequences, pad_token_id=opened.tokenizer.pad_token_id)
    model = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "half", dtype=torch.bfloat16, trust_remote_code=False
    ).eval()
    with torch.inference_mode():
        theirs = np.stack(
            [model(torch.from_numpy(ids).long()[None]).logits[0].float() for ids in sequences]
        )
    ours, theirs = ours[::2] - ours[1::2], theirs[::2] - theirs[1::2]
    assert checked.num_flipped == (ours * theirs < 0).sum()
    assert checked.num_tied == (theirs == 0).sum()  # in memory none ties
    full = export_model(opened, out=tmp_path / "full", pairs=pairs(40)).verification
    assert (full.num_flipped, full.largest_flipped_margin) == (0, None)


def test_a_tie_is_no_flip_and_is_counted_apart(tmp_path):
    opened = opened_model()
    [encoded] = opened.tokenizer.encode_pairs(pairs(1))
    with torch.no_grad():  # next to nothing between the two beside a large score of both
        hidden = [open_state(opened, one.token_ids) for one in (encoded.chosen, encoded.rejected)]
        direction = hidden[0] - hidden[1]
        mean = hidden[0] + hidden[1]
        mean -= direction * (mean @ direction) / (direction @ direction)
        opened.model.heads.weight[:] = 30 * mean + 1e-4 * direction
    result = export_model(
        opened, out=tmp_path / "half", weights=WEIGHTS, dtype="bfloat16", pairs=pairs(1)
    )
    checked = result.verification
    # bfloat16 scores this large are whole units apart.
    assert max(checked.example_scores.values()) > 256
    assert (checked.num_flipped, checked.num_tied, checked.num_margins) == (0, 1, 1)
    assert not any("flips" in note for note in result.notes)
    assert any("makes or breaks 1 ties of 1" in note for note in result.notes)
    assert "1 of these pairs tie in one of the two" in (tmp_path / "half/README.md").read_text()


def open_state(opened, ids):
    from encore.model.layouts import lay_out

    batch = lay_out([ids], layout="packed", pad_token_id=0, is_causal=True)
    return opened.model.embed(batch)[0]


def test_large_models_are_written_in_shards_that_read_as_one(tmp_path):
    opened = opened_model()
    classifier = type(AutoModelForSequenceClassification.from_config(opened.model.trunk.config))
    tensors = classifier_tensors(
        opened.model, classifier, head_weight_KD=opened.model.heads.weight.detach()
    )
    write_tensors(tensors, tmp_path, dtype=torch.bfloat16, max_shard_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert set(index["weight_map"]) == set(tensors)
    assert set(index["weight_map"].values()) == set(files)
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name].bfloat16())


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path):
    opened = opened_model()
    export_model(opened, out=tmp_path / "export")
    export_model(opened, out=tmp_path / "export", weights=WEIGHTS)
    assert json.loads((tmp_path / "export" / "config.json").read_text())["id2label"] == {
        "0": "reward"
    }
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="something else in it than an export"):
        export_model(opened, out=tmp_path / "mine")
    with pytest.raises(InputError, match="a file of this name"):
        export_model(opened, out=tmp_path / "mine" / "notes.txt")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "mine"]


@pytest.mark.parametrize("name", ["results.csv", ".git/HEAD", "optimizer.safetensors"])
def test_what_somebody_put_beside_an_export_is_not_lost(tmp_path, name):
    opened = opened_model()
    folder = tmp_path / "export"
    export_model(opened, out=folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    with pytest.raises(InputError, match="beside the export there would be lost") as caught:
        export_model(opened, out=folder, weights=WEIGHTS)
    assert name.partition("/")[0] in str(caught.value)
    assert (folder / name).read_text() == "mine"


def test_a_link_stays_one_and_the_working_directory_is_not_replaced(tmp_path, monkeypatch):
    opened = opened_model()
    export_model(opened, out=tmp_path / "first")
    (tmp_path / "latest").symlink_to("first", target_is_directory=True)
    export_model(opened, out=tmp_path / "latest", weights=WEIGHTS)
    assert (tmp_path / "latest").is_symlink()
    about = json.loads((tmp_path / "first" / "encore_export.json").read_text())
    assert about["kind"] == "composed"
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for out in (".", "..", "../empty"):
        with pytest.raises(InputError, match="the working directory or one above it"):
            export_model(opened, out=Path(out))
    export_model(opened, out=Path("../empty/./new"))
    assert (tmp_path / "empty" / "new" / "README.md").read_text().count("# new\n") == 1


def encoder():
    opened = opened_model()
    model = tiny_model("bert", vocab_size=300)
    return dataclasses.replace(opened, model=model.eval())


def rounded():
    opened = opened_model()
    opened.model.trunk.bfloat16()
    return opened


def with_sigmoid_in_its_config():
    opened = opened_model()
    opened.model.trunk.config.sentence_transformers = {"activation_fn": "torch.nn.Sigmoid"}
    return opened


def with_a_bias():
    opened = opened_model()
    opened.model.heads.bias = torch.nn.Parameter(torch.ones(len(RULES)))
    return opened


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (encoder, "an encoder whose heads read the mean of the tokens; the classifier of 'bert'"),
        (with_sigmoid_in_its_config, r"asks for a sigmoid after the head \(sentence_transformers"),
        (with_a_bias, "have a bias, which transformers would drop"),
        (rounded, "opened in bfloat16; expected float32"),
    ],
)
def test_what_no_plain_classifier_can_say_is_refused_in_one_line(tmp_path, make, message):
    with pytest.raises(EncoreError, match=message) as caught:
        export_model(make(), out=tmp_path / "export")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ({"labels": ["other"], "mean": {"other": 0.5}}, r"labels .'other'., but config.json has"),
        ({"labels": None}, "does not describe this model"),
        ({"mean": []}, "does not describe this model"),
        ({"kind": "composed"}, "does not describe this model"),
    ],
)
def test_notes_of_another_model_are_refused(tmp_path, damaged, message):
    export_model(opened_model(), out=tmp_path / "heads")
    path = tmp_path / "heads" / "encore_export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damaged}))
    with pytest.raises(InputError, match=message):
        open_reward_model(tmp_path / "heads", device="cpu")


def test_a_composed_export_that_is_exported_again_keeps_its_story(tmp_path):
    metadata = {"evaluation": {"num_pairs": 9, "r2_by_head": {"be-kind": 0.125}}}
    composition = Composition(
        weights=WEIGHTS,
        scheme="encore",
        params={"tau": 2.0},
        entropies={"be-kind": 0.75},
        provenance={"judge": "big-judge", "uses_labels": True, "num_missing_shards": 2},
    )
    about = ExportAbout(composition=composition, licence="apache-2.0")
    opened = opened_model(metadata=metadata)
    export_model(opened, out=tmp_path / "first", weights=WEIGHTS, about=about)
    reopened = open_reward_model(tmp_path / "first", device="cpu", dtype="float32")
    # 0.5 x 0.25 + 0.3 x 0.5 + 0.2 x 0.75
    assert reopened.model.mean_R.tolist() == pytest.approx([0.425])
    again = export_model(reopened, out=tmp_path / "again", dtype="bfloat16")
    first, second = (
        json.loads((tmp_path / name / "encore_export.json").read_text())
        for name in ("first", "again")
    )
    kept = ("kind", "labels", "head_ids", "weights", "scheme", "params", "entropy_nats")
    kept += ("weights_provenance", "mean")
    assert {name: second[name] for name in kept} == {name: first[name] for name in kept}
    assert first["mean"] == dict(zip(RULES, MEANS, strict=True))
    assert second["mean_of_reward"] == pytest.approx(0.425)
    assert second["model_metadata"]["evaluation"] == metadata["evaluation"]
    assert "composed" not in second["model_metadata"]  # said once
    assert any("2 of 0 shards" in note for note in again.notes)
    assert any("no licence was stated" in note for note in again.notes)
    card = (tmp_path / "again" / "README.md").read_text()
    assert "| `be-kind` | 0.2500 | 0.5 | 0.7500 |" in card
    assert "| `be-kind` | 0.125 | – |" in card  # of each head before it was folded
    assert "| weights: judge | big-judge |" in card
    assert "license: apache-2.0" in (tmp_path / "first" / "README.md").read_text()

    export_model(reopened, out=tmp_path / "twice", weights={"reward": 2.0})
    about_twice = json.loads((tmp_path / "twice" / "encore_export.json").read_text())
    assert about_twice["weights"] == {rule: 2 * weight for rule, weight in WEIGHTS.items()}
    assert about_twice["params"] == {"tau": 2.0, "times": 2.0}
