"""Find the pairs that match a filter, page by page, in a locked DuckDB in memory.

Costs. Opening reads every finished shard once. A filter scans one row per run, rule and rated pair
(with the ratings of both responses). Its pairs are cached, so that another page looks up only
`PAGE_SIZE` pairs. A search scans the texts of all pairs. Opening one pair reads its shard of each
run. Memory holds the texts, and 38 bytes per run, rule and rated pair.

With 70,000 pairs, 20 rules and 3 runs (8.4 million ratings) on 2 cores: 12 s to open, 0.1 s for a
filter, 0.4 s to sort, 0.5 s for a search, 0.05 s for a page, 0.1 s for a pair; 0.9 GB of memory.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.core.errors import EncoreError, InputError
from encore.data.annotations import people_labels
from encore.data.pairs import records_of, verified_path
from encore.data.rating_runs import RatingStatus, null_reasons
from encore.data.records import PreferencePair
from encore.data.schemas import PAIRS, RATINGS
from encore.data.study import Study
from encore.demo import JUDGE_NAME
from encore.tables.pair_details import chosen_statuses, pair_in_run
from encore.tables.pair_notes import read_notes, write_note
from encore.tables.study_database import FilePart, StudyDatabase, StudyTable, literal, open_database

PAGE_SIZE = 50
#: Characters of a prompt's last message in the list of pairs.
_EXCERPT_CHARACTERS = 300
_MAX_CACHED_FILTERS = 32
#: The only value of an enumeration that would be empty.
_NO_VALUE = "-"

#: Columns that a list can be sorted by: those of the pair, and figures over its ratings. Rounding
#: errors do not sort.
_TEXT_COLUMNS = {"pair": "position", "prompt": "lower(prompt[-1].content)", "source": "source"}
_FIGURE_COLUMNS = {
    "chosen": "round(avg(chosen), 9)",
    "rejected": "round(avg(rejected), 9)",
    "difference": "round(avg(chosen - rejected), 9)",
    "nulls": "2 * count(*) - count(chosen) - count(rejected)",
    "against": "count(*) filter (chosen < rejected)",
}
SORT_COLUMNS = (*_TEXT_COLUMNS, *_FIGURE_COLUMNS)

_IN_TEXTS = """
starts_with(pair_id, lower($text)) or contains(lower(chosen), lower($text))
or contains(lower(rejected), lower($text))
or contains(lower(array_to_string([turn.content for turn in prompt], chr(10))), lower($text))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFilter:
    """Conditions on the pairs of a list.

    Conditions on ratings (``rule``, ``run``, ``null``, ``disagreement``) must hold together for one
    rule in one run.

    Attributes:
        rule: Id of a rule under which the pair is rated.
        run: Key of a run in which the pair is rated.
        null: The reason why a rating of one response is null, or ``any`` reason.
        min_rating, max_rating: Range of the rating of either response, as numbers.
        disagreement: ``responses``: chosen is rated below rejected. ``judges``: another run prefers
            the other response. ``people``: the rating of a response is nearer to another label than
            to the one that annotators gave. Pairs are then sorted by the difference, largest first.
        source: Label of the pair's source.
        text: Text in the conversation or a response, in upper or lower case; or the beginning of
            the pair id.
        sort: Column of the list to sort by, one of `SORT_COLUMNS`; after ``-`` the largest first.
    """

    rule: str | None = None
    run: str | None = None
    null: str | None = None
    min_rating: str | None = None
    max_rating: str | None = None
    disagreement: str | None = None
    source: str | None = None
    text: str | None = None
    sort: str | None = None

    @property
    def sql(self) -> str:
        """Return the query for the positions of matching pairs. Attributes are its parameters."""
        is_null = "$null in (chosen_null::varchar, rejected_null::varchar)"
        if self.null == "any":
            is_null = "(chosen is null or rejected is null)"
        disagrees, difference = {
            None: ("true", "0"),
            "responses": ("chosen < rejected", "rejected - chosen"),
            "judges": ("spread is not null", "spread"),
            "people": ("distance is not null", "distance"),
        }[self.disagreement]
        low, high = "coalesce($min_rating::double, 0)", "coalesce($max_rating::double, 1)"
        is_in_range = f"(chosen between {low} and {high} or rejected between {low} and {high})"
        rating_conditions = {
            "rule": "rule = $rule::rule_name",
            "run": "run = $run::run_name",
            "null": is_null,
            "min_rating": is_in_range,
            "max_rating": is_in_range,
            "disagreement": disagrees,
        }
        text_conditions = {"source": "source = $source", "text": f"({_IN_TEXTS})"}
        on_ratings = [sql for name, sql in rating_conditions.items() if getattr(self, name)]
        on_texts = [sql for name, sql in text_conditions.items() if getattr(self, name)]
        matching_texts = f"select position from texts where {' and '.join(on_texts) or 'true'}"  # noqa: S608 - our own text
        query = f"{matching_texts} order by position"
        if on_ratings:
            if on_texts:
                on_ratings.append(f"position in ({matching_texts})")
            query = (
                f"select position from pair_ratings where {' and '.join(on_ratings)} group by "  # noqa: S608 - our own text
                f"position order by round(max({difference}), 9) desc, position"  # rounding errors
            )
        return query if self.sort is None else self._sorted(query, self.sort)

    def _sorted(self, query: str, sort: str) -> str:
        """Return the query with its positions sorted by a column of the list."""
        column = sort.removeprefix("-")
        direction = "desc" if sort.startswith("-") else "asc"
        if column in _TEXT_COLUMNS:
            table, sort_value = "texts", _TEXT_COLUMNS[column]
        else:
            displayed = [f"{name} = ${name}" for name in ("rule", "run") if getattr(self, name)]
            table = (
                f"(select position, {_FIGURE_COLUMNS[column]} as figure from pair_ratings "  # noqa: S608 - our own text
                f"where {' and '.join(displayed) or 'true'} group by position)"
            )
            sort_value = "figure"
        return (
            f"select position from ({query}) left join {table} using (position) "  # noqa: S608 - our own text
            f"order by {sort_value} {direction} nulls last, position"
        )


class PairIndex:
    """Pairs of a study and their ratings in finished shards. Get it from `open_pair_index`.

    It has the state of the study at the time of opening. Any thread may call it. The position of a
    pair is its index in the order of rating plans, from 0.

    Attributes:
        summary: Sources, runs, rules and null reasons to filter by, counts, and synthetic parts, as
            JSON.
    """

    def __init__(
        self,
        database: StudyDatabase,
        *,
        study: Study,
        statuses: Sequence[RatingStatus],
        files: Sequence[Path],
        summary: dict[str, Any],
    ) -> None:
        self._database = database
        self._study = study
        self._lock = threading.Lock()
        self._statuses = statuses
        self._files = files
        self._cached_positions = lru_cache(_MAX_CACHED_FILTERS)(self._find_positions)
        self.summary = summary

    def page(self, pair_filter: PairFilter, *, number: int | None = 1) -> dict[str, Any]:
        """Return a page of the pairs that match a filter, each with its note and figures by run.

        Figures are means over the rules, or those of the filter's rule.

        Args:
            pair_filter: Conditions that the pairs match.
            number: Number of the page, from 1; None for all pairs.

        Raises:
            InputError: The study has no such rule, run, null reason or source.
        """
        self._check(pair_filter)
        with self._lock:
            matching_positions = self._cached_positions(pair_filter)
            positions = matching_positions.to_pylist()
            if number is not None:
                positions = positions[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
            rows = self._database.fetch(
                _sql("page"),
                positions=positions,
                rule=pair_filter.rule,
                excerpt=_EXCERPT_CHARACTERS,
            )
        notes = read_notes(self._study)
        return {
            "num_pairs": len(matching_positions),
            "num_pages": -(-len(matching_positions) // PAGE_SIZE),
            "page": number,
            "page_size": PAGE_SIZE,
            "rows": [{**row, "note": notes.get(row["pair_id"], "")} for row in rows.to_pylist()],
        }

    def pair(self, position: int) -> dict[str, Any]:
        """Return the texts, note and labels of a pair, and its ratings in every run with replies.

        Raises:
            InputError: The study has no pair at this position.
            EncoreError: A shard can no longer be read.
        """
        pair = self._record(position)
        with self._lock:
            labels = self._database.fetch(
                "select rule_id, response, label from people where pair_id = $pair_id and "
                "source = $source",
                pair_id=pair.pair_id,
                source=pair.source,
            )
            file_indexes = self._database.fetch(
                "select distinct file from pair_ratings where position = $position",
                position=position,
            )
        paths = [self._files[index] for index in file_indexes["file"].to_pylist()]
        try:
            runs = [
                pair_in_run(
                    pair, status.manifest, [path for path in paths if path.parent == status.run_dir]
                )
                for status in self._statuses
            ]
        except (OSError, pa.ArrowException) as error:
            raise EncoreError(
                f"pair {pair.pair_id}: its shard cannot be read ({error}); start `encore browse` "
                "again"
            ) from error
        return {
            **dataclasses.asdict(pair),
            "position": position,
            "runs": runs,
            "people": labels.to_pylist(),
            "note": read_notes(self._study).get(pair.pair_id, ""),
        }

    def write_note(self, position: int, note: str) -> None:
        """Replace the note on the pair at a position; see `encore.tables.pair_notes.write_note`."""
        pair = self._record(position)
        with self._lock:
            write_note(self._study, pair.pair_id, note)

    def _record(self, position: int) -> PreferencePair:
        if position >= self.summary["num_pairs"]:
            raise InputError(f"pair {str(position)[:20]}: the study has no such pair")
        with self._lock:
            texts = self._database.fetch("from texts where position = $position", position=position)
        (pair,) = records_of(texts.select(PAIRS.names))
        return pair

    def _check(self, pair_filter: PairFilter) -> None:
        choices: Mapping[str, Iterable[str]] = {
            "rule": [rule["rule_id"] for rule in self.summary["rules"]],
            "run": [run["run_key"] for run in self.summary["runs"]],
            "null": ["any", *self.summary["null_reasons"]],
            "disagreement": ["responses", "judges", "people"],
            "source": self.summary["sources"],
            "sort": [sign + name for name in SORT_COLUMNS for sign in ("", "-")],
        }
        for name, values in choices.items():
            value = getattr(pair_filter, name)
            if value is not None and value not in values:
                raise InputError(f"{name} {value!r}: expected one of {', '.join(values)}")

    def _find_positions(self, pair_filter: PairFilter) -> pa.ChunkedArray:
        sql = pair_filter.sql
        values = dataclasses.asdict(pair_filter).items()
        parameters = {name: value for name, value in values if f"${name}" in sql}
        return self._database.fetch(sql, **parameters)["position"]


@contextmanager
def open_pair_index(
    study: Study, *, run: str | None = None, judge: str | None = None
) -> Iterator[PairIndex]:
    """Open the pairs of a study and their ratings. Every file is checked and read now.

    Args:
        study: The opened study.
        run: Unique prefix of a run's key. None and no ``judge``: all runs.
        judge: Judge of the one run to read, instead of ``run``.

    Raises:
        InputError: The study has no such run or judge, or its pairs have changed.
        EncoreError: A `run.json` is damaged.
    """
    statuses = chosen_statuses(study, run=run, judge=judge)
    null_counts: Counter[str] = Counter()
    for run_status in statuses:
        null_counts.update(null_reasons(run_status))
    files = [path for status in statuses for path in status.paths]
    titles = _rule_titles(statuses)
    tables: dict[str, StudyTable] = {
        f"shard_{number}": (FilePart(paths=(str(path.absolute()),), schema=RATINGS),)
        for number, path in enumerate(files)
    }
    pairs = [str(verified_path(study, source).absolute()) for source in study.sources]
    labels = tables["people"] = _people_table(study)
    tables["pairs"] = (FilePart(paths=tuple(pairs), schema=PAIRS),)
    statements = (
        _enumeration("run_name", [status.manifest.run_key for status in statuses]),
        _enumeration("rule_name", titles),
        _enumeration("null_name", null_counts),
        _sql("texts"),
        _sql("rated"),
        *(_sql("add_shard").format(file=number) for number in range(len(files))),
        _sql("pair_ratings"),
        "drop table rated",
    )
    with open_database(tables, views=statements) as database:
        yield PairIndex(
            database,
            study=study,
            statuses=statuses,
            files=files,
            summary=_summary(study, statuses, titles)
            | {"null_reasons": dict(null_counts), "num_labels": labels.num_rows},
        )


def _summary(
    study: Study, statuses: Sequence[RatingStatus], titles: Mapping[str, str]
) -> dict[str, Any]:
    """Return the facts about a study and its runs that a page shows above the pairs."""
    return {
        "study": study.path.absolute().name,
        "num_pairs": sum(source.num_kept for source in study.sources),
        "sources": [source.label for source in study.sources],
        "runs": _run_summaries(statuses),
        "rules": [{"rule_id": rule_id, "title": title} for rule_id, title in titles.items()],
        "synthetic": [
            *study.synthetic,
            *(part for status in statuses for part in status.manifest.synthetic),
        ],
    }


def _sql(name: str) -> str:
    """Return a statement of the folder `browse_sql` beside this file."""
    return (
        Path(__file__).with_name("browse_sql").joinpath(f"{name}.sql").read_text(encoding="utf-8")
    )


def _people_table(study: Study) -> pa.Table:
    """Return people's labels, each with the range of ratings that are nearest to it."""
    columns = ("source", "pair_id", "response", "rule_id", "label", "low", "high")
    rows = []
    for sample, labels in people_labels(study):
        levels = [*map(float, sample.scale)]
        edges = [-math.inf, *((low + high) / 2 for low, high in pairwise(levels)), math.inf]
        for (source, response_id, rule_id), label in labels.items():
            index = levels.index(label)
            key = (source, *response_id.split(":"), rule_id)
            rows.append(dict(zip(columns, (*key, label, *edges[index : index + 2]), strict=True)))
    schema = [(name, pa.string() if name in columns[:4] else pa.float64()) for name in columns]
    return pa.Table.from_pylist(rows, schema=pa.schema(schema))


def _enumeration(name: str, values: Iterable[str]) -> str:
    return f"create type {name} as enum ({', '.join(map(literal, values)) or literal(_NO_VALUE)})"


def _rule_titles(statuses: Sequence[RatingStatus]) -> dict[str, str]:
    """Return the title of every rule by id, in the order of the rule sets.

    If runs have different titles for a rule, the first run's title is used.
    """
    titles: dict[str, str] = {}
    for run_status in statuses:
        for rule in run_status.manifest.rules:
            titles.setdefault(rule["rule_id"], rule["title"])
    return titles


def _run_summaries(statuses: Sequence[RatingStatus]) -> list[dict[str, Any]]:
    """Return the runs as JSON, named by judge and deviations from the paper's settings.

    Runs with equal names have the beginning of their key appended.
    """
    names = [
        ", ".join(
            (
                JUDGE_NAME if status.manifest.synthetic else status.manifest.judge,
                *status.manifest.deviations,
            )
        )
        for status in statuses
    ]
    return [
        {
            "run_key": (key := status.manifest.run_key),
            "name": name if names.count(name) == 1 else f"{name}, run {key[:8]}",
            "num_pairs": status.manifest.num_pairs,
            "num_shards": len(status.shards),
            "num_missing_shards": len(status.unfinished),
        }
        for status, name in zip(statuses, names, strict=True)
    ]
