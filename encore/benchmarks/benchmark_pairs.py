"""The pairs of a benchmark, read from the hub or from local files and counted before any use."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.benchmarks.benchmark_options import PairsConfig
from encore.benchmarks.definition import Benchmark, load_benchmark
from encore.core.errors import InputError
from encore.data.pairs_manifest import SYNTHETIC_LABEL
from encore.data.records import PreferencePair
from encore.data.sources.hub import resolve_commit, stream_records
from encore.data.sources.local import data_files, read_records
from encore.data.sources.pairs import parse
from encore.data.sources.raw_records import MalformedRecordError, RawRecord

# Suffix: P pairs.

#: Subset of rows that name none.
ONLY_SUBSET = "all"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BenchmarkPairs:
    """The pairs of a benchmark in the order of their rows.

    Attributes:
        benchmark: Definition of the benchmark.
        pairs: The pairs; those of one row are neighbours. ``source`` is the benchmark's name. If
            the same texts occur again, a number follows, so that (source, pair_id) is unique.
        subset_P: Subset of each pair.
        row_id_P: Id of the row in the data, unique within its subset only. Pairs of equal subset
            and row id are one row: one chosen response and several rejected ones.
        is_partial: True if the counts differ from the benchmark's definition. Every figure from
            such pairs must say so.
        digest: SHA-256 of the sorted (subset, row id, pair id). Independent of the pairs' order.
        notes: Sentences on rows that were left out, are missing or repeated.
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
        """Return the number of pairs, P."""
        return len(self.pairs)

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Return a label if the benchmark is synthetic (its name begins so), else nothing."""
        name = self.benchmark.name
        return (f"benchmark {name}",) if name.startswith(SYNTHETIC_LABEL) else ()

    @property
    def keys(self) -> list[tuple[str, str, str]]:
        """Return the subset, row id and pair id of each pair, in order."""
        ids = (pair.pair_id for pair in self.pairs)
        return list(zip(self.subset_P, self.row_id_P, ids, strict=True))


def configured_pairs(config: PairsConfig) -> BenchmarkPairs:
    """Read the pairs that a config names (`read_benchmark_pairs`)."""
    benchmark = load_benchmark(config.benchmark)
    return read_benchmark_pairs(benchmark, data=config.data, allow_partial=config.allow_partial)


def read_benchmark_pairs(
    benchmark: Benchmark, *, data: Path | None = None, allow_partial: bool = False
) -> BenchmarkPairs:
    """Read the benchmark's pairs and compare their counts with its definition.

    Rows of subsets that the definition does not name are left out. A row has the columns ``prompt``
    (text or messages), ``chosen`` (text, messages, or a list of one text), ``rejected`` (the same,
    or a list of several texts: one pair each), ``subset`` and ``id``. Without ``id``, the row's
    number (from 1) is its id.

    Args:
        benchmark: Definition of the benchmark to read.
        data: JSON lines, JSON or Parquet in these columns, or a folder of such files. None: the
            hub, at the benchmark's revision.
        allow_partial: Accept counts that differ from the definition. The result is then partial.

    Raises:
        InputError: The data cannot be read; a row is no pair, for example without a rejected
            text; an id occurs twice in a subset; counts differ and are not allowed to.
    """
    hub_data = f"{benchmark.dataset}@{benchmark.revision}" if benchmark.dataset else "no --data"
    label = f"benchmark {benchmark.name}, {hub_data if data is None else data}"
    try:
        rows, num_skipped = _read_rows(benchmark, _records(benchmark, data))
    except InputError as error:
        raise InputError(f"{label}: {error}") from error
    if not rows:
        names = ", ".join(subset.name for subset in benchmark.subsets)
        raise InputError(
            f"{label}: none of its {num_skipped} rows has a subset of the benchmark ({names})"
        )
    subset_P, row_id_P, pairs = zip(*rows, strict=True)
    problems = "; ".join(_count_problems(benchmark, Counter(subset_P)))
    if problems and not allow_partial:
        raise InputError(f"{label}: {problems}; get all of it, or allow a part (--allow-partial)")
    notes = [f"partial: {problems}; no figure compares with a published one"] if problems else []
    notes += [f"{num_skipped} rows of other subsets are left out"] if num_skipped else []
    if num_repeated := len(pairs) - len({pair.pair_id for pair in pairs}):
        notes.append(
            f"{num_repeated} pairs repeat the texts of another pair; each counts, as in the data"
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
    """Return subset, row id and pair of each rejected response, and the number of skipped rows."""
    names = {subset.name for subset in benchmark.subsets}
    rows: list[tuple[str, str, PreferencePair]] = []
    number_by_id: dict[tuple[str, str], int] = {}
    times_seen: Counter[str] = Counter()
    num_skipped = 0
    for number, record in enumerate(records, start=1):
        label, row = f"row {number}", record.value
        if record.problem is not None or not isinstance(row, Mapping):
            raise InputError(f"{label}: {record.problem or 'no object with columns'}; correct it")
        subset = row.get("subset")
        if subset is None and not names:
            subset = ONLY_SUBSET
        if not isinstance(subset, str) or not subset:
            raise InputError(f"{label}: expected a column 'subset' with a name in each row")
        if names and subset not in names:
            num_skipped += 1
            continue
        row_id = number if row.get("id") is None else row["id"]
        if type(row_id) not in (int, str):
            raise InputError(f"{label}: id is {row_id!r:.40}, expected a number or text")
        label = f"{label} (subset {subset}, id {row_id})"
        first = number_by_id.setdefault((subset, str(row_id)), number)
        if first != number:
            raise InputError(f"{label}: row {first} has this id too; expected one row per id")
        for pair in _pairs_of_row(benchmark, row, label=label):
            times_seen[pair.pair_id] += 1
            times = times_seen[pair.pair_id]
            source = pair.source if times == 1 else f"{pair.source}.{times}"
            rows.append((subset, str(row_id), dataclasses.replace(pair, source=source)))
    return rows, num_skipped


def _pairs_of_row(
    benchmark: Benchmark, row: Mapping[str, Any], *, label: str
) -> Iterator[PreferencePair]:
    """Yield a pair for each rejected response of a row."""
    chosen, rejected = _responses(row, "chosen"), _responses(row, "rejected")
    num_expected = benchmark.rejected_per_row
    if len(chosen) != 1 or len(rejected) != (num_expected or max(len(rejected), 1)):
        raise InputError(
            f"{label}: {len(chosen)} chosen and {len(rejected)} rejected responses; "
            f"expected 1 and {num_expected or 'at least 1'}"
        )
    for response in rejected:
        texts = {**row, "chosen": chosen[0], "rejected": response}
        try:
            yield parse(texts, source=benchmark.name)
        except MalformedRecordError as error:
            raise InputError(f"{label}: {error.detail}; correct the row") from error


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
        raise InputError(f"{error}, or give local files with --data PATH") from error


def _files(path: Path, *, split: str | None) -> Sequence[Path]:
    """Return the files of the split, or all files if no name begins with the split.

    A clone of a repository on the hub has its files in ``data/``.
    """
    if not path.exists():
        raise InputError("no such file or folder; give its columns as JSON or Parquet")
    if (path / "data").is_dir():
        path = path / "data"
    files = data_files(path)
    return [file for file in files if file.name.startswith((f"{split}-", f"{split}."))] or files


def _responses(row: Mapping[str, Any], name: str) -> list[Any]:
    """Return the responses in a column: a list of texts, or one text or conversation."""
    value = row.get(name)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return value
    return [] if value is None else [value]


def _count_problems(benchmark: Benchmark, count: Mapping[str, int]) -> Iterator[str]:
    for subset in benchmark.subsets:
        num_pairs, num_expected = count.get(subset.name, 0), subset.num_pairs
        if num_pairs != (num_expected or max(num_pairs, 1)):
            yield f"{subset.name} has {num_pairs} pairs, expected {num_expected or 'at least 1'}"
