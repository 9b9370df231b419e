"""The flow `pipeline`: from a file of pairs to weights, and again only what is not done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.artifacts import Artifact

from encore.config import RatingConfig
from encore.data.study import open_study
from encore.errors import InputError
from encore.shards import choose_run, shard_path
from encore.weighting.vector import WeightVector
from encore.weighting.weigh import weights
from flows.pipeline import pipeline

pytestmark = pytest.mark.usefixtures("prefect_api")

RatingOf = Callable[..., RatingConfig]


def test_pairs_in_weights_out(tmp_path: Path, pairs_file: Path, rating: RatingOf) -> None:
    study = tmp_path / "study"

    state = pipeline([f"small={pairs_file}"], study, rating(), tau=0.5, return_state=True)

    assert state.message == "3 rated, 0 reused, 0 failed"
    vector = state.result()
    assert isinstance(vector, WeightVector)
    assert vector == weights(study, scheme="encore", tau=0.5)
    for key in ("rating-progress", "failed-shards", "rule-statistics", "rule-weights"):
        assert Artifact.get(key) is not None


def test_running_again_does_only_what_is_not_done(
    tmp_path: Path, pairs_file: Path, rating: RatingOf
) -> None:
    study = tmp_path / "study"
    sources = [f"small={pairs_file}"]
    first = pipeline(sources, study, rating(), return_state=True)
    pairs_written = (study / "pairs" / "small.parquet").stat().st_mtime_ns
    run_dir = choose_run(open_study(study).ratings_dir, None)
    shard_path(run_dir, 1).unlink()

    again = pipeline(sources, study, rating(), return_state=True)

    assert again.message == "1 rated, 2 reused, 0 failed"
    assert (study / "pairs" / "small.parquet").stat().st_mtime_ns == pairs_written
    assert again.result() == first.result()


def test_any_scheme_can_weigh(tmp_path: Path, pairs_file: Path, rating: RatingOf) -> None:
    study = tmp_path / "study"

    state = pipeline(
        [f"small={pairs_file}"], study, rating(), scheme="top-k", k=2, return_state=True
    )

    vector = state.result()
    assert vector == weights(study, scheme="top-k", k=2)
    assert sum(weight > 0 for weight in vector.weights) == 2


def test_an_unknown_scheme_is_refused_before_anything_is_rated(
    tmp_path: Path, pairs_file: Path, rating: RatingOf
) -> None:
    study = tmp_path / "study"

    state = pipeline([f"small={pairs_file}"], study, rating(), scheme="best", return_state=True)

    assert "weighting scheme 'best'" in str(state.result(raise_on_failure=False))
    assert not study.exists()


def test_a_bad_source_fails_the_run_and_leaves_no_study(tmp_path: Path, rating: RatingOf) -> None:
    missing = tmp_path / "missing.jsonl"

    state = pipeline([str(missing)], tmp_path / "study", rating(), return_state=True)

    assert state.is_failed()
    error = state.result(raise_on_failure=False)
    assert isinstance(error, InputError)
    assert "missing.jsonl" in str(error)
    assert not (tmp_path / "study").exists()
