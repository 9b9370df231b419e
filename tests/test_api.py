"""`import encore` offers the stages as functions."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pytest
from pyarrow import csv

import encore
from encore.core.extras import pip_source
from encore.rating.rating_run import RatingRun
from tests.golden.command_line import run_process
from tests.worlds.studies import numbered_pairs, rate_study, study_of, write_rules

#: Functions that need a model, a server or benchmark tables: they have no example that runs.
WITHOUT_EXAMPLE = {
    *("benchmark", "compare", "export", "gate", "judge", "plan", "rate", "read_head_scores"),
    *("open_reward_model", "score", "train", "guard", "compare_models", "corrected_rates"),
}
STAGES = "ingest rate analyze weights train score export benchmark judge sql report gate show plan"


@pytest.fixture
def rated_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RatingRun:
    """Make a study of 40 pairs with the ratings of three rules, also as a CSV file; go there."""
    monkeypatch.chdir(tmp_path)
    rules = write_rules(tmp_path / "rules.toml", ["Avoid harm", "Be kind", "Privacy"])
    run = rate_study(study_of(numbered_pairs(40), tmp_path / "study"), rules=str(rules))
    table = encore.sql("study", "select pair_id, source, response, rule_id, rating from ratings")
    csv.write_csv(table, "ratings.csv")
    return run


def test_every_public_name_can_be_loaded_and_has_a_docstring():
    for name in encore.__all__:
        assert getattr(encore, name).__doc__
    with pytest.raises(AttributeError, match="no_such_thing"):
        encore.no_such_thing  # noqa: B018 - the access is what is tested
    assert {*STAGES.split(), "compare", "publish", "status", "theory"} <= {*dir(encore)}
    assert "import_module" not in dir(encore)


def test_a_function_without_its_extra_names_it():
    code = "import sys, encore; sys.modules['torch'] = None; encore.train"
    assert run_process(sys.executable, "-c", code).err.splitlines()[-1] == (
        "ImportError: encore.train needs torch, which is not installed here: "
        f"pip install {pip_source('train')}"
    )


@pytest.mark.services
def test_the_examples_of_public_functions_run(rated_study):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    functions = {name: getattr(encore, name) for name in encore.__all__ if name[0].islower()}
    without = set()
    for name, function in functions.items():
        (example,) = doctest.DocTestFinder(recurse=False).find(function, name)
        example.globs = dict(vars(sys.modules[function.__module__]))
        without |= set() if example.examples else {name}
        runner.run(example)
    assert runner.summarize(verbose=False).failed == 0
    assert without == WITHOUT_EXAMPLE


@pytest.mark.services
def test_the_page_on_python_runs_as_it_says(rated_study):
    page = Path(__file__).parents[1] / "docs" / "python.md"
    outcome = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0
    assert outcome.attempted > 10


@pytest.mark.services
def test_a_report_is_written_as_a_page_alone(rated_study):
    written = encore.report("ratings.csv", "page/rules.html")
    assert written.page == Path("page/rules.html")
    assert [path.name for path in Path("page").iterdir()] == ["rules.html"]
    with pytest.raises(encore.EncoreError, match="nowhere"):
        encore.export("nowhere", out="exported")


def test_strings_are_paths(rated_study):
    run_key = rated_study.manifest.run_key
    assert encore.status("study")[0].manifest.run_key == run_key
    assert encore.open_study("study").labels == ("mine",)
    assert encore.publish("study", "out.duckdb").path == Path("out.duckdb")
    with pytest.raises(encore.EncoreError, match="study"):
        encore.read_head_scores("study")
    with pytest.raises(encore.EncoreError, match="no benchmark table"):
        encore.compare(["study"])
    assert encore.sql("study", "select 1 as one where false").schema.names == ["one"]
