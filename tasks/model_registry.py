"""Aliases of MLflow's model registry: ``candidate`` for what is tried, ``champion`` for the best.

A version is an evaluation run's row: the model's name and digest, and its weights. The champion
changes only by the rule of `encore.benchmarks.promotion`. Where it was registered on other pairs,
its results on the candidate's are those of an evaluation of the same model and weights.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from encore.benchmarks.comparison import MARGIN
from encore.benchmarks.promotion import Promotion, decide_promotion, refused_promotion
from encore.benchmarks.results import StoredResults, read_pair_results
from encore.benchmarks.rows import TableRow
from encore.benchmarks.run import BenchmarkRun
from encore.errors import InputError
from tasks.evaluation_words import (
    NONE,
    PAIRS_TAG,
    REWARD_TAG,
    reward_key,
    scheme_of,
    synthetic_of,
    weights_of,
)
from tasks.track import MlflowStore, connect, is_gone
from tasks.track_benchmark import RESULTS_ARTIFACT, TrackedTable, answering

DEFAULT_MODEL = "encore-reward-model"
CANDIDATE, CHAMPION = "candidate", "champion"
_REASON_TAG = "encore.promotion"
_FOLDER, _FILE = "model", "reward-model.json"
_NO_BAR = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
_NAME = re.compile(r"^[A-Za-z0-9][\w.-]{0,127}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What became of a candidate.

    Attributes:
        model: Name of the registered model.
        version: The candidate's.
        champion: The champion's version now; None where there is none.
        promotion: What was decided, and why.
    """

    model: str
    version: str
    champion: str | None
    promotion: Promotion

    @property
    def summary(self) -> str:
        """One line."""
        is_new = self.promotion.is_promoted
        verb = "is the champion" if is_new else "is a candidate, not the champion"
        return f"{self.model} version {self.version} {verb}: {self.promotion.reason}"


def candidate_row(run: BenchmarkRun, name: str) -> TableRow:
    """The row of a name, if it can be a candidate: one whose reward can be composed again.

    Raises:
        InputError: No such row, or one that no model scored here: a judge, a mean over draws, a
            row of a file of results.
    """
    rows = [line.row for line in run.table.lines if line.row is not None]
    possible = {
        row.name: row for row in rows if not row.is_mean and reward_key(row, run) is not None
    }
    if name not in possible:
        raise InputError(
            f"candidate {name!r}: no reward model among the rows that were scored here (there are: "
            f"{', '.join(map(repr, possible)) or 'none'}); a row of a file of results says not how "
            "to load what is behind it"
        )
    return possible[name]


def check_name(model: str) -> None:
    """Refuse a name that MLflow's registry would not find again.

    Raises:
        InputError: It has other characters than letters, digits, dots, dashes and underscores.
    """
    if not _NAME.match(model):
        raise InputError(
            f"registered model {model!r}: expected letters, digits, dots, dashes and underscores, "
            f"for example {DEFAULT_MODEL}"
        )


def register_candidate(
    run: BenchmarkRun,
    tracked: TrackedTable,
    *,
    row: str,
    uri: str,
    model: str = DEFAULT_MODEL,
    margin: float = MARGIN,
    seed: int = 0,
) -> Registered:
    """Register a row's evaluation as a version, call it the candidate, and promote it if it may be.

    The same evaluation is registered once, however often this is called.

    Args:
        run: The benchmark run.
        tracked: Where its rows were logged.
        row: The candidate's name in the table.
        uri: Of the tracking store.
        model: Name of the registered model; made if it is not there.
        margin: How much worse than the champion is acceptable, as a share.
        seed: Of the bootstrap.

    Raises:
        InputError: No such row, a name that cannot be one, a negative margin.
        TrackingUnavailableError: The store does not answer.
    """
    check_name(model)
    chosen = candidate_row(run, row)
    meanwhile = f"the table is in {run.out}, and the same command registers the candidate"
    store = connect(uri, experiment=tracked.experiment, meanwhile=meanwhile)
    [results] = [one for one in read_pair_results(run.results_path) if one.results.name == row]
    with answering(store, folder=run.out):
        registry = _Registry(store=store, model=model)
        version = registry.version_of(tracked.run_ids[row], about=_about(chosen, run))
        registry.point(CANDIDATE, version)
        before = registry.version_at(CHAMPION)
        promotion = registry.decision(version, before, results, margin=margin, seed=seed)
        # Why comes first: after a death between the two, the alias would stand there unexplained.
        registry.note(version, _marks(chosen, run))
        registry.give_reason(version, promotion.reason, is_kept=before == version)
        if promotion.is_promoted:
            registry.point(CHAMPION, version)
    return Registered(
        model=model,
        version=version,
        champion=version if promotion.is_promoted else before,
        promotion=promotion,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registry:
    """One registered model behind MLflow's client."""

    store: MlflowStore
    model: str

    def version_of(self, run_id: str, *, about: Mapping[str, Any]) -> str:
        """The version of an evaluation run, made if it is not there."""
        if not self.store.client.search_registered_models(f"name = '{self.model}'"):
            self.store.client.create_registered_model(self.model)
        found = self.store.client.search_model_versions(
            f"name = '{self.model}' and run_id = '{run_id}'"
        )
        if found:
            return str(found[0].version)
        with TemporaryDirectory() as scratch:
            path = Path(scratch) / _FILE
            path.write_text(json.dumps(about, indent=2, ensure_ascii=False), encoding="utf-8")
            self.store.client.log_artifact(run_id, str(path), _FOLDER)
        source = f"{self.store.client.get_run(run_id).info.artifact_uri}/{_FOLDER}"
        return str(self.store.client.create_model_version(self.model, source, run_id).version)

    def version_at(self, alias: str) -> str | None:
        """The version that an alias points to."""
        found = self.store.client.get_registered_model(self.model).aliases.get(alias)
        return None if found is None else str(found)

    def point(self, alias: str, version: str) -> None:
        """Let an alias point to a version."""
        self.store.client.set_registered_model_alias(self.model, alias, version)

    def note(self, version: str, tags: Mapping[str, str]) -> None:
        """What its page says."""
        for name, value in tags.items():
            self.store.client.set_model_version_tag(self.model, version, name, value)

    def give_reason(self, version: str, reason: str, *, is_kept: bool) -> None:
        """Why it is the champion or not; one that is there already may be the one that holds."""
        there = self.store.client.get_model_version(self.model, version).tags
        if not (is_kept and _REASON_TAG in there):
            self.note(version, {_REASON_TAG: reason})

    def decision(
        self,
        version: str,
        champion: str | None,
        results: StoredResults,
        *,
        margin: float,
        seed: int,
    ) -> Promotion:
        """Whether a version becomes the champion; it stays so if it is."""
        if champion == version:
            return Promotion(is_promoted=True, reason="it was so before", comparison=None)
        if champion is None:
            return decide_promotion(results, None, margin=margin, seed=seed)
        theirs = self._results_of(champion, on=results.data_digest)
        if theirs is None:
            return refused_promotion(
                f"the results of the champion, version {champion}, are gone: evaluate it again on "
                "these pairs, or take its alias away"
            )
        return decide_promotion(results, theirs, margin=margin, seed=seed)

    def _results_of(self, version: str, *, on: str) -> StoredResults | None:
        """A version's results, on these pairs if there are any; None where its files are gone."""
        run_id = self.store.client.get_model_version(self.model, version).run_id
        tags = self._tags_of(run_id)
        is_on_them = tags.get(PAIRS_TAG) == on
        again = [] if REWARD_TAG not in tags else self._evaluations(tags[REWARD_TAG], on=on)
        run_ids = [run_id, *again] if is_on_them else [*again, run_id]
        found = (self._stored(one) for one in run_ids if one)
        return next((one for one in found if one is not None), None)

    def _tags_of(self, run_id: str | None) -> Mapping[str, str]:
        """Of a run; none where it is gone, or a version was made without one."""
        if not run_id:
            return {}
        try:
            return dict(self.store.client.get_run(run_id).data.tags)
        except self.store.errors as error:
            if not is_gone(error):
                raise
            return {}

    def _evaluations(self, reward_key: str, *, on: str) -> list[str]:
        """Runs of the same model and weights on these pairs, the newest first."""
        if reward_key == NONE:
            return []
        found = self.store.client.search_runs(
            self._experiments(),
            filter_string=f"tags.`{REWARD_TAG}` = '{reward_key}' and tags.`{PAIRS_TAG}` = '{on}' "
            "and attributes.status = 'FINISHED'",
            order_by=["attributes.start_time DESC"],
        )
        return [one.info.run_id for one in found]

    def _experiments(self) -> list[str]:
        """All that are not deleted: the same model may have been evaluated in any of them."""
        found: list[str] = []
        token: str | None = None
        while True:
            page = self.store.client.search_experiments(page_token=token)
            found += [one.experiment_id for one in page]
            token = page.token
            if not token:
                return found

    def _stored(self, run_id: str) -> StoredResults | None:
        """What an evaluation gave every pair; None where that is gone or damaged."""
        os.environ.setdefault(_NO_BAR, "false")  # it would draw one for each single file
        try:
            files = {file.path for file in self.store.client.list_artifacts(run_id)}
        except self.store.errors as error:
            if not is_gone(error):
                raise
            files = set()
        if RESULTS_ARTIFACT not in files:
            return None
        with TemporaryDirectory() as scratch:
            path = self.store.client.download_artifacts(run_id, RESULTS_ARTIFACT, scratch)
            try:
                [results] = read_pair_results(Path(path))
            except InputError:
                return None
        return results


def _about(row: TableRow, run: BenchmarkRun) -> dict[str, Any]:
    """What a version stands for: enough to find the model and compose its reward."""
    behind = run.models.get(row.name)
    return {
        "row": row.name,
        "model": NONE if behind is None else behind.name,
        "model_sha256": NONE if behind is None else behind.digest,
        "model_revision": None if behind is None else behind.revision,
        "gate_sha256": None if behind is None else behind.gate,
        "scheme": scheme_of(row),
        "params": dict(row.params),
        "weights": weights_of(row),
        "pairs_sha256": run.table.pairs.digest,
        "is_partial": run.table.pairs.is_partial,
        "synthetic": list(synthetic_of(row, run.table)),
    }


def _marks(row: TableRow, run: BenchmarkRun) -> dict[str, str]:
    return {
        "encore.synthetic": ", ".join(synthetic_of(row, run.table)) or "no",
        "encore.partial": "yes" if run.table.pairs.is_partial else "no",
    }
