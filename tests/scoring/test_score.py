"""Scoring a study: every response once, under every head, and nothing twice."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from encore.core.errors import EncoreError, EveryShardError, InputError
from encore.data.pairs import iter_pairs
from encore.data.records import RESPONSES
from encore.data.study import open_study
from encore.model.open_model import OpenedModel, open_reward_model
from encore.runs.shard_files import run_status
from encore.scoring import scoring_run
from encore.scoring.head_scores import ScoreManifest
from encore.scoring.scoring_options import ScoringConfig
from encore.scoring.scoring_run import score_manifest
from tests.scoring.conftest import NUM_PAIRS
from tests.worlds.scorings import make_model, score, score_pairs
from tests.worlds.studies import create_study, file_digests, shard_path
from tests.worlds.trainings import RULES

SHARD_SIZE = 5
NUM_SHARDS = 5  # 5 + 5 + 5 + 5 + 2 pairs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layout": "single"},
        {"layout": "prefix-shared", "tokens_per_microbatch": 1},
        {"layout": "packed", "tokens_per_microbatch": 100},
    ],
)
def test_every_response_has_the_score_that_it_has_alone_and_the_layout_changes_no_key(
    study, opened, settings
):
    result = score(study, opened, shard_size=SHARD_SIZE, **settings)
    pairs = list(iter_pairs(open_study(study)))
    expected = {}
    for pair in pairs:
        [score_2R] = score_pairs(opened, [pair], layout="single")
        expected |= {(pair.pair_id, name): score_2R[n] for n, name in enumerate(RESPONSES)}
    tables = [pq.read_table(path) for path in run_status(result.out, ScoreManifest).paths]
    rows = [row for table in tables for row in table.to_pylist()]
    assert len(rows) == len(expected) == 2 * NUM_PAIRS
    for row in rows:
        scores = [row[rule] for rule in RULES]
        assert scores == pytest.approx(expected[row["pair_id"], row["response"]], abs=1e-5)
        assert (row["source"], row["subset"]) == ("mine", None)

    assert result.is_complete
    assert result.num_tokens == sum(
        len(response.token_ids)
        for pair in opened.tokenizer.encode_pairs(pairs)
        for response in (pair.chosen, pair.rejected)
    )
    assert str(study.parent) not in (result.out / "score.json").read_text()
    assert score(study, opened, shard_size=SHARD_SIZE).key == result.key


def test_finished_shards_are_not_scored_again(study, opened, monkeypatch):
    first = score(study, opened, shard_size=SHARD_SIZE)
    before = file_digests(first.out, "shard-*")
    with monkeypatch.context() as patch:
        patch.setattr("encore.scoring.scoring_run.score_encoded", None)  # would fail if called
        second = score(study, opened, shard_size=SHARD_SIZE)
    assert (second.num_reused, second.num_scores) == (NUM_SHARDS, first.num_scores)
    assert (second.num_tokens, second.padding_share, second.tokens_per_second) == (0, None, None)
    shard_path(first.out, 2).unlink()
    assert score(study, opened, shard_size=SHARD_SIZE).num_reused == NUM_SHARDS - 1
    assert file_digests(first.out, "shard-*") == before


def test_cut_responses_are_counted_also_when_nothing_is_computed(study, model):
    opened = open_reward_model(model, max_length=16)
    num_cut_by_response = [
        response.num_cut
        for pair in opened.tokenizer.encode_pairs(list(iter_pairs(open_study(study))))
        for response in (pair.chosen, pair.rejected)
    ]
    num_cut = sum(num > 0 for num in num_cut_by_response)
    note = (
        f"{num_cut} of {2 * NUM_PAIRS} responses were too long and lost "
        f"{sum(num_cut_by_response)} tokens of their oldest text"
    )
    assert [score(study, opened).notes for _ in range(2)] == [(note,)] * 2


def test_every_ingredient_changes_the_key(opened, tmp_path):
    def manifest(model: OpenedModel, **plan: Any) -> ScoreManifest:
        settings = {name: plan.pop(name) for name in ("dtype",) if name in plan}
        return score_manifest(ScoringConfig(model="m", **settings), ScoringConfig, model, **plan)

    plan = {"data_sha256": "d", "num_pairs": NUM_PAIRS, "shard_size": SHARD_SIZE}
    key = manifest(opened, **plan).key
    other_mean = open_reward_model(make_model(tmp_path / "mean"))
    other_mean.model.mean_R[0] = 0.75
    other_heads = open_reward_model(make_model(tmp_path / "heads", head_ids=("a", "b", "c")))
    models_of_one_digest = [
        dataclasses.replace(model, digest=opened.digest) for model in (other_mean, other_heads)
    ]
    models = [dataclasses.replace(opened, digest="another"), *models_of_one_digest]
    keys = [manifest(model, **plan).key for model in models]
    plan_changes = ({"data_sha256": "e"}, {"num_pairs": 7}, {"shard_size": 7}, {"dtype": "float32"})
    keys += [manifest(opened, **plan | change).key for change in plan_changes]
    assert len({key, *keys}) == 1 + len(keys)
    assert manifest(dataclasses.replace(opened, name="another name"), **plan).key == key


# --- what fails -----------------------------------------------------------------------------------


def not_finite(_study, _opened):
    """Return an attribute under which a score of the third shard is not a number."""
    real, scored_NR = scoring_run.score_encoded, []

    def score_encoded(*arguments, **options):
        score_NR, counts = real(*arguments, **options)
        scored_NR.append(score_NR.copy())
        if len(scored_NR) == 3:
            scored_NR[2][4, 1] = np.nan  # a chosen response: two rows for each pair
        return scored_NR[-1], counts

    message = "chosen response scores nan under head 'be-honest'"
    return (scoring_run, "score_encoded", score_encoded), message


def refused(study, opened):
    """Return an attribute under which the template refuses a pair of the third shard."""
    refused_id = sorted(pair.pair_id for pair in iter_pairs(open_study(study)))[12]
    encode = opened.tokenizer.encode_pairs

    def encode_pairs(pairs):
        if any(pair.pair_id == refused_id for pair in pairs):
            raise InputError(f"pair {refused_id}: the template refuses it")
        return encode(pairs)

    return (opened.tokenizer, "encode_pairs", encode_pairs), refused_id


@pytest.mark.parametrize("failing", [not_finite, refused])
def test_a_failed_shard_is_recorded_and_not_written_and_the_others_are_scored(
    study, opened, monkeypatch, failing
):
    attribute, message = failing(study, opened)
    with monkeypatch.context() as patch:
        patch.setattr(*attribute)
        result = score(study, opened, shard_size=SHARD_SIZE)
    assert (result.is_complete, list(result.failures)) == (False, [2])
    assert message in result.failures[2]
    assert not [*result.out.glob("shard-00002*")]
    assert result.num_scores == (NUM_PAIRS - SHARD_SIZE) * 2 * len(RULES)
    second = score(study, opened, shard_size=SHARD_SIZE)
    assert (second.is_complete, second.num_reused) == (True, NUM_SHARDS - 1)


def test_an_error_of_the_device_ends_the_scoring(study, opened, monkeypatch):
    for error, message in (
        (torch.OutOfMemoryError("3 GiB"), "3 GiB; give fewer --tokens-per-microbatch"),
        (RuntimeError("the device fell off the bus"), "fell off the bus; finished shards are kept"),
    ):
        broken = Mock(side_effect=error)
        monkeypatch.setattr("encore.scoring.scoring_run.score_encoded", broken)
        with pytest.raises(EveryShardError, match=message):
            score(study, opened)


def test_wrong_models_studies_and_folders_are_refused(study, opened, tmp_path):
    score(study, opened, out=tmp_path / "scores")
    with pytest.raises(InputError, match="another model, other data or another plan"):
        score(study, opened, out=tmp_path / "scores", limit=3)
    path = tmp_path / "scores" / ScoreManifest.FILE
    path.write_text(path.read_text().replace("0.125", "0.25"))
    with pytest.raises(EncoreError, match=r"score\.json is damaged.*delete that file"):
        score(study, opened, out=tmp_path / "scores")
    with pytest.raises(InputError, match="has no pairs"):
        score(create_study(tmp_path / "empty").path, opened)
    model = make_model(tmp_path / "model", head_ids=("be-kind", "source"))
    with pytest.raises(InputError, match="head 'source'"):
        score(study, model)
