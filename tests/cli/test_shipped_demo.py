"""`encore demo` shows shipped ratings, which are those that the demo's judge gives."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from encore.data.rating_runs import run_status
from encore.demo import JUDGE_PATH, RATINGS_PATH
from encore.rating.rating_run import open_run
from encore.recipes.recipe import load_recipe
from encore.recipes.shipped_demo import make_demo_study
from encore.warehouse import open_ratings
from tests.worlds.studies import file_contents, numbered_pairs, study_of


def test_the_shipped_run_is_the_one_that_the_recipe_makes(tmp_path):
    study, run_dir = make_demo_study(tmp_path / "study")
    assert open_run(study, load_recipe("demo").rating).run_dir == run_dir
    status = run_status(run_dir)
    # 500 pairs, two responses, nine rules; one rule often does not apply
    answers = status.total("num_ratings") + status.total("num_not_applicable")
    assert (status.is_complete, answers, status.total("num_nulls")) == (True, 500 * 2 * 9, 0)
    assert open_ratings(study).synthetic  # so every table and page says so
    assert sum(map(len, file_contents(RATINGS_PATH).values())) < 300_000


@pytest.mark.full  # a minute or two of a real engine
@pytest.mark.timeout(3600)
def test_the_shipped_ratings_are_those_that_the_engine_gives(tmp_path):
    from examples.demo_judge.rate_pairs import write_ratings

    write_ratings(tmp_path)
    # The files themselves differ in the versions that they were made with.
    rated, shipped = (
        {path.name.partition(".")[0]: pq.read_table(path) for path in folder.rglob("shard-*")}
        for folder in (tmp_path, RATINGS_PATH)
    )
    assert rated == shipped
    assert len(rated) == 9  # shards of 60 pairs


@pytest.mark.services
def test_a_second_demo_repairs_a_cut_off_copy_and_changes_nothing(encore, tmp_path):
    study = tmp_path / "study"
    finished = encore("demo", study)
    assert finished.code == 0, finished.err
    assert "synthetic data: read these figures as an example" in finished.out
    [page] = study.glob("reports/*/report.html")
    assert str(page) in finished.err
    before = file_contents(study)
    next(study.glob("ratings/*/shard-00003.*")).write_bytes(b"cut off")
    assert encore("demo", study).code == 0
    assert file_contents(study) == before


@pytest.mark.services
def test_pairs_of_ones_own_that_the_demos_judge_rates_are_said_to_be_no_evidence(encore, tmp_path):
    study = study_of(numbered_pairs(2), tmp_path / "study")
    finished = encore("rate", study, "--judge", JUDGE_PATH, "--backend", "transformers")
    assert finished.code == 0, finished.err
    assert "synthetic: judge of run " in finished.err


def test_the_demo_refuses_a_study_with_other_pairs(encore, study):
    before = file_contents(study)
    finished = encore("demo", study)
    assert finished.code == 1
    assert "encore demo NEW_FOLDER" in finished.err
    assert file_contents(study) == before
    assert encore("demo", "--backend", "vllm").code == 2
    assert encore("demo", "--rate-all").code == 2


def test_an_engine_rates_what_is_left_out_of_the_shipped_run(tmp_path):
    _, run_dir = make_demo_study(tmp_path / "study", num_shards_left_out=1)
    status = run_status(run_dir)
    assert [state.index for state in status.unfinished] == [0]
    make_demo_study(tmp_path / "study")
    assert run_status(run_dir).is_complete
