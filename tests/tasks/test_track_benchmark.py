"""What of a benchmark table is in a real MLflow store: rows as runs, aliases, reruns, crashes."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE

from encore.benchmarks.compare import compare_tables, read_studies
from encore.benchmarks.models import ModelBehind
from encore.benchmarks.paper_tables import paper_tables
from encore.benchmarks.results import read_pair_results
from encore.benchmarks.rows import TableRow, compared, credit_row
from encore.benchmarks.run import BenchmarkRun
from encore.benchmarks.scoring import ScoredBenchmark
from encore.benchmarks.table import TableLine
from encore.weighting.opening import open_evidence
from tasks.evaluation_words import scheme_of
from tasks.model_registry import register_candidate
from tasks.track import MlflowStore, TrackingUnavailableError
from tasks.track_benchmark import TrackedTable, answering, track_table
from tests.benchmarks.stored_world import every_row, model_row, real_pairs, write_run
from tests.benchmarks.table_world import RULES, random_margins, scores_of, training_ratings
from tests.tasks.mlflow_store import Logged, MlflowClient, Run
from tests.training.studies import make_study

PAIRS = real_pairs()


@pytest.fixture(scope="module")
def rows() -> tuple[TableRow, ...]:
    return every_row(PAIRS)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path / "study", num_pairs=4)


@pytest.fixture
def run(study: Path, rows: Sequence[TableRow]) -> BenchmarkRun:
    return write_run(study, rows, pairs=PAIRS, synthetic=["model made (made up)"])


def track(run: BenchmarkRun, study: Path, uri: str, **more: Any) -> TrackedTable:
    return track_table(run, study=study, uri=uri, **more)


def parents_and_rows(uri: str, experiment: str) -> tuple[list[Run], list[Run]]:
    runs = Logged(uri, experiment=experiment).runs()
    kinds = ("study", "evaluation")
    found = [[one for one in runs if one.data.tags["encore.kind"] == kind] for kind in kinds]
    return found[0], found[1]


def parent_and_rows(uri: str, experiment: str) -> tuple[Run, dict[str, Run]]:
    [parent], children = parents_and_rows(uri, experiment)
    by_name = {one.data.params["row"]: one for one in children}
    assert len(by_name) == len(children), "a row is logged twice"
    return parent, by_name


def assert_all_is_logged(run: BenchmarkRun, tracked: TrackedTable, uri: str) -> None:
    parent, found = parent_and_rows(uri, tracked.experiment)
    names = [line.name for line in run.table.lines if line.row is not None]
    assert set(found) == set(names)
    client = MlflowClient(uri)
    for one in (parent, *found.values()):
        assert one.info.status == "FINISHED"
    for one in found.values():
        assert one.data.tags["mlflow.parentRunId"] == parent.info.run_id
        for metric in one.data.metrics:
            assert len(client.get_metric_history(one.info.run_id, metric)) == 1, metric
        files = {file.path for file in client.list_artifacts(one.info.run_id)}
        assert files >= {"results.parquet", "row.json"}


def test_every_row_is_a_run_within_the_studys_run(run, study, store_uri):
    page = "http://127.0.0.1:4200/runs/flow-run/1234"
    about = {"encore.prefect_flow_run": "1234", "encore.prefect_page": page}
    tracked = track(run, study, store_uri, about=about)
    assert_all_is_logged(run, tracked, store_uri)
    assert tracked.experiment == f"encore-made-up-1-{PAIRS.digest[:8]}"
    assert tracked.num_new == len(tracked.run_ids)
    parent, found = parent_and_rows(store_uri, tracked.experiment)
    assert parent.info.run_name == "study"
    assert found["top-4"].info.run_name == "top-4"
    tags = found["encore (τ 2)"].data.tags
    assert (tags["encore.prefect_flow_run"], tags["encore.prefect_page"]) == ("1234", page)
    for one in (parent, found["top-4"]):
        assert f"[Prefect flow run]({page})" in one.data.tags["mlflow.note.content"]
    assert tags["encore.synthetic"] == "model made (made up)"
    assert (tags["encore.row_kind"], tags["encore.scheme"]) == ("scheme", "encore")
    assert tags["encore.pairs_sha256"] == PAIRS.digest
    assert tags["encore.partial"] == "no"


def keys_of(runs: Iterable[Run], kind: str) -> set[frozenset[str]]:
    return {frozenset(getattr(one.data, kind)) for one in runs}


def test_all_rows_have_the_same_parameters_and_metrics(run, study, store_uri):
    tracked = track(run, study, store_uri)
    _, found = parent_and_rows(store_uri, tracked.experiment)
    for kind in ("params", "metrics"):
        assert len(keys_of(found.values(), kind)) == 1, kind
    # The compare page takes a parameter for a number only if all its values are, NaN among them.
    taus = {name: float(one.data.params["tau"]) for name, one in found.items()}
    assert {tau for tau in taus.values() if not math.isnan(tau)} == {0.5, 2.0}
    assert taus["encore (τ 2)"] == 2
    assert math.isnan(taus["uniform"])
    assert float(found["top-4"].data.params["k"]) == 4
    schemes = {one.data.params["scheme"] for one in found.values()}
    assert schemes == {"uniform", "encore", "single", "random", "top-k", "none"}


def test_a_study_of_other_rules_and_a_judge_have_the_same_names(
    run, study, store_uri, rows, tmp_path
):
    tracked = track(run, study, store_uri)
    judge = credit_row("judge", np.full(50, 0.5), pairs=PAIRS)
    judge = replace(judge, params={"order": "both"}, judge="org/judge", scheme="encore")
    mean = next(row for row in rows if row.name == "random (5 draws)")
    assert scheme_of(replace(mean, name="theirs: random (5 draws)")) == "random"
    other = make_study(tmp_path / "other", num_pairs=5)
    assert track(write_run(other, [judge], pairs=PAIRS), other, store_uri).num_new == 1
    _, found = parents_and_rows(store_uri, tracked.experiment)
    assert len(found) == len(rows) + 1
    of_judge = next(one.data.params for one in found if one.data.params["row"] == "judge")
    assert (of_judge["model"], of_judge["scheme"]) == ("org/judge", "encore")
    for kind in ("params", "metrics"):
        assert len(keys_of(found, kind)) == 1, kind


def test_metrics_are_the_figures_that_compare_prints(run, study, store_uri):
    tracked = track(run, study, store_uri)
    _, found = parent_and_rows(store_uri, tracked.experiment)
    [shown] = compare_tables(read_studies([study]))
    printed = {one["name"]: one for one in shown.as_dict()["rows"]}
    assert set(printed) == set(found)
    for name, one in printed.items():
        metrics = found[name].data.metrics
        for figure, its_name in {"Safety": "safety", "refuse": "subset/refuse"}.items():
            its = one["figures"][figure]
            logged = [metrics[its_name + end] for end in ("", "_ci_low", "_ci_high")]
            assert logged == [its["score"], its["ci_low"], its["ci_high"]]
        assert metrics["num_units"] == one["figures"]["Safety"]["num_pairs"]
        its = one["comparison"]
        if name == "uniform":  # the reference, which differs from itself by 0
            assert its is None
            assert (metrics["difference"], metrics["mcnemar_p"]) == (0, 1)
            continue
        assert metrics["difference"] == its["difference"]
        assert metrics["difference_ci_low"] == its["ci_low"]
        assert metrics["difference_ci_high"] == its["ci_high"]
        assert metrics["num_only_this"] == its["num_only_first"]
        assert metrics["num_only_reference"] == its["num_only_second"]
        if its["mcnemar_p"] is None:
            assert math.isnan(metrics["mcnemar_p"])
        else:
            assert metrics["mcnemar_p"] == its["mcnemar_p"]


def test_a_row_without_a_p_value_says_why_and_no_search_finds_it(run, study, store_uri):
    tracked = track(run, study, store_uri)
    _, found = parent_and_rows(store_uri, tracked.experiment)
    why = {name: one.data.tags["encore.mcnemar"] for name, one in found.items()}
    assert why["uniform"] == why["initial"] == "exact"
    assert why["random (5 draws)"] == "none: a mean over draws"
    assert math.isnan(found["random (5 draws)"].data.metrics["mcnemar_p"])
    client = MlflowClient(store_uri)
    some = client.search_runs([tracked.run.experiment_id], "metrics.mcnemar_p >= 0")
    names = {one.data.params["row"] for one in some}
    assert names == {name for name, reason in why.items() if reason == "exact"}


def test_every_rule_is_a_line_of_a_table_with_its_weight(study, store_uri, tmp_path):
    run = run_with_heads(study)
    tracked = track(run, study, store_uri)
    client = MlflowClient(store_uri)
    path = client.download_artifacts(tracked.run_ids["top-4"], "rules.csv", str(tmp_path))
    lines = list(csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines()))
    assert [line["rule_id"] for line in lines] == list(RULES)
    assert [float(line["weight"]) for line in lines] == [0.25] * 4
    entropies = [float(line["entropy_nats"]) for line in lines]
    assert entropies == sorted(entropies)  # as these ratings were made up
    single = next(line.row for line in run.table.lines if line.name == "single: be-true")
    assert float(lines[2]["score"]) == pytest.approx(single.score.headline.score)
    folder = f"tables/{run.out.name}"
    path = client.download_artifacts(tracked.run.run_id, f"{folder}/rules.csv", str(tmp_path))
    [first, *_] = csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines())
    assert float(first["weight: encore (τ 0.5)"]) > float(first["weight: encore (τ 2)"]) > 0.25
    files = {file.path for file in client.list_artifacts(tracked.run_ids["initial"])}
    assert "rules.csv" not in files  # it weighs no rules


def test_results_of_every_pair_and_the_table_are_artifacts(run, study, store_uri, tmp_path):
    tracked = track(run, study, store_uri)
    client = MlflowClient(store_uri)
    path = client.download_artifacts(tracked.run_ids["initial"], "results.parquet", str(tmp_path))
    [stored] = read_pair_results(Path(path))
    row = next(line.row for line in run.table.lines if line.name == "initial")
    assert stored.results.credit_P.tolist() == row.credit_P.tolist()
    path = client.download_artifacts(tracked.run_ids["initial"], "row.json", str(tmp_path))
    assert json.loads(Path(path).read_text())["kind"] == "model"
    folder = f"tables/{run.out.name}"
    files = {file.path for file in client.list_artifacts(tracked.run.run_id, folder)}
    names = ("table.json", "table.md", "results.parquet")
    pictures = ("benchmark-intervals.png", "benchmark-intervals.svg")
    assert files == {f"{folder}/{name}" for name in (*names, *pictures)}


def test_two_studies_of_the_same_pairs_have_runs_of_their_own(run, study, store_uri, tmp_path):
    tracked = track(run, study, store_uri)
    other = Path(shutil.copytree(study, tmp_path / "other"))
    assert track(run, other, store_uri).num_new == len(tracked.run_ids)
    again = Path(shutil.copytree(study, tmp_path / "elsewhere" / "study"))
    assert track(run, again, store_uri).num_new == 0
    parents, found = parents_and_rows(store_uri, tracked.experiment)
    assert {parent.info.run_name for parent in parents} == {"study", "other"}
    assert len(found) == 2 * len(tracked.run_ids)


def test_a_second_call_logs_nothing(run, study, store_uri):
    first, second = track(run, study, store_uri), track(run, study, store_uri)
    assert second.num_new == 0
    assert first.run_ids == second.run_ids
    assert first.run.run_id == second.run.run_id
    assert_all_is_logged(run, second, store_uri)


def test_a_new_row_joins_the_others(study, store_uri, rows):
    track(write_run(study, rows, pairs=PAIRS), study, store_uri)
    more = write_run(study, [*rows, model_row("late", [1.0] * 50, pairs=PAIRS)], pairs=PAIRS)
    tracked = track(more, study, store_uri)
    assert tracked.num_new == 1
    assert_all_is_logged(more, tracked, store_uri)


def test_other_results_of_a_row_are_a_run_of_their_own(study, store_uri, rows):
    few = (rows[0], model_row("model", [1.0] * 50, pairs=PAIRS))
    first = track(write_run(study, few, pairs=PAIRS), study, store_uri)
    trained_on = (rows[0], model_row("model", [0.0] * 50, pairs=PAIRS))
    second = track(write_run(study, trained_on, pairs=PAIRS), study, store_uri)
    assert second.num_new == 1
    assert first.run_ids["uniform"] == second.run_ids["uniform"]
    assert first.run_ids["model"] != second.run_ids["model"]


def with_lines(run: BenchmarkRun, change: Callable[[TableLine], TableLine]) -> BenchmarkRun:
    lines = tuple(map(change, run.table.lines))
    return replace(run, table=replace(run.table, lines=lines))


def test_another_figure_of_the_paper_alone_is_logged(study, store_uri, rows):
    few = write_run(study, (rows[0], rows[-1]), pairs=PAIRS)
    first = track(few, study, store_uri)
    published = paper_tables()[0].rows[0]
    beside = with_lines(
        few, lambda line: replace(line, paper=published) if line.name == "initial" else line
    )
    second = track(beside, study, store_uri)
    assert second.num_new == 1
    assert first.run_ids["uniform"] == second.run_ids["uniform"]
    client = MlflowClient(store_uri)
    before, now = (
        client.get_run(one.run_ids["initial"]).data.metrics["paper"] for one in (first, second)
    )
    assert math.isnan(before)
    assert now == published.printed_safety / 100


def test_intervals_of_another_seed_alone_are_logged(study, store_uri, rows):
    few = (rows[0], rows[-1])
    first = track(write_run(study, few, pairs=PAIRS), study, store_uri)
    reseeded = {row.name: row for row in compared(few, pairs=PAIRS, seed=7)}
    other = with_lines(
        write_run(study, few, pairs=PAIRS), lambda line: replace(line, row=reseeded[line.name])
    )
    second = track(other, study, store_uri)
    assert second.num_new == 1  # the reference is compared with nothing
    figures = MlflowClient(store_uri).get_run(second.run_ids["initial"]).data.metrics
    assert figures["difference_ci_low"] == reseeded["initial"].comparison.ci_low
    assert first.run_ids["initial"] != second.run_ids["initial"]


def test_a_headline_of_another_name_is_logged_under_it(study, store_uri):
    renamed = real_pairs(headline="Harmlessness")
    for pairs in (PAIRS, renamed):
        run = write_run(study, [model_row("model", [1.0] * 50, pairs=pairs)], pairs=pairs)
        tracked = track(run, study, store_uri)
        assert tracked.num_new == 1
    assert "harmlessness" in MlflowClient(store_uri).get_run(tracked.run_ids["model"]).data.metrics


def test_only_rows_with_a_synthetic_part_are_called_so(study, store_uri):
    real = model_row("real", [1.0] * 50, pairs=PAIRS)
    made = replace(model_row("made", [0.0] * 50, pairs=PAIRS), synthetic=("model made (made up)",))
    run = write_run(study, [real, made], pairs=PAIRS)
    tracked = track(run, study, store_uri)
    parent, found = parent_and_rows(store_uri, tracked.experiment)
    assert found["real"].data.tags["encore.synthetic"] == "no"
    assert found["made"].data.tags["encore.synthetic"] == "model made (made up)"
    assert parent.data.tags["encore.synthetic"] == "model made (made up)"


def run_with_heads(study: Path, **more: Any) -> BenchmarkRun:
    """A run that weighed heads: what their model is and what their ratings are is known."""
    scores = scores_of(PAIRS, random_margins(PAIRS.num_pairs))
    rows = every_row(PAIRS)
    heads = ScoredBenchmark(
        folder=study,
        model="org/heads",
        model_digest="a1" * 32,
        scores=scores,
        num_cut_rows=0,
        num_cut_tokens=0,
        num_computed=0,
        notes=(),
    )
    with open_evidence(training_ratings()) as evidence:
        rules = evidence.rules
    behind = ModelBehind(name="org/heads", digest="a1" * 32, revision="c0ffee")
    models = {row.name: behind for row in rows if row.kind == "scheme"}
    return write_run(study, rows, pairs=PAIRS, heads=heads, rules=rules, models=models, **more)


def test_what_is_behind_a_row_stands_in_its_parameters_and_tags(study, store_uri):
    tracked = track(run_with_heads(study), study, store_uri)
    _, found = parent_and_rows(store_uri, tracked.experiment)
    row, initial = found["encore (τ 2)"].data, found["initial"].data
    assert row.params["model"] == "org/heads"
    assert row.params["model_sha256"] == row.tags["encore.model_sha256"] == "a1" * 32
    assert row.params["model_revision"] == "c0ffee"
    assert initial.params["model"] == initial.tags["encore.reward_key"] == "none"
    # The same heads under other weights are another reward; a mean over draws is none.
    keys = {found[name].data.tags["encore.reward_key"] for name in ("uniform", "encore (τ 2)")}
    assert len(keys) == 2
    assert found["random (5 draws)"].data.tags["encore.reward_key"] == "none"


class _Dying:
    """A client whose process is killed at its so-and-so-many-th call of some kinds."""

    def __init__(self, client: Any, *, at: int, error: BaseException) -> None:
        self._client, self._left, self._error = client, at, error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("get_run", "log_artifact", "set_terminated"):
            self._left -= 1
            if self._left == 0:
                raise self._error
        return getattr(self._client, name)


def dying_at(at: int, *, error: BaseException) -> property:
    """`MlflowStore.client`, for each store one that dies."""
    clients: dict[int, _Dying] = {}

    def client(store: Any) -> _Dying:
        return clients.setdefault(id(store), _Dying(store._client, at=at, error=error))

    return property(client)


# 1: the study's run is open; 2: the first row's, without metrics; 3, 4: with metrics, before each
# of its files; 5: before it is finished; 6: the second row; 14: before the table's own files.
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 14])
def test_after_a_death_the_same_command_logs_what_is_missing(
    study, store_uri, rows, monkeypatch, at
):
    run = write_run(study, rows[:3], pairs=PAIRS)
    with monkeypatch.context() as patched:
        patched.setattr(MlflowStore, "client", dying_at(at, error=KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            track(run, study, store_uri)
    assert_all_is_logged(run, track(run, study, store_uri), store_uri)


def test_more_subsets_than_one_call_holds_are_logged(study, store_uri, monkeypatch):
    """400 subsets have three figures each: 1,200 and those of the row; a call holds 1,000."""
    sizes, log_batch = [], MlflowClient.log_batch

    def counted(client, run_id, metrics=(), **more):
        sizes.append(len(metrics))
        return log_batch(client, run_id, metrics=metrics, **more)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)  # a server refuses more, a file not
    pairs = real_pairs({f"s{place:03}": 1 for place in range(400)})
    run = write_run(study, [model_row("model", [1.0] * 400, pairs=pairs)], pairs=pairs)
    tracked = track(run, study, store_uri)
    metrics = MlflowClient(store_uri).get_run(tracked.run_ids["model"]).data.metrics
    assert sum(name.startswith("subset/") for name in metrics) == 1200
    assert max(sizes) <= 1000


def test_a_store_that_goes_away_is_one_line_that_says_where_the_table_is(
    run, study, store_uri, monkeypatch
):
    error = MlflowException("connection refused\nfor good")
    monkeypatch.setattr(MlflowStore, "client", dying_at(1, error=error))
    with pytest.raises(TrackingUnavailableError) as caught:
        track(run, study, store_uri)
    assert str(run.out) in str(caught.value)
    assert "the same command logs what is missing" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", [INTERNAL_ERROR, INVALID_PARAMETER_VALUE])
def test_the_password_of_a_store_is_not_in_what_is_said(run, code):
    store = MlflowStore(uri="http://me:hunter2@127.0.0.1:5000", experiment="evaluations")
    error = MlflowException("http://me:hunter2@127.0.0.1:5000/api: no", error_code=code)
    with pytest.raises(TrackingUnavailableError) as caught, answering(store, folder=run.out):
        raise error
    assert "127.0.0.1:5000/api: no" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_partial_benchmark_is_marked(study, store_uri):
    pairs = real_pairs({"refuse": 6}, is_partial=True)
    behind = ModelBehind(name="org/model", digest="a1", revision=None)
    only = model_row("only", [1.0] * 6, pairs=pairs)
    run = write_run(study, [only], pairs=pairs, models={"only": behind})
    tracked = track(run, study, store_uri, experiment="mine")
    parent, found = parent_and_rows(store_uri, "mine")
    assert parent.data.tags["encore.partial"] == "yes"
    assert found["only"].data.params["is_partial"] == "true"
    registered = register_candidate(run, tracked, row="only", uri=store_uri)
    assert (registered.champion, registered.version) == (None, "1")


def test_a_store_that_cannot_be_opened_is_one_line_that_says_where_the_table_is(run, study):
    with pytest.raises(TrackingUnavailableError) as caught:
        track(run, study, f"sqlite:///{study / 'study.json'}/mlflow.db")
    assert str(run.out) in str(caught.value)
    assert "trained" not in str(caught.value)
