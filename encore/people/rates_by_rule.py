"""Estimate people's rate under each rule from judges' ratings of all responses and few labels.

Suffixes: N responses (under one rule), P pairs, J judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.corrected_rate import CorrectedRate, corrected_rate, forecast_times
from encore.buckets.study_mirror import study_path
from encore.core.record_table import RecordTable
from encore.data.annotations import people_labels, read_items, read_samples
from encore.data.rating_runs import list_runs, run_status
from encore.data.records import RESPONSES
from encore.data.study import Study, is_study, open_study
from encore.people.labelled_responses import LabelledRow, read_labels
from encore.people.people_and_judges import run_name
from encore.warehouse import PairRatings, open_ratings, read_pairs_of

#: Value of `RuleRate.who` for all judges of a study or table together.
ALL_JUDGES = "all judges"
#: Value of `RuleRate.who` for the first judge of a table with several.
_FIRST_JUDGE = "rating"

_Floats = NDArray[np.float64]
#: Label or probability by (source, response_id, rule_id).
_Values = Mapping[tuple[str, str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRate:
    """People's rate under one rule, estimated with one judge, or with all judges together.

    Attributes:
        rule_id: Id of the rule.
        who: Title of the judge with the key of its run; `ALL_JUDGES`; in a table of labels the
            column of the judge, empty if there is one judge.
        rate: The judge alone, people alone, and corrected.
        forecast: Number of labels by people alone that each further label is worth beside the
            judge, while few of the responses have one: 1 / (1 - ρ²).
    """

    rule_id: str
    who: str
    rate: CorrectedRate
    forecast: Estimate


def _rule_rate(rule_id: str, who: str, rate: CorrectedRate) -> RuleRate:
    forecast = forecast_times(rate.explained, num_labels=0, num_responses=rate.num_responses)
    return RuleRate(rule_id=rule_id, who=who, rate=rate, forecast=forecast)


def corrected_rates(labels: Study | str | Path) -> RecordTable[RuleRate]:
    """Return people's rate under each rule: the judge alone, people alone, and corrected.

    Args:
        labels: A study whose sample people have answered (`encore annotate`), or a table of labels
            and ratings as `encore labels` reads it, with rows without a label.

    Raises:
        InputError: There is no such file, or it is malformed.
    """
    if isinstance(labels, Study):
        return RecordTable(rates_of_study(labels))
    path = study_path(labels)
    if is_study(path):
        return RecordTable(rates_of_study(open_study(path)))
    return RecordTable(rates_of_rows(read_labels([path], unlabelled=True)))


def rates_of_rows(rows: Sequence[LabelledRow]) -> Iterator[RuleRate]:
    """Yield people's rate under each rule of a table; its rows without a label have NaN.

    Several judges are shown one by one and all together. A judge is left out under a rule without a
    labelled response that it rated.
    """
    further_judges = dict.fromkeys(name for row in rows for name in row.further_ratings)
    for rule_id in dict.fromkeys(row.rule_id for row in rows):
        rule_rows = [row for row in rows if row.rule_id == rule_id]
        label_N = np.array([row.label for row in rule_rows], dtype=np.float64)
        prompts = [row.prompt_id or f"{row.source} {row.response_id}" for row in rule_rows]
        prompt_N = np.asarray(np.unique(prompts, return_inverse=True)[1])
        judge = _FIRST_JUDGE if further_judges else ""
        ratings = {judge: [row.rating for row in rule_rows]} | {
            name: [row.further_ratings.get(name) for row in rule_rows] for name in further_judges
        }
        ratings_by_name = {
            name: [np.array(values, dtype=np.float64)] for name, values in ratings.items()
        }
        if further_judges:
            ratings_by_name[ALL_JUDGES] = [rating_N for (rating_N,) in ratings_by_name.values()]
        for name, rating_JN in ratings_by_name.items():
            is_rated_N = ~np.isnan(np.stack(rating_JN)).any(axis=0)
            if not np.isnan(label_N[is_rated_N]).all():
                yield _rule_rate(rule_id, name, corrected_rate(label_N, rating_JN, prompt_N))


def rates_of_study(study: Study) -> Iterator[RuleRate]:
    """Yield people's rate under each rule of a study that annotators have labelled responses of.

    All samples of the study count. They were drawn by sources and by the ratings of some runs, so a
    label counts by the inverse of the probability that such a response has one.
    """
    labels = labels_of_study(study)
    if not labels:
        return
    names = rated_runs(study)
    runs = {key: read_pairs_of(open_ratings(study, run=key)) for key in names}
    samples = [sample for sample in read_samples(study) if sample.kind == "responses"]
    drawn_by = {key for sample in samples for key in (sample.run_key, *sample.further_run_keys)}
    recorded = _recorded_probabilities(study, labels)
    all_pairs = AlignedPairs.of([*runs.values()])
    for rule_id in sorted({rule_id for _, _, rule_id in labels}):
        rating_by_run = {
            key: all_pairs.ratings(run, rule_id)
            for key, run in runs.items()
            if rule_id in run.rule_ids
        }
        label_N = all_pairs.values(labels, rule_id)
        cell_N = all_pairs.cells([rating_by_run[key] for key in rating_by_run if key in drawn_by])
        probability_N = label_probabilities(
            cell_N, ~np.isnan(label_N), all_pairs.values(recorded, rule_id)
        )
        ratings_by_name = {names[key]: [rating_N] for key, rating_N in rating_by_run.items()}
        if len(rating_by_run) > 1:
            ratings_by_name[ALL_JUDGES] = [*rating_by_run.values()]
        for name, rating_JN in ratings_by_name.items():
            rate = corrected_rate(label_N, rating_JN, all_pairs.prompt_N, probability_N)
            yield _rule_rate(rule_id, name, rate)


def labels_of_study(study: Study) -> dict[tuple[str, str, str], float]:
    """Return people's labels in all samples of a study, by (source, response_id, rule_id)."""
    labels: dict[tuple[str, str, str], float] = {}
    for _, sample_labels in people_labels(study):
        labels |= sample_labels
    return labels


def rated_runs(study: Study) -> dict[str, str]:
    """Return the name of the judge of each run that has ratings, by the run's key."""
    names = {}
    for run_dir in list_runs(study.ratings_dir):
        status = run_status(run_dir)
        if status.paths:
            names[run_dir.name] = run_name(status.manifest)
    return names


@dataclass(frozen=True, slots=True)
class AlignedPairs:
    """The pairs of the run with most of them, and where the pairs of other runs stand among these.

    Attributes:
        base: The ratings of that run.
        index: Position of each pair by its source and pair_id.
    """

    base: PairRatings
    index: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, runs: Sequence[PairRatings]) -> AlignedPairs:
        """Return the pairs of the first run that has most."""
        base = max(runs, key=lambda run: run.num_pairs)
        return cls(base, {key: index for index, key in enumerate(_pair_keys(base))})

    @property
    def prompt_N(self) -> NDArray[np.intp]:
        """Return the number of the prompt of each response, chosen first, shape [2 · P]."""
        return np.tile(self.base.group_P, 2)

    def ratings(self, run: PairRatings, rule_id: str) -> _Floats:
        """Return a run's ratings under a rule, chosen first; NaN where it has none."""
        rule = run.rule_ids.index(rule_id)
        rating_2P = np.full((2, self.base.num_pairs), np.nan)
        position_P = np.array([self.index.get(key, -1) for key in _pair_keys(run)], dtype=np.intp)
        is_here_P = position_P >= 0
        rating_2P[0, position_P[is_here_P]] = run.chosen_PR[is_here_P, rule]
        rating_2P[1, position_P[is_here_P]] = run.rejected_PR[is_here_P, rule]
        return rating_2P.reshape(-1)

    def values(self, values: _Values, rule_id: str) -> _Floats:
        """Return the value of each response under a rule, chosen first; NaN without one."""
        value_2P = np.full((2, self.base.num_pairs), np.nan)
        for (source, response_id, rule), value in values.items():
            pair_id, _, response = response_id.rpartition(":")
            position = self.index.get((source, pair_id))
            if rule == rule_id and position is not None:
                value_2P[RESPONSES.index(response), position] = value
        return value_2P.reshape(-1)

    def cells(self, rating_JN: Sequence[_Floats]) -> NDArray[np.intp]:
        """Return a number for the source and ratings of each response together, from 0.

        Responses of a cell have the same probability to be drawn.
        """
        source_P = np.unique(self.base.source_P.astype(str), return_inverse=True)[1]
        ratings = [np.nan_to_num(rating_N, nan=-1.0) for rating_N in rating_JN]
        columns = np.stack([np.tile(source_P, 2), *ratings])
        return np.asarray(np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1))


def label_probabilities(
    cell_N: NDArray[np.intp], is_labelled_N: NDArray[np.bool_], recorded_N: _Floats
) -> _Floats:
    """Return the probability of each response to have a label: of its cell, as a draw recorded it.

    Of a cell without a record it is the share of responses that have one. The largest record is the
    latest: a sample records what is so after it.
    """
    share_C = np.bincount(cell_N, weights=is_labelled_N) / np.bincount(cell_N)
    recorded_C = np.zeros(len(share_C))
    np.maximum.at(recorded_C, cell_N, np.nan_to_num(recorded_N))
    return np.asarray(np.where(recorded_C > 0, recorded_C, share_C)[cell_N], dtype=np.float64)


def _recorded_probabilities(study: Study, labels: _Values) -> dict[tuple[str, str, str], float]:
    """Return the recorded probabilities of items with a label, by (source, response_id, rule_id).

    A sample that nobody has answered changed no probability.
    """
    probabilities: dict[tuple[str, str, str], float] = {}
    for sample in read_samples(study):
        for row in read_items(study, sample).to_pylist():
            if row.get("probability") is not None:
                response_id = f"{row['pair_id']}:{row['response']}"
                key = row["source"], response_id, row["rule_id"]
                if key in labels:
                    probabilities[key] = row["probability"]
    return probabilities


def _pair_keys(pairs: PairRatings) -> Iterator[tuple[str, str]]:
    return zip(pairs.source_P.tolist(), pairs.pair_id_P.tolist(), strict=True)
