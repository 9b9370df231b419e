"""The pairs of a benchmark, read from the hub or from local files and counted before any use."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encore.benchmarks.definition import Benchmark
from encore.data.records import PreferencePair
from encore.data.sources.hub import resolve_commit, stream_records
from encore.data.sources.local import data_files, data_suffix, read_records
from encore.data.sources.pairs import parse
from encore.data.sources.raw_records import MalformedRecordError, RawRecord
from encore.errors import InputError

# Suffix: P pairs.

#: What a row without a subset belongs to.
ONLY_SUBSET = "all"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BenchmarkPairs:
    """The pairs of a benchmark in the order of their rows.

    Attributes:
        benchmark: What they are pairs of.
        pairs: The pairs of one row stand together. ``source`` is the benchmark's name; texts that
            occur in several rows get a number after it, so that (source, pair_id) is unique.
        subset_P: Subset of each pair.
        row_id_P: The row's id in the data, unique within its subset only. Pairs of equal subset
            and row id are one row: one chosen response and several rejected ones.
        is_partial: Whether the counts differ from the benchmark's definition. Every figure from
            such pairs has to say so.
        digest: SHA-256 over the sorted (subset, row id, pair id): the same for every order.
        notes: Plain sentences on what was left out, is missing or repeated.
    """

    benchmark: Benchmark
    pairs: tuple[PreferencePair, ...]
    subset_P: tuple[str, ...]
    row_id_P: tuple[str, ...]
    is_partial: bool
    digest: str
    notes: tuple[str, ...]

    @property
    def num_pairs(self) -> int:
        """P."""
        return len(self.pairs)

    @property
    def keys(self) -> list[tuple[str, str, str]]:
        """Subset, row id and pair id of each pair, in order."""
        ids = (pair.pair_id for pair in self.pairs)
        return list(zip(self.subset_P, self.row_id_P, ids, strict=True))


def read_benchmark_pairs(
    benchmark: Benchmark, *, data: Path | None = None, allow_partial: bool = False
) -> BenchmarkPairs:
    """The benchmark's pairs, after comparing their counts with its definition.

    Rows of other subsets than the definition names are left out. A row is ``prompt`` (text or
    messages), ``chosen`` (text, messages, or a list of one text), ``rejected`` (the same, or a list
    of several texts: one pair each), ``subset`` and ``id``; without ``id`` the row's place counts.

    Args:
        benchmark: What to read.
        data: JSON lines, JSON or Parquet in these columns, or a folder of such files (of its
            ``data`` folder, and of the benchmark's split, where names say so). None: the hub, at
            the benchmark's revision.
        allow_partial: Accept other counts than the definition's: the result is marked as partial.

    Raises:
        InputError: The data cannot be read; a row that is no pair, for example without a rejected
            text; an id twice in a subset; counts that differ, unless allowed.
    """
    place = f"{benchmark.dataset}@{benchmark.revision}" if benchmark.dataset else "no --data"
    where = f"benchmark {benchmark.name}, {place if data is None else data}"
    rows = _Rows(benchmark)
    try:
        for record in _records(benchmark, data):
            rows.add(record)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    names = [one.name for one in benchmark.subsets]
    if not rows.pairs:
        raise InputError(
            f"{where}: none of its {rows.num_seen} rows has a subset of it ({', '.join(names)})"
        )
    problems = "; ".join(_count_problems(benchmark, Counter(rows.subset_P)))
    if problems and not allow_partial:
        raise InputError(
            f"{where}: {problems}; get the whole data set, or allow a part of it (--allow-partial)"
        )
    ids = (pair.pair_id for pair in rows.pairs)
    lines = sorted(zip(rows.subset_P, rows.row_id_P, ids, strict=True))
    text = "".join("\0".join(key) + "\n" for key in lines)
    return BenchmarkPairs(
        benchmark=benchmark,
        pairs=tuple(rows.pairs),
        subset_P=tuple(rows.subset_P),
        row_id_P=tuple(rows.row_id_P),
        is_partial=bool(problems),
        digest=hashlib.sha256(text.encode()).hexdigest(),
        notes=tuple(rows.notes(problems)),
    )


@dataclass(slots=True)
class _Rows:
    """Rows on their way to `BenchmarkPairs`."""

    benchmark: Benchmark
    pairs: list[PreferencePair] = field(default_factory=list)
    subset_P: list[str] = field(default_factory=list)
    row_id_P: list[str] = field(default_factory=list)
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    num_seen: int = 0
    num_elsewhere: int = 0
    times_seen: Counter[str] = field(default_factory=Counter)

    def add(self, record: RawRecord) -> None:
        """Take a record's pairs, one for each rejected response, or leave another subset's out."""
        self.num_seen += 1
        where, row = f"row {self.num_seen}", record.value
        if record.problem is not None or not isinstance(row, Mapping):
            raise InputError(f"{where}: {record.problem or 'no object with columns'}; mend it")
        names = {one.name for one in self.benchmark.subsets}
        subset = row.get("subset")
        if subset is None and not names:
            subset = ONLY_SUBSET
        if not isinstance(subset, str) or not subset:
            raise InputError(f"{where}: expected a column 'subset' with a name in each row")
        if names and subset not in names:
            self.num_elsewhere += 1
            return
        row_id = row.get("id")
        if row_id is None:
            row_id = self.num_seen
        elif isinstance(row_id, bool) or not isinstance(row_id, int | str):
            raise InputError(f"{where}: id is {row_id!r:.40}, expected a number or text")
        where = f"{where} (subset {subset}, id {row_id})"
        first = self.places.setdefault((subset, str(row_id)), self.num_seen)
        if first != self.num_seen:
            raise InputError(f"{where}: row {first} has this id too; expected one row per id")
        for pair in self._pairs(row, where=where):
            self.pairs.append(pair)
            self.subset_P.append(subset)
            self.row_id_P.append(str(row_id))

    def _pairs(self, row: Mapping[str, Any], *, where: str) -> Iterator[PreferencePair]:
        chosen, rejected = _responses(row, "chosen"), _responses(row, "rejected")
        name, wanted = self.benchmark.name, self.benchmark.rejected_per_row
        if len(chosen) != 1 or len(rejected) != (wanted or max(len(rejected), 1)):
            found = f"{len(chosen)} chosen and {len(rejected)} rejected responses"
            raise InputError(f"{where}: {found}; expected 1 and {wanted or 'at least 1'}")
        for response in rejected:
            texts = {**row, "chosen": chosen[0], "rejected": response}
            try:
                pair = parse(texts, source=name)
            except MalformedRecordError as error:
                raise InputError(f"{where}: {error.detail}; mend the row") from error
            self.times_seen[pair.pair_id] += 1
            times = self.times_seen[pair.pair_id]
            yield pair if times == 1 else dataclasses.replace(pair, source=f"{name}.{times}")

    def notes(self, problems: str) -> Iterator[str]:
        """What was left out, is missing or repeated."""
        if problems:
            yield f"partial: {problems}"
        if self.num_elsewhere:
            yield f"{self.num_elsewhere} rows of other subsets are left out"
        if repeated := len(self.pairs) - len(self.times_seen):
            yield f"{repeated} pairs repeat the texts of another one; each counts, as in the data"


def _records(benchmark: Benchmark, data: Path | None) -> Iterator[RawRecord]:
    if data is not None:
        for file in _files(data, split=benchmark.split):
            yield from read_records(file)
        return
    if benchmark.dataset is None or benchmark.split is None:
        raise InputError("it names no data set on the hub; give its rows with --data")
    try:
        commit = resolve_commit(benchmark.dataset, benchmark.revision)
        yield from stream_records(benchmark.dataset, revision=commit, split=benchmark.split)
    except InputError as error:
        raise InputError(f"{error}; here: --data PATH") from error


def _files(path: Path, *, split: str | None) -> Sequence[Path]:
    if not path.exists():
        raise InputError("no such file or folder; give RewardBench's columns as JSON or Parquet")
    if path.is_dir() and (path / "data").is_dir():
        path = path / "data"  # a clone of a hub repository
    files = data_files(path)
    stems = {file: file.name.removesuffix(data_suffix(file) or "") for file in files}
    return [one for one in files if split and f"{stems[one]}-".startswith(f"{split}-")] or files


def _responses(row: Mapping[str, Any], name: str) -> list[Any]:
    """The responses in a column: several texts, or one as text or as messages."""
    value = row.get(name)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    return [] if value is None else [value]


def _count_problems(benchmark: Benchmark, count: Mapping[str, int]) -> Iterator[str]:
    for subset in benchmark.subsets:
        found, wanted = count.get(subset.name, 0), subset.num_pairs
        if not found:
            yield f"{subset.name} is missing" + (f" ({wanted} pairs)" if wanted else "")
        elif wanted is not None and found != wanted:
            yield f"{subset.name} has {found} pairs, not {wanted}"
