"""Find the pairs that a filter leaves, page by page, in a locked DuckDB in memory.

What bounds it. Opening reads every finished shard once. A filter scans one row for each rating of a
pair (its two responses under one rule in one run) and has its pairs remembered, so turning a page
looks up `PAGE_SIZE` pairs and nothing else. A search scans the texts of all pairs. One pair opened
reads the one shard of each run that holds it. Memory: the texts, and 30 bytes a rated pair and
rule. With 70,000 pairs, 20 rules and 3 runs (8.4 million ratings) on 2 cores: 12 s to open, 0.1 s
for a filter, 0.5 s for a search, 0.05 s for a page, 0.1 s for a pair; 0.9 GB of memory.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.core.errors import EncoreError, InputError
from encore.data.pairs import records_of, verified_path
from encore.data.rating_runs import RatingStatus, null_reasons, status
from encore.data.schemas import PAIRS, RATINGS
from encore.data.study import Study
from encore.demo import JUDGE_NAME
from encore.tables.pair_details import pair_in_files
from encore.tables.study_database import FilePart, StudyDatabase, StudyTable, literal, open_database
from encore.warehouse.ratings import select_run

PAGE_SIZE = 50
#: Of the message that a response answers, in a list.
_EXCERPT_CHARACTERS = 300
_REMEMBERED_FILTERS = 32
#: Stands in an enumeration that would have no value.
_NO_VALUE = "-"

_IN_TEXTS = """
starts_with(pair_id, lower($text)) or contains(lower(chosen), lower($text))
or contains(lower(rejected), lower($text))
or contains(lower(array_to_string([turn.content for turn in prompt], chr(10))), lower($text))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFilter:
    """Which pairs are listed; what is said of ratings holds for one rule in one run.

    Attributes:
        rule: Rated under this rule.
        run: Rated in this run.
        null: ``any``, or the reason why a rating of one of the responses is null.
        disagreement: ``responses``: chosen is rated below rejected. ``judges``: another run prefers
            the other response. The largest differences come first.
        source: Of this source.
        text: In the conversation or a response, in any case; or the beginning of the pair id.
    """

    rule: str | None = None
    run: str | None = None
    null: str | None = None
    disagreement: str | None = None
    source: str | None = None
    text: str | None = None

    @property
    def sql(self) -> str:
        """The places of these pairs; each attribute that is given is a parameter."""
        is_null = "$null in (chosen_null::varchar, rejected_null::varchar)"
        if self.null == "any":
            is_null = "(chosen is null or rejected is null)"
        disagrees, difference = {
            None: ("true", "0"),
            "responses": ("chosen < rejected", "rejected - chosen"),
            "judges": ("spread is not null", "spread"),
        }[self.disagreement]
        of_ratings = {
            "rule": "rule = $rule::rule_name",
            "run": "run = $run::run_name",
            "null": is_null,
            "disagreement": disagrees,
        }
        of_texts = {"source": "source = $source", "text": f"({_IN_TEXTS})"}
        rated = [condition for name, condition in of_ratings.items() if getattr(self, name)]
        there = [condition for name, condition in of_texts.items() if getattr(self, name)]
        if not rated:
            return f"select place from texts where {' and '.join(there) or 'true'} order by place"  # noqa: S608 - our own text
        if there:
            rated.append(f"place in (select place from texts where {' and '.join(there)})")  # noqa: S608 - our own text
        return (
            f"select place from pair_ratings where {' and '.join(rated)} group by place "  # noqa: S608 - our own text
            f"order by round(max({difference}), 9) desc, place"  # equal but for their last digit
        )


class PairIndex:
    """The pairs of a study and their ratings in finished shards. Get one from `open_pair_index`.

    It shows the study as it was when it was opened. Any thread may call it.
    """

    def __init__(
        self,
        database: StudyDatabase,
        *,
        study: Study,
        statuses: Sequence[RatingStatus],
        null_counts: Mapping[str, int],
    ) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._statuses = statuses
        self._files = _shard_files(statuses)
        self._places = lru_cache(_REMEMBERED_FILTERS)(self._found_places)
        #: What there is to choose from, how much of it, and what of it is synthetic: JSON values.
        self.summary = _summary(study, statuses, null_counts)

    def page(self, wanted: PairFilter, *, number: int = 1) -> dict[str, Any]:
        """A page of the pairs that a filter leaves, each with its figures in every run.

        Figures are means over the rules, or are of the filter's rule.

        Args:
            wanted: The filter.
            number: The page's, from 1.

        Raises:
            InputError: The filter names what the study does not have.
        """
        self._check(wanted)
        with self._lock:
            found = self._places(wanted)
            places = found[(number - 1) * PAGE_SIZE : number * PAGE_SIZE].to_pylist()
            rows = self._database.fetch(
                _sql("page"), places=places, rule=wanted.rule, excerpt=_EXCERPT_CHARACTERS
            )
        return {
            "num_pairs": len(found),
            "num_pages": -(-len(found) // PAGE_SIZE),
            "page": number,
            "page_size": PAGE_SIZE,
            "rows": rows.to_pylist(),
        }

    def pair(self, place: int) -> dict[str, Any]:
        """One pair whole: its texts and, for every run, ratings with prompts and replies.

        Raises:
            InputError: No such pair.
            EncoreError: A shard cannot be read any more.
        """
        if place >= self.summary["num_pairs"]:
            raise InputError(f"pair {str(place)[:20]}: the study has no such pair")
        with self._lock:
            texts = self._database.fetch("from texts where place = $place", place=place)
            numbers = self._database.fetch(
                "select distinct file from pair_ratings where place = $place", place=place
            )
        (pair,) = records_of(texts.select(PAIRS.names))
        paths = [self._files[number] for number in numbers["file"].to_pylist()]
        try:
            in_runs = [
                pair_in_files(
                    pair, found.manifest, [path for path in paths if path.parent == found.run_dir]
                )
                for found in self._statuses
            ]
        except (OSError, pa.ArrowException) as error:
            raise EncoreError(
                f"pair {pair.pair_id}: its shard cannot be read ({error}); start `encore browse` "
                "again"
            ) from error
        return {**dataclasses.asdict(pair), "place": place, "runs": in_runs}

    def _check(self, wanted: PairFilter) -> None:
        known: Mapping[str, Iterable[str]] = {
            "rule": [rule["rule_id"] for rule in self.summary["rules"]],
            "run": [run["run_key"] for run in self.summary["runs"]],
            "null": ["any", *self.summary["null_reasons"]],
            "disagreement": ["responses", "judges"],
            "source": self.summary["sources"],
        }
        for name, values in known.items():
            value = getattr(wanted, name)
            if value is not None and value not in values:
                raise InputError(f"{name} {value!r}: expected one of {', '.join(values)}")

    def _found_places(self, wanted: PairFilter) -> pa.ChunkedArray:
        given = dataclasses.asdict(wanted).items()
        parameters = {name: value for name, value in given if f"${name}" in wanted.sql}
        return self._database.fetch(wanted.sql, **parameters)["place"]


@contextmanager
def open_pair_index(
    study: Study, *, run: str | None = None, judge: str | None = None
) -> Iterator[PairIndex]:
    """The pairs of a study and their ratings; every file is checked and read now.

    Args:
        study: The study.
        run: Only this run, by a unique prefix of its key.
        judge: Only the run of this judge.

    Raises:
        InputError: No ratings yet; no such run or judge; changed pairs.
        EncoreError: A damaged `run.json`.
    """
    statuses = status(study)
    if not statuses or run is not None or judge is not None:
        run_dirs = tuple(found.run_dir for found in statuses)
        chosen = select_run(study.path, run_dirs, run=run, judge=judge)
        statuses = tuple(found for found in statuses if found.run_dir == chosen)
    null_counts: Counter[str] = Counter()
    for found in statuses:
        null_counts.update(null_reasons(found))
    files = _shard_files(statuses)
    tables: dict[str, StudyTable] = {
        f"shard_{number}": (FilePart(paths=(str(path.absolute()),), schema=RATINGS),)
        for number, path in enumerate(files)
    }
    pairs = [str(verified_path(study, source).absolute()) for source in study.sources]
    tables["pairs"] = (FilePart(paths=tuple(pairs), schema=PAIRS),)
    statements = (
        _enumeration("run_name", [found.manifest.run_key for found in statuses]),
        _enumeration("rule_name", _rule_titles(statuses)),
        _enumeration("null_name", null_counts),
        _sql("texts"),
        _sql("rated"),
        *(_sql("add_shard").format(file=number) for number in range(len(files))),
        _sql("pair_ratings"),
        "drop table rated",
    )
    with open_database(tables, views=statements) as database:
        yield PairIndex(database, study=study, statuses=statuses, null_counts=null_counts)


def _sql(name: str) -> str:
    """A statement of the folder `sql` beside this file."""
    return (
        Path(__file__).with_name("browse_sql").joinpath(f"{name}.sql").read_text(encoding="utf-8")
    )


def _enumeration(name: str, values: Iterable[str]) -> str:
    return f"create type {name} as enum ({', '.join(map(literal, values)) or literal(_NO_VALUE)})"


def _shard_files(statuses: Sequence[RatingStatus]) -> tuple[Path, ...]:
    return tuple(path for found in statuses for path in found.paths)


def _rule_titles(statuses: Sequence[RatingStatus]) -> dict[str, str]:
    """The rules of all runs by id, in the order of the rule sets; the first run's title counts."""
    titles: dict[str, str] = {}
    for found in statuses:
        for rule in found.manifest.rules:
            titles.setdefault(rule["rule_id"], rule["title"])
    return titles


def _run_names(statuses: Sequence[RatingStatus]) -> list[str]:
    """What runs are called: judge, and layout and decoding where they are not the paper's.

    Runs that would share a name have the beginning of their key too.
    """
    names = []
    for found in statuses:
        judge = JUDGE_NAME if found.manifest.synthetic else found.manifest.judge
        names.append(", ".join((judge, *found.manifest.deviations)))
    return [
        name if names.count(name) == 1 else f"{name}, run {found.manifest.run_key[:8]}"
        for found, name in zip(statuses, names, strict=True)
    ]


def _summary(
    study: Study, statuses: Sequence[RatingStatus], null_counts: Mapping[str, int]
) -> dict[str, Any]:
    of_runs = (part for status in statuses for part in status.manifest.synthetic)
    runs = [
        {
            "run_key": found.manifest.run_key,
            "name": name,
            "num_pairs": found.manifest.num_pairs,
            "num_shards": len(found.shards),
            "num_missing_shards": len(found.unfinished),
        }
        for found, name in zip(statuses, _run_names(statuses), strict=True)
    ]
    titles = _rule_titles(statuses)
    return {
        "study": study.path.absolute().name,
        "num_pairs": sum(source.num_kept for source in study.sources),
        "sources": [source.label for source in study.sources],
        "runs": runs,
        "rules": [{"rule_id": rule_id, "title": title} for rule_id, title in titles.items()],
        "null_reasons": dict(null_counts),
        "synthetic": [*study.synthetic, *of_runs],
    }
