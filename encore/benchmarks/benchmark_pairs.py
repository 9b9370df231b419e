"""The pairs of a benchmark, read from the hub or from local files and counted before any use."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.benchmarks.benchmark_config import PairsConfig
from encore.benchmarks.definition import Benchmark, load_benchmark
from encore.core.errors import InputError
from encore.data.pairs_manifest import SYNTHETIC_LABEL
from encore.data.records import PreferencePair
from encore.data.sources.hub import resolve_commit, stream_records
from encore.data.sources.local import data_files, read_records
from encore.data.sources.pairs import parse
from encore.data.sources.raw_records import MalformedRecordError, RawRecord

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
    def synthetic(self) -> tuple[str, ...]:
        """The mark of a synthetic benchmark: its name says so."""
        name = self.benchmark.name
        return (f"benchmark {name}",) if name.startswith(SYNTHETIC_LABEL) else ()

    @property
    def keys(self) -> list[tuple[str, str, str]]:
        """Subset, row id and pair id of each pair, in order."""
        ids = (pair.pair_id for pair in self.pairs)
        return list(zip(self.subset_P, self.row_id_P, ids, strict=True))


def configured_pairs(config: PairsConfig) -> BenchmarkPairs:
    """The pairs that a config names (`read_benchmark_pairs`)."""
    benchmark = load_benchmark(config.benchmark)
    return read_benchmark_pairs(benchmark, data=config.data, allow_partial=config.allow_partial)


def read_benchmark_pairs(
    benchmark: Benchmark, *, data: Path | None = None, allow_partial: bool = False
) -> BenchmarkPairs:
    """The benchmark's pairs, after comparing their counts with its definition.

    Rows of other subsets than the definition names are left out. A row is ``prompt`` (text or
    messages), ``chosen`` (text, messages, or a list of one text), ``rejected`` (the same, or a list
    of several texts: one pair each), ``subset`` and ``id``; without ``id`` the row's place counts.

    Args:
        benchmark: What to read.
        data: JSON lines, JSON or Parquet in these columns, or a folder of such files. None: the
            hub, at the benchmark's revision.
        allow_partial: Accept other counts than the definition's: the result is marked as partial.

    Raises:
        InputError: The data cannot be read; a row that is no pair, for example without a rejected
            text; an id twice in a subset; counts that differ, unless allowed.
    """
    place = f"{benchmark.dataset}@{benchmark.revision}" if benchmark.dataset else "no --data"
    where = f"benchmark {benchmark.name}, {place if data is None else data}"
    try:
        rows, num_elsewhere = _read_rows(benchmark, _records(benchmark, data))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if not rows:
        names = ", ".join(one.name for one in benchmark.subsets)
        raise InputError(f"{where}: none of its {num_elsewhere} rows has a subset of it ({names})")
    subset_P, row_id_P, pairs = zip(*rows, strict=True)
    problems = "; ".join(_count_problems(benchmark, Counter(subset_P)))
    if problems and not allow_partial:
        raise InputError(f"{where}: {problems}; get all of it, or allow a part (--allow-partial)")
    notes = [f"partial: {problems}; no figure compares with a published one"] if problems else []
    if num_elsewhere:
        notes.append(f"{num_elsewhere} rows of other subsets are left out")
    if num_repeated := len(pairs) - len({pair.pair_id for pair in pairs}):
        notes.append(
            f"{num_repeated} pairs repeat the texts of another one; each counts, as in the data"
        )
    keys = sorted((subset, row_id, pair.pair_id) for subset, row_id, pair in rows)
    text = "".join("\0".join(key) + "\n" for key in keys)
    return BenchmarkPairs(
        benchmark=benchmark,
        pairs=pairs,
        subset_P=subset_P,
        row_id_P=row_id_P,
        is_partial=bool(problems),
        digest=hashlib.sha256(text.encode()).hexdigest(),
        notes=tuple(notes),
    )


def _read_rows(
    benchmark: Benchmark, records: Iterable[RawRecord]
) -> tuple[list[tuple[str, str, PreferencePair]], int]:
    """Subset, row id and pair of each rejected response, and how many rows are of other subsets."""
    names = {one.name for one in benchmark.subsets}
    rows: list[tuple[str, str, PreferencePair]] = []
    number_of: dict[tuple[str, str], int] = {}
    times_seen: Counter[str] = Counter()
    num_elsewhere = 0
    for number, record in enumerate(records, start=1):
        where, row = f"row {number}", record.value
        if record.problem is not None or not isinstance(row, Mapping):
            raise InputError(f"{where}: {record.problem or 'no object with columns'}; mend it")
        subset = row.get("subset")
        if subset is None and not names:
            subset = ONLY_SUBSET
        if not isinstance(subset, str) or not subset:
            raise InputError(f"{where}: expected a column 'subset' with a name in each row")
        if names and subset not in names:
            num_elsewhere += 1
            continue
        row_id = number if row.get("id") is None else row["id"]
        if type(row_id) not in (int, str):
            raise InputError(f"{where}: id is {row_id!r:.40}, expected a number or text")
        where = f"{where} (subset {subset}, id {row_id})"
        first = number_of.setdefault((subset, str(row_id)), number)
        if first != number:
            raise InputError(f"{where}: row {first} has this id too; expected one row per id")
        for pair in _pairs_of_row(benchmark, row, where=where):
            times_seen[pair.pair_id] += 1
            times = times_seen[pair.pair_id]
            source = pair.source if times == 1 else f"{pair.source}.{times}"
            rows.append((subset, str(row_id), dataclasses.replace(pair, source=source)))
    return rows, num_elsewhere


def _pairs_of_row(
    benchmark: Benchmark, row: Mapping[str, Any], *, where: str
) -> Iterator[PreferencePair]:
    """A pair for each rejected response."""
    chosen, rejected = _responses(row, "chosen"), _responses(row, "rejected")
    wanted = benchmark.rejected_per_row
    if len(chosen) != 1 or len(rejected) != (wanted or max(len(rejected), 1)):
        found = f"{len(chosen)} chosen and {len(rejected)} rejected responses"
        raise InputError(f"{where}: {found}; expected 1 and {wanted or 'at least 1'}")
    for response in rejected:
        texts = {**row, "chosen": chosen[0], "rejected": response}
        try:
            yield parse(texts, source=benchmark.name)
        except MalformedRecordError as error:
            raise InputError(f"{where}: {error.detail}; mend the row") from error


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
    """The files of the split, or all where none is named so; a clone of a repository has data/."""
    if not path.exists():
        raise InputError("no such file or folder; give its columns as JSON or Parquet")
    if (path / "data").is_dir():
        path = path / "data"
    files = data_files(path)
    return [one for one in files if one.name.startswith((f"{split}-", f"{split}."))] or files


def _responses(row: Mapping[str, Any], name: str) -> list[Any]:
    """The responses in a column: several texts, or one as text or as messages."""
    value = row.get(name)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    return [] if value is None else [value]


def _count_problems(benchmark: Benchmark, count: Mapping[str, int]) -> Iterator[str]:
    for subset in benchmark.subsets:
        found, wanted = count.get(subset.name, 0), subset.num_pairs
        if found != (wanted or max(found, 1)):
            yield f"{subset.name} has {found} pairs, expected {wanted or 'some'}"
