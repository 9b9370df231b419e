"""The demo: from pairs to the paper's table, in `encore demo` and logged to MLflow."""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from encore.benchmarks.benchmark_config import BenchmarkConfig, PairsConfig, RowsConfig
from encore.benchmarks.benchmark_table import read_table, table_folders
from encore.cli import demo as command
from encore.data.rule_sets import load_rule_set
from encore.demo import BENCHMARK_DATA_PATH, BENCHMARK_PATH, DATA_PATHS, INITIAL_PAIRS_PATH
from encore.recipes.recipe import DemoConfig, load_recipe
from encore.training.run_folder import RESULT_FILE
from encore.training.training_config import GateConfig
from flows import demo as flow
from tests.tasks.tracking.mlflow_store import Logged

ROOT = Path(__file__).resolve().parents[2]
NUM_PAIRS = 8
HEADS = [rule.rule_id for rule in load_rule_set("encore-10").rules]
#: Of the paper's tables: what people see on the screen.
RULE_JUDGE = "rule judge, encore (τ 2)"
MODELS = ("initial model", "bradley-terry-model", "bradley-terry-model-initialised")
PAPER_ROWS = ("uniform", "random (mean of 3)", "encore (τ 2)", "top-5", "moe gate", *MODELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A demo that has ended: its study, and what it printed."""

    study: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The demo on a few pairs, two steps of training, two pairs of every subset."""
    folder = tmp_path_factory.mktemp("small")
    recipe = load_recipe("demo")
    few = {"max_steps": 2, "evaluate_every": 1, "checkpoint_every": 1, "batch_pairs": 2}
    label, path = next(iter(DATA_PATHS.items()))
    initial = _first_lines(INITIAL_PAIRS_PATH, to=folder, count=12)
    assert recipe.initial is not None
    changed = recipe.model_copy(
        update={
            "sources": (f"{label}={_first_lines(path, to=folder)}",),
            "initial": recipe.initial.model_copy(
                update={"sources": (f"synthetic-initial={initial}",)}
            ),
            "training": recipe.training.model_copy(update=few),
            "rows": tuple(
                row.model_copy(update={"training": row.training.model_copy(update=few)})
                if row.training
                else row
                for row in recipe.rows
            ),
            "gate": GateConfig(num_steps=2),
            "benchmark": _small_benchmark(folder),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "load_recipe", {"demo": changed}.__getitem__)
        yield


def shown(study: Path, run: Callable[[DemoConfig], None]) -> Shown:
    """Run a demo and keep what it prints."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        run(DemoConfig(study=study, backend="transformers"))
    return Shown(study=study, out=out.getvalue(), err=err.getvalue())


def in_this_process(config: DemoConfig) -> int:
    """What `flows.demo` does in another process."""
    command.demo(out=config.study, backend=config.backend)
    return 0


@pytest.fixture(scope="module")
def done(small: None, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A demo from its beginning to its end, where neither tracker nor orchestrator is installed."""
    with pytest.MonkeyPatch.context() as patch:
        for package in ("mlflow", "prefect"):
            patch.setitem(sys.modules, package, None)  # an import fails
        return shown(tmp_path_factory.mktemp("demo") / "study", in_this_process)


def _first_lines(path: Path, *, to: Path, count: int = NUM_PAIRS) -> Path:
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    few = to / path.name
    few.write_bytes(gzip.compress(b"".join(lines[:count])))
    return few


def _small_benchmark(folder: Path) -> BenchmarkConfig:
    """The first two of each subset's sixteen, and a definition that says so."""
    definition = folder / BENCHMARK_PATH.name
    text = BENCHMARK_PATH.read_text(encoding="utf-8")
    definition.write_text(text.replace("num_pairs = 16", "num_pairs = 2"), encoding="utf-8")
    lines = gzip.decompress(BENCHMARK_DATA_PATH.read_bytes()).splitlines(keepends=True)
    data = folder / BENCHMARK_DATA_PATH.name
    two_of_each = [line for place, line in enumerate(lines) if place % 16 < 2]
    data.write_bytes(gzip.compress(b"".join(two_of_each)))
    return BenchmarkConfig(
        pairs=PairsConfig(benchmark=str(definition), data=data),
        rows=RowsConfig(taus=(2.0, 5.0), num_random=5),
        paper="none",
    )


def test_the_demo_trains_heads_and_two_models_beside_them(done: Shown) -> None:
    heads = done.out[done.out.index("Heads on ") : done.out.index("Synthetic safety, %")]
    assert all(head in heads for head in HEADS)
    assert "R²" in heads
    assert done.out.count("synthetic data: read these figures as an example") == 2
    assert done.err.count("trained in") == 3
    assert len(list(done.study.glob(f"training/*/{RESULT_FILE}"))) == 3
    assert not (done.study / "mlflow.db").exists()


def test_the_demo_ends_with_the_papers_rows_on_a_narrow_screen_and_all_rows_in_a_file(
    done: Shown,
) -> None:
    assert "Synthetic safety, % of 10 pairs, SYNTHETIC" in done.out
    table = _table(done.out)
    assert max(map(len, table.splitlines())) <= 80
    first_column = " ".join(line.strip().partition("  ")[0] for line in table.splitlines())
    words = first_column.replace("- ", "-")  # names are wrapped at hyphens
    for row in (*PAPER_ROWS, RULE_JUDGE):
        assert row in words
    assert "single: " not in table  # a line for each rule, and other temperatures: in the file
    assert "encore (τ 5)" not in table
    [folder] = table_folders(done.study)
    names = [row.name for row in read_table(folder).rows_with_figures]
    assert {*PAPER_ROWS, RULE_JUDGE, f"single: {HEADS[0]}", "encore (τ 5)"} <= set(names)
    assert f"all {len(names)} rows" in done.err
    # Of the paper's temperatures the small table has 2 and 5.
    told = "10 pairs no two of uniform, encore (τ 2) and encore (τ 5) differ significantly"
    assert told in done.err
    # The model that training started from is among the rows, so the table says what training adds.
    markdown = (folder / "table.md").read_text(encoding="utf-8")
    assert "no row for the initial model" not in markdown
    [report] = done.study.glob("reports/*/report.html")
    assert report.is_file()


@pytest.fixture(scope="module")
def again(done: Shown, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """`make demo` on the same study, where whatever would take long is an error."""
    study = Path(shutil.copytree(done.study, tmp_path_factory.mktemp("again") / "study"))

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("done before")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://somewhere.else:5000")
        patch.setattr(flow, "run_demo", in_this_process)
        for work in (
            "encore.judges.transformers_model.TransformersJudge.start",
            "encore.training.train._fit_and_save",
            "encore.training.baselines.gating_network.fit_gate",
            "encore.export.write_export.export_model",
            "encore.scoring.scoring_run.score_encoded",
        ):
            patch.setattr(work, never)
        return shown(study, flow.main)


def test_what_the_demo_has_done_it_does_not_do_again(done: Shown, again: Shown) -> None:
    assert again.err.count("trained before: 2 steps") == 3
    assert "nothing was rated, trained or scored" in again.err
    # Only arithmetic is done anew, and comes out the same.
    before, now = _contents(done.study), _contents(again.study)
    assert {name for name, content in now.items() if before.get(name) != content} == set()
    assert before.keys() == now.keys()
    assert _table(again.out) == _table(done.out)


def test_make_demo_ends_as_its_command_does(tmp_path: Path) -> None:
    """The command itself is run, and its exit code passed on."""
    (tmp_path / "study").write_text("a file")
    with pytest.raises(SystemExit) as ended:
        flow.run_demo(DemoConfig(study=tmp_path / "study", backend="transformers"))
    assert ended.value.code == 1


def _table(text: str) -> str:
    return text[text.index("Synthetic safety, %") : text.rindex("synthetic data: ")]


def _contents(study: Path) -> dict[str, bytes]:
    """Every file but locks and the tracking store."""
    return {
        str(path.relative_to(study)): path.read_bytes()
        for path in study.rglob("*")
        if path.is_file() and not path.name.startswith(".")
        if not path.relative_to(study).parts[0].startswith("mlflow")
    }


def test_make_demo_logs_trainings_and_rows_in_the_study_and_says_how_to_look(again: Shown) -> None:
    uri = f"sqlite:///{again.study.resolve()}/mlflow.db"
    trainings = Logged(uri).runs().values()
    assert [run.info.status for run in trainings] == ["FINISHED"] * 3
    [heads] = [run for run in trainings if run.data.params["config.objective"] == "multi-head"]
    assert "**Synthetic: " in heads.data.tags["mlflow.note.content"]
    assert "mlflow ui --backend-store-uri 'sqlite:////" in again.err
    [experiment] = [
        one.name for one in Logged(uri).client.search_experiments() if "synthetic" in one.name
    ]
    rows = Logged(uri, experiment=experiment).runs()
    assert rows.pop("study").info.run_id in again.err
    [folder] = table_folders(again.study)
    assert set(rows) == {row.name for row in read_table(folder).rows_with_figures}
    assert all("synthetic" in run.data.tags["encore.synthetic"] for run in rows.values())
    assert rows["initial model"].data.params["model"] == "initial-reward-model"
    assert rows[RULE_JUDGE].data.params["kind"] == "judge"
