"""What flows have in common: runs named after study and stage, artifacts of each study."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH

from encore.analysis.check_options import CheckConfig
from encore.core.errors import CheckFailedError
from encore.data.ingest_options import IngestConfig
from encore.data.study_options import RatingsConfig
from encore.recipes.recipe import load_recipe
from encore.reports.report_options import ReportConfig
from flows.analyze import analyze
from flows.check import check
from flows.ingest import ingest
from flows.report import report
from flows.study_flow import run_name
from tasks.artifacts import artifact_key
from tests.flows.conftest import NUM_PAIRS, artifact, error_of
from tests.worlds.ratings import rule_names, table_of
from tests.worlds.studies import rules_of, write_rating_run
from tests.worlds.trainings import RULES, make_study, write_ratings

pytestmark = pytest.mark.services


def name_of(state: State[Any]) -> str:
    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(state.state_details.flow_run_id).name)


@pytest.mark.usefixtures("prefect_api")
def test_studies_of_the_same_name_have_different_artifacts(
    tmp_path: Path, pairs_file: Path
) -> None:
    studies = [tmp_path / parent / "My study" for parent in "ab"]
    for study in studies:
        config = IngestConfig(sources=(f"small={pairs_file}",), out=study)
        state = ingest(config, return_state=True)
        assert state.message == f"{NUM_PAIRS} pairs in {study}, 0 set aside"
        assert name_of(state) == "My study: ingest"
    keys = {artifact_key("pairs", study) for study in studies}
    assert len(keys) == 2
    assert all(key.startswith("pairs-my-study-") for key in keys)
    for study in studies:
        [row] = json.loads(artifact("pairs", study).data)
        assert (row["label"], row["kept"], row["status"]) == ("small", NUM_PAIRS, "new")


@pytest.mark.usefixtures("prefect_api")
def test_errors_are_stored_as_json_and_not_as_pickles(tmp_path: Path) -> None:
    storage = Path(PREFECT_RESULTS_LOCAL_STORAGE_PATH.value())
    before = {*storage.glob("*")}
    error_of(analyze(RatingsConfig(ratings=tmp_path / "nowhere"), return_state=True))
    kept = [path.read_text("utf-8") for path in {*storage.glob("*")} - before]
    assert kept
    assert all(json.loads(text) and "encore.core.errors.InputError" in text for text in kept)


@pytest.mark.usefixtures("prefect_api")
def test_ratings_are_analyzed_and_reported(tmp_path: Path) -> None:
    make_study(tmp_path / "study", num_pairs=8)
    write_ratings(tmp_path / "study", tmp_path / "ratings.parquet")
    ratings = tmp_path / "ratings.parquet"

    state = analyze(RatingsConfig(ratings=ratings), return_state=True)
    assert state.message == f"{len(RULES)} rules, {8 * 2 * len(RULES)} ratings"
    assert name_of(state) == "ratings.parquet: analyze"
    assert RULES[0] in artifact("rule-statistics", ratings).data

    written = report(ReportConfig(ratings=ratings, out=tmp_path / "page"), return_state=True)
    assert written.is_completed()
    page = tmp_path / "page" / "report.html"
    assert page.is_file()
    assert f"Page: `{page}`" in artifact("report", ratings).data

    nothing = shutil.copytree(tmp_path / "study", tmp_path / "unrated")
    assert str(nothing) in str(error_of(analyze(RatingsConfig(ratings=nothing), return_state=True)))


@pytest.mark.usefixtures("prefect_api")
def test_a_flow_run_fails_where_a_rule_is_not_above_the_floor(tmp_path: Path) -> None:
    is_win_PR = np.arange(100)[:, None] < np.array([95, 70])
    table = table_of(is_win_PR, ~is_win_PR)
    study = tmp_path / "study"
    write_rating_run(study, table, rules=rules_of(rule_names(2)))
    failed = check(CheckConfig(study=study, floor=0.8), return_state=True)
    assert isinstance(error_of(failed), CheckFailedError)
    rows = json.loads(artifact("check", study).data)
    assert [row["outcome"] for row in rows] == ["above", "below"]
    passed = check(CheckConfig(study=study, floor=0.8, rule=("1",)), return_state=True)
    assert passed.is_completed()
    assert passed.message == "1 rule passed"


def test_a_run_is_named_after_study_or_judge_stage_and_recipe(tmp_path: Path) -> None:
    study = tmp_path / "a" / ".." / "my-study"
    for stage, parameters, name in (
        ("rate", {"study": study, "config": {"out": "elsewhere"}}, "my-study: rate"),
        ("serve", {"config": {"judge": {"model": "org/my-judge"}}}, "my-judge: serve"),
        ("recipe", {"recipe": "demo", "study": study}, "my-study: recipe demo"),
        ("recipe", {"recipe": load_recipe("demo"), "study": study}, "my-study: recipe demo"),
    ):
        assert run_name(stage, parameters) == name
