"""Scoring a study: everything once, whole files, what is missing or damaged and nothing else."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from encore.data.ingestion import ingest
from encore.data.pairs import iter_pairs
from encore.data.study import create_study, open_study
from encore.errors import EncoreError, InputError
from encore.files import file_sha256
from encore.model.opening import OpenedModel, open_reward_model
from encore.scores.driver import ScoreResult, ScoringProgress
from encore.scores.folder import MANIFEST_FILE, read_manifest, score_status
from encore.scores.head_scores import read_head_scores
from encore.scores.run import OutOfDeviceMemoryError
from encore.scores.score import score_pairs, score_study
from encore.shards import digest_path, failure_path, run_key_of, shard_lock, shard_path
from encore.training.disk import NoRoomError
from tests.scores.conftest import NUM_PAIRS
from tests.scores.models import make_model
from tests.training.studies import RULES

SHARD_SIZE = 5
NUM_SHARDS = 5  # 5 + 5 + 5 + 5 + 2 pairs


def score(study: Path, model: Any, **settings: Any) -> ScoreResult:
    return score_study(study, model=model, **{"shard_size": SHARD_SIZE, **settings})


def digests(folder: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in sorted(folder.glob("shard-*"))}


def one_at_a_time(opened: OpenedModel, study: Path) -> dict[tuple[str, str], np.ndarray]:
    """Every response scored by itself, by (pair id, response)."""
    expected = {}
    for pair in iter_pairs(open_study(study)):
        [[chosen, rejected]] = score_pairs(opened, [pair], layout="single")
        expected |= {(pair.pair_id, "chosen"): chosen, (pair.pair_id, "rejected"): rejected}
    return expected


def test_every_response_has_the_score_that_it_has_alone(study, opened):
    result = score(study, opened)
    expected = one_at_a_time(opened, study)
    tables = [pq.read_table(path) for path in score_status(result.out).valid_paths]
    rows = [row for table in tables for row in table.to_pylist()]
    assert len(rows) == len(expected) == 2 * NUM_PAIRS
    for row in rows:
        found = [row[rule] for rule in RULES]
        assert found == pytest.approx(expected[row["pair_id"], row["response"]], abs=1e-5)
        assert row["source"] == "mine"
        assert row["subset"] is None


def test_the_result_says_what_is_there(study, opened, model):
    result = score(study, opened)
    assert result.is_complete
    assert result.out == study / "scores" / result.key
    assert result.head_ids == RULES
    assert result.num_pairs == NUM_PAIRS
    assert result.num_scores == NUM_PAIRS * 2 * len(RULES)
    assert (result.num_shards, result.num_reused) == (NUM_SHARDS, 0)
    assert result.padding_share == 0
    lengths = [
        len(one.token_ids)
        for pair in opened.tokenizer.encode_pairs(list(iter_pairs(open_study(study))))
        for one in (pair.chosen, pair.rejected)
    ]
    assert result.num_tokens == sum(lengths)
    assert result.notes == ()
    manifest = json.loads((result.out / "score.json").read_text())
    assert manifest["model"] == "model"
    assert manifest["identity"]["mean"] == [0.5, 0.25, 0.125]
    assert run_key_of(manifest["identity"]) == result.key
    assert str(study.parent) not in (result.out / "score.json").read_text()


def test_scoring_again_computes_nothing(study, opened, monkeypatch):
    first = score(study, opened)
    before = digests(first.out)
    monkeypatch.setattr(
        "encore.scores.run.score_encoded", lambda *_, **__: pytest.fail("computed again")
    )
    again = score(study, opened)
    assert again.num_reused == NUM_SHARDS
    assert (again.num_tokens, again.padding_share, again.tokens_per_second) == (0, None, None)
    assert again.num_scores == first.num_scores
    assert digests(first.out) == before


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "packed"},
        {"layout": "single"},
        {"layout": "sorted"},
        {"layout": "prefix-shared", "tokens_per_microbatch": 1},
        {"layout": "packed", "tokens_per_microbatch": 100},
    ],
    ids=str,
)
def test_how_it_is_computed_changes_neither_key_nor_scores(study, opened, tmp_path, settings):
    usual = score(study, opened, out=tmp_path / "usual")
    other = score(study, opened, out=tmp_path / "other", **settings)
    assert usual.key == other.key
    first, second = (read_head_scores(result.out) for result in (usual, other))
    np.testing.assert_allclose(first.score_P2R, second.score_P2R, atol=1e-5)


def damage_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_shards_of_another_scoring_are_not_taken_over_when_its_manifest_is_gone(
    study, opened, tmp_path
):
    out = score(study, opened, out=tmp_path / "scores").out
    kept = {path.name: path.read_bytes() for path in out.glob("shard-*")}
    (out / MANIFEST_FILE).unlink()
    with pytest.raises(InputError, match=r"a shard of .*, not of the scoring"):
        score(study, opened, out=out, limit=3)
    assert {path.name: path.read_bytes() for path in out.glob("shard-*")} == kept
    again = score(study, opened, out=out)
    assert again.num_reused == again.num_shards


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: damage_byte(shard_path(folder, 2)),
        lambda folder: shard_path(folder, 2).write_bytes(shard_path(folder, 2).read_bytes()[:100]),
        lambda folder: shard_path(folder, 2).unlink(),
        lambda folder: digest_path(folder, 2).unlink(),
        lambda folder: shard_path(folder, 1).replace(shard_path(folder, 2)),
    ],
    ids=["one bit", "cut short", "deleted", "no digest", "another shard's"],
)
def test_a_damaged_shard_is_scored_alone_and_comes_out_the_same(study, opened, damage):
    first = score(study, opened)
    before = digests(first.out)
    damage(first.out)
    assert not score_status(first.out).is_complete
    heard: list[ScoringProgress] = []
    again = score(study, opened, on_progress=heard.append)
    scored = [one.finished.index for one in heard if one.finished and one.finished.work.num_tokens]
    assert scored in ([2], [1, 2])  # 1 too where its file was moved away
    assert again.is_complete
    assert digests(first.out) == before


def test_another_model_other_data_and_another_plan_stand_beside(study, opened, tmp_path):
    keys = {score(study, opened).key}
    keys.add(score(study, opened, shard_size=7).key)
    keys.add(score(study, opened, limit=10).key)
    keys.add(score(study, open_reward_model(make_model(tmp_path / "other", seed=1))).key)
    (tmp_path / "more.jsonl").write_text(
        json.dumps({"prompt": "one", "chosen": "two", "rejected": "three"}) + "\n"
    )
    ingest([f"more={tmp_path / 'more.jsonl'}"], out=study)
    keys.add(score(study, opened).key)
    assert len(keys) == 5
    assert {path.name for path in (study / "scores").iterdir()} == keys


def test_a_renamed_model_has_the_same_scores(study, opened):
    renamed = dataclasses.replace(opened, name="another name")
    assert score(study, renamed).key == score(study, opened).key


def test_a_pilot_is_a_prefix_of_the_whole(study, opened):
    pilot, whole = score(study, opened, limit=7), score(study, opened)
    assert pilot.num_pairs == 7
    few, all_ = read_head_scores(pilot.out), read_head_scores(whole.out)
    assert few.pair_id_P.tolist() == all_.pair_id_P[:7].tolist() == sorted(few.pair_id_P)
    np.testing.assert_allclose(few.score_P2R, all_.score_P2R[:7], atol=1e-5)


def test_what_was_cut_is_counted_also_when_nothing_is_computed(study, model):
    opened = open_reward_model(model, max_length=16)
    lengths = [
        (one.num_cut > 0, one.num_cut)
        for pair in opened.tokenizer.encode_pairs(list(iter_pairs(open_study(study))))
        for one in (pair.chosen, pair.rejected)
    ]
    num_cut, num_tokens = (sum(values) for values in zip(*lengths, strict=True))
    expected = (
        f"{num_cut} of {2 * NUM_PAIRS} responses were too long and lost {num_tokens} tokens of "
        "their oldest text"
    )
    assert score(study, opened).notes == (expected,)
    assert score(study, opened).notes == (expected,)


def test_progress_ends_with_every_pair(study, opened):
    heard: list[ScoringProgress] = []
    result = score(study, opened, tokens_per_microbatch=60, on_progress=heard.append)
    done = [one.num_done for one in heard]
    assert done == sorted(done)
    assert done[-1] == heard[0].num_pairs == NUM_PAIRS
    assert len(done) > NUM_SHARDS  # within a shard too
    assert heard[-1].num_tokens == result.num_tokens
    assert heard[-1].tokens_per_second > 0


def test_marks_of_synthetic_data_and_models_are_kept(tmp_path):
    source = tmp_path / "pairs.jsonl"
    source.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    ingest([f"synthetic-x={source}"], out=tmp_path / "study")
    model = make_model(tmp_path / "model", synthetic=["judge of run 12"])
    result = score(tmp_path / "study", model)
    assert result.synthetic == ("source synthetic-x", "model: judge of run 12")


# --- what fails -----------------------------------------------------------------------------------


def refuse_one_pair(opened: OpenedModel, pair_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = opened.tokenizer.encode_pairs

    def refusing(pairs):
        if any(pair.pair_id == pair_id for pair in pairs):
            raise InputError(f"pair {pair_id}: the template refuses it")
        return encode(pairs)

    monkeypatch.setattr(opened.tokenizer, "encode_pairs", refusing)


def test_a_shard_that_fails_is_recorded_and_the_others_go_on(study, opened, monkeypatch):
    third_shard = sorted(pair.pair_id for pair in iter_pairs(open_study(study)))[12]
    with monkeypatch.context() as patch:
        refuse_one_pair(opened, third_shard, patch)
        result = score(study, opened)
    assert not result.is_complete
    assert list(result.failures) == [2]
    assert third_shard in result.failures[2]
    assert third_shard in failure_path(result.out, 2).read_text()
    assert result.num_scores == (NUM_PAIRS - SHARD_SIZE) * 2 * len(RULES)
    again = score(study, opened)
    assert again.is_complete
    assert again.num_reused == NUM_SHARDS - 1
    assert not failure_path(result.out, 2).exists()


def test_a_score_that_is_no_number_is_never_written(study, tmp_path):
    opened = open_reward_model(make_model(tmp_path / "broken"), device="cpu")
    with torch.no_grad():
        opened.model.heads.weight[1] = float("nan")
    result = score(study, opened)
    assert len(result.failures) == NUM_SHARDS
    assert "chosen response scores nan under head 'be-honest'" in result.failures[0]
    assert not list(result.out.glob("shard-*"))
    with pytest.raises(EncoreError, match="scores nan under head"):
        score_pairs(opened, list(iter_pairs(open_study(study))))


def test_a_full_disk_ends_it_in_one_line_and_keeps_what_is_done(study, opened, monkeypatch):
    from encore.scores import run

    put = run.put_shard

    def full(folder, shard, table, **settings):
        if shard.index == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(folder, shard, table, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(run, "put_shard", full)
        with pytest.raises(NoRoomError, match="finished shards are kept"):
            score(study, opened)
    assert score(study, opened).num_reused == 2


def test_a_device_without_enough_memory_ends_it_in_one_line(study, opened, monkeypatch):
    def too_much(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    monkeypatch.setattr("encore.scores.run.score_encoded", too_much)
    with pytest.raises(OutOfDeviceMemoryError, match="5000 tokens at a time; give fewer"):
        score(study, opened, tokens_per_microbatch=5000)


def test_ctrl_c_keeps_the_shards_that_are_done(study, opened):
    def interrupt(progress: ScoringProgress) -> None:
        if progress.finished and progress.finished.index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(study, opened, on_progress=interrupt)
    assert score(study, opened).num_reused == 2


def test_a_shard_that_another_process_scores_is_waited_for(study, opened, monkeypatch, caplog):
    first = score(study, opened)
    shard_path(first.out, 3).unlink()
    held = shard_lock(first.out, 3)
    assert held.__enter__()
    monkeypatch.setattr(
        "encore.scores.driver.time.sleep", lambda _: held.__exit__(None, None, None)
    )
    assert score(study, opened).is_complete
    assert "waiting for another process that scores shards 3" in caplog.text


def test_what_a_killed_process_left_is_swept(study, opened):
    first = score(study, opened)
    shard_path(first.out, 0).unlink()
    left = first.out / ".shard-00000.parquet.tmp-1-abc"
    left.write_bytes(b"half")
    score(study, opened)
    assert not left.exists()


def test_a_folder_with_something_else_is_refused(study, opened, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"other things in it \(notes.txt\)"):
        score(study, opened, out=tmp_path / "mine")
    rated = tmp_path / "rated"  # a run of ratings has locks and shards, too
    (rated / "locks").mkdir(parents=True)
    (rated / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"other things in it \(run.json\)"):
        score(study, opened, out=rated)
    assert not (rated / MANIFEST_FILE).exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="this is a file"):
        score(study, opened, out=tmp_path / "file")
    score(study, opened, out=tmp_path / "scores")
    with pytest.raises(InputError, match="another model, other data or another plan"):
        score(study, opened, out=tmp_path / "scores", limit=3)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.replace('"score_key": "', '"score_key": "f'),
        lambda content: content.replace("0.125", "0.25"),
        lambda content: content[:50],
        lambda content: "[]",
    ],
    ids=["key", "mean", "cut short", "a list"],
)
def test_a_damaged_manifest_is_named_and_can_be_written_again(study, opened, damage):
    result = score(study, opened)
    path = result.out / "score.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(EncoreError, match=r"score\.json: damaged.*delete that file"):
        score(study, opened)
    path.unlink()
    with pytest.raises(EncoreError, match=r"score\.json is missing"):
        read_manifest(result.out)
    assert score(study, opened).num_reused == NUM_SHARDS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "limit 0"),
        ({"shard_size": 0}, "shard_size 0"),
        ({"tokens_per_microbatch": 0}, "tokens_per_microbatch 0"),
    ],
)
def test_arguments_out_of_range_are_named(study, opened, settings, message):
    with pytest.raises(InputError, match=message):
        score(study, opened, **settings)


def test_a_study_without_pairs_is_refused(tmp_path, opened):
    create_study(tmp_path / "empty")
    with pytest.raises(InputError, match="it has no pairs"):
        score(tmp_path / "empty", opened)


def test_a_head_called_like_a_column_is_refused(study, tmp_path):
    model = make_model(tmp_path / "model", head_ids=("be-kind", "source"))
    with pytest.raises(InputError, match="head 'source'"):
        score(study, model)


def test_pairs_in_memory_score_as_on_disk(study, opened):
    scores = read_head_scores(score(study, opened).out)
    place = {pair_id: index for index, pair_id in enumerate(scores.pair_id_P)}
    pairs = list(iter_pairs(open_study(study)))
    heard: list[tuple[int, int]] = []
    found = score_pairs(opened, pairs, on_progress=lambda *done: heard.append(done))
    expected = scores.score_P2R[[place[pair.pair_id] for pair in pairs]]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert heard[-1] == (NUM_PAIRS, NUM_PAIRS)
    assert score_pairs(opened, []).shape == (0, 2, 3)
