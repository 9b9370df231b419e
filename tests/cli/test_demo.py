"""The demo makes the paper's table from pairs, in `encore demo --full` and logged to MLflow."""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import pytest

from encore.benchmarks.benchmark_table import read_table, table_folders
from encore.cli import demo as command
from encore.data.rule_sets import load_rule_set
from encore.demo import (
    BENCHMARK_DATA_PATH,
    BENCHMARK_PATH,
    DATA_PATHS,
    INITIAL_PAIRS_PATH,
    RULES_PATH,
)
from encore.recipes import recipe
from encore.recipes.recipe import DemoConfig
from encore.training.run_folder import RESULT_FILE
from flows import demo as flow
from tests.tasks.tracking.mlflow_store import Logged
from tests.worlds.studies import file_contents

pytestmark = pytest.mark.services

ROOT = Path(__file__).resolve().parents[2]
NUM_PAIRS = 8
HEADS = [rule.rule_id for rule in load_rule_set(RULES_PATH).rules]
#: Rows of the paper's tables that the screen shows.
RULE_JUDGE = "rule judge, encore (τ 2)"
MODELS = ("initial model", "bradley-terry-model", "bradley-terry-model-initialised")
SCHEME_ROWS = ("uniform", "random (mean of 3)", "encore (τ 2)", "top-5", "consensus (τ 2)")
PAPER_ROWS = (*SCHEME_ROWS, "moe gate", *MODELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """A finished demo: its study and its output."""

    study: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the demo small: a few pairs, two steps of training, two pairs of every subset."""
    folder = tmp_path_factory.mktemp("small")
    _write_some_lines(DATA_PATHS["synthetic-hh"], folder, lambda index: index < NUM_PAIRS)
    _write_some_lines(INITIAL_PAIRS_PATH, folder, lambda index: index < 12)
    _write_some_lines(BENCHMARK_DATA_PATH, folder, lambda index: index % 16 < 2)  # of each subset
    definition = BENCHMARK_PATH.read_text(encoding="utf-8")
    (folder / BENCHMARK_PATH.name).write_text(definition.replace("num_pairs = 16", "num_pairs = 2"))
    text = Path(recipe.__file__).with_name("demo.toml").read_text(encoding="utf-8")
    for old, new in {
        '    "synthetic-pku={encore}/demo/data/pku-like.jsonl.gz",\n': "",
        "{encore}/demo/data": str(folder),
        "batch_pairs = 16": "batch_pairs = 2\nmax_steps = 2\ncheckpoint_every = 1",
        "evaluate_every = 27": "evaluate_every = 1",
        "num_steps = 200, hidden_size = 256": "num_steps = 2",
        "rows.labels = 20": "rows.labels = 20\nrows.taus = [2.0, 5.0]\nrows.num_random = 5",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "demo.toml").write_text(text, encoding="utf-8")
    changed = recipe.load_recipe(folder / "demo.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "load_recipe", {"demo": changed}.__getitem__)
        yield


def run_demo(study: Path, run: Callable[[DemoConfig], None]) -> DemoRun:
    """Run a demo and keep its output."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        run(DemoConfig(study=study, backend="transformers"))
    return DemoRun(study=study, out=out.getvalue(), err=err.getvalue())


def in_this_process(config: DemoConfig) -> int:
    """Run the command in this process; `flows.demo` runs it in another one."""
    command.demo(study=config.study, backend=config.backend, full=True)
    return 0


@pytest.fixture(scope="module")
def first_run(small: None, tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """Run the whole demo without MLflow and Prefect installed."""
    with pytest.MonkeyPatch.context() as patch:
        for package in ("mlflow", "prefect"):
            patch.setitem(sys.modules, package, None)  # an import fails
        return run_demo(tmp_path_factory.mktemp("demo") / "study", in_this_process)


def _write_some_lines(path: Path, folder: Path, is_kept: Callable[[int], bool]) -> None:
    """Write some lines of a gzip file, by their index, to a file of the same name."""
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    kept = [line for index, line in enumerate(lines) if is_kept(index)]
    (folder / path.name).write_bytes(gzip.compress(b"".join(kept)))


def test_the_demo_trains_heads_and_two_models_beside_them(first_run):
    heads_table = first_run.out.partition("Synthetic safety, %")[0].partition("Heads on ")[2]
    assert all(head in heads_table for head in HEADS)
    assert "R²" in heads_table
    assert first_run.out.count("synthetic data: read these figures as an example") == 2
    assert first_run.err.count("trained in") == 3
    assert len(list(first_run.study.glob(f"training/*/{RESULT_FILE}"))) == 3
    assert not (first_run.study / "mlflow.db").exists()


def test_the_demo_prints_the_papers_rows_at_80_columns_and_writes_all(first_run):
    assert "Synthetic safety, % of 10 pairs, SYNTHETIC" in first_run.out
    table = _table(first_run.out)
    assert max(map(len, table.splitlines())) <= 80
    first_column = " ".join(line.strip().partition("  ")[0] for line in table.splitlines())
    row_names = first_column.replace("- ", "-")  # names are wrapped at hyphens
    for row in (*PAPER_ROWS, RULE_JUDGE):
        assert row in row_names
    assert "single: " not in table  # the file alone has rows of single rules and temperatures
    assert "encore (τ 5)" not in table
    [folder] = table_folders(first_run.study)
    names = [row.name for row in read_table(folder).rows_with_figures]
    assert {*PAPER_ROWS, RULE_JUDGE, f"single: {HEADS[0]}", "encore (τ 5)"} <= set(names)
    assert f"all {len(names)} rows" in first_run.err
    # Of the paper's temperatures the small table has 2 and 5.
    comparison = "10 pairs no two of uniform, encore (τ 2), consensus (τ 2) and shrunk (20 labels)"
    assert comparison in " ".join(first_run.err.split())
    # The rows include the model that training started from, so the table shows what training adds.
    markdown = (folder / "table.md").read_text(encoding="utf-8")
    assert "no row for the initial model" not in markdown
    [report] = first_run.study.glob("reports/*/report.html")
    assert report.is_file()


@pytest.fixture(scope="module")
def second_run(first_run: DemoRun, tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """Run `make demo` on the same study, where every long stage is an error."""
    study = Path(shutil.copytree(first_run.study, tmp_path_factory.mktemp("again") / "study"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://somewhere.else:5000")
        patch.setattr(flow, "run_demo", in_this_process)
        for stage in (
            "encore.judges.transformers_model.TransformersJudge.start",
            "encore.training.train._fit_and_save",
            "encore.training.baselines.gating_network.fit_gate",
            "encore.exports.write_export.export_model",
            "encore.scoring.scoring_run.score_encoded",
        ):
            patch.setattr(stage, Mock(side_effect=AssertionError("the first run did this")))
        return run_demo(study, flow.main)


def test_a_second_demo_repeats_no_finished_stage(first_run, second_run):
    assert second_run.err.count("trained before: 2 steps") == 3
    assert "nothing was rated, trained or scored" in second_run.err
    # Only arithmetic is repeated, with the same result.
    assert _contents(second_run.study) == _contents(first_run.study)
    assert _table(second_run.out) == _table(first_run.out)


def test_make_demo_ends_with_the_exit_code_of_its_command(tmp_path):
    (tmp_path / "study").write_text("a file")
    with pytest.raises(SystemExit) as exit_error:
        flow.run_demo(DemoConfig(study=tmp_path / "study", backend="transformers"))
    assert exit_error.value.code == 1


def _table(text: str) -> str:
    return text[text.index("Synthetic safety, %") : text.rindex("synthetic data: ")]


def _contents(study: Path) -> dict[str, bytes]:
    """Return the content of every file except locks and the tracking store."""
    left_out = re.compile(r"(^|/)\.[^/]*$|^mlflow").search
    return {name: file for name, file in file_contents(study).items() if not left_out(name)}


def test_make_demo_logs_trainings_and_rows_and_says_how_to_see_them(second_run):
    uri = f"sqlite:///{second_run.study.resolve()}/mlflow.db"
    trainings = Logged(uri).runs().values()
    assert [run.info.status for run in trainings] == ["FINISHED"] * 3
    [heads] = [run for run in trainings if run.data.params["config.objective"] == "multi-head"]
    assert "**Synthetic: " in heads.data.tags["mlflow.note.content"]
    assert "mlflow ui --backend-store-uri 'sqlite:////" in " ".join(second_run.err.split())
    [name] = [
        experiment.name
        for experiment in Logged(uri).client.search_experiments()
        if "synthetic" in experiment.name
    ]
    rows = Logged(uri, experiment=name).runs()
    assert rows.pop("study").info.run_id in second_run.err
    [folder] = table_folders(second_run.study)
    assert set(rows) == {row.name for row in read_table(folder).rows_with_figures}
    assert all("synthetic" in run.data.tags["encore.synthetic"] for run in rows.values())
    assert rows["initial model"].data.params["model"] == "initial-reward-model"
    assert rows[RULE_JUDGE].data.params["kind"] == "judge"
