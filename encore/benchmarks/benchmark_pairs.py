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
from encore.benchmarks.ties_score import REFERENCE, TIED
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
    def prompt_ids(self) -> list[str]:
        """Return a digest of the prompt of each pair, in order."""
        texts = (repr(pair.prompt) for pair in self.pairs)
        return [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts]

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
    number (from 1) is its id. A row of RewardBench 2's Ties has several chosen texts; its pairs
    contain every text at least once. A row of RM-Bench has ``domain``; its nine pairs belong to the
    domain's subsets hard, normal and easy.

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
    rows_by_subset = Counter(subset for subset, _ in {(part, row_id) for part, row_id, _ in rows})
    problems = "; ".join(_count_problems(benchmark, Counter(subset_P), rows_by_subset))
    if problems and not allow_partial:
        raise InputError(f"{label}: {problems}; get all of it, or allow a part (--allow-partial)")
    keys = sorted((subset, row_id, pair.pair_id) for subset, row_id, pair in rows)
    text = "".join("\0".join(key) + "\n" for key in keys)
    return BenchmarkPairs(
        benchmark=benchmark,
        pairs=pairs,
        subset_P=subset_P,
        row_id_P=row_id_P,
        is_partial=bool(problems),
        digest=hashlib.sha256(text.encode()).hexdigest(),
        notes=tuple(_notes(pairs, problems, num_skipped=num_skipped)),
    )


def _notes(pairs: Sequence[PreferencePair], problems: str, *, num_skipped: int) -> Iterator[str]:
    """Yield sentences on what the pairs lack, leave out or repeat."""
    if problems:
        yield f"partial: {problems}; no figure compares with a published one"
    if num_skipped:
        yield f"{num_skipped} rows of other subsets are left out"
    if num_repeated := len(pairs) - len({pair.pair_id for pair in pairs}):
        yield f"{num_repeated} pairs repeat the texts of another pair; each counts, as in the data"


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
        column = "domain" if benchmark.columns == "rm-bench" else "subset"
        subset = row.get(column)
        if subset is None and not names:
            subset = ONLY_SUBSET
        if not isinstance(subset, str) or not subset:
            raise InputError(f"{label}: expected a column {column!r} with a name in each row")
        if names and names.isdisjoint(_subsets(benchmark, subset)):
            num_skipped += 1
            continue
        row_id = number if row.get("id") is None else row["id"]
        if type(row_id) not in (int, str):
            raise InputError(f"{label}: id is {row_id!r:.40}, expected a number or text")
        label = f"{label} ({column} {subset}, id {row_id})"
        first = number_by_id.setdefault((subset, str(row_id)), number)
        if first != number:
            raise InputError(f"{label}: row {first} has this id too; expected one row per id")
        if benchmark.columns == "rm-bench":
            row_id = f"{subset}/{row_id}"  # domains that share a subset may share ids
        for part, pair in _pairs_of_row(benchmark, row, subset, str(row_id), label=label):
            times_seen[pair.pair_id] += 1
            times = times_seen[pair.pair_id]
            source = pair.source if times == 1 else f"{pair.source}.{times}"
            rows.append((part, str(row_id), dataclasses.replace(pair, source=source)))
    return rows, num_skipped


def _subsets(benchmark: Benchmark, name: str) -> tuple[str, ...]:
    """Return the subsets of a row: one, or those of a domain of RM-Bench, the hardest first."""
    if benchmark.columns == "rewardbench":
        return (name,)
    domain = name.partition("-")[0]  # safety-refuse and safety-response are one domain
    return tuple(f"{domain} {difficulty}" for difficulty in ("hard", "normal", "easy"))


def _pairs_of_row(
    benchmark: Benchmark, row: Mapping[str, Any], subset: str, row_id: str, *, label: str
) -> Iterator[tuple[str, PreferencePair]]:
    """Yield subset and pair for each rejected response of a row, or for several chosen ones."""
    chosen, rejected = _responses(row, "chosen"), _responses(row, "rejected")
    num_chosen, num_rejected = len(chosen), len(rejected)
    subsets = _subsets(benchmark, subset)
    if benchmark.columns == "rm-bench":
        is_right, expected = num_chosen == num_rejected == 3, "3 and 3"
        indices = [(first, second) for first in range(num_chosen) for second in range(num_rejected)]
        # The plain chosen response against an elaborate rejected one is hard.
        parts = [subsets[1 + (first > second) - (first < second)] for first, second in indices]
    else:
        # Pairs that contain every response: rewards follow from them.
        num_pairs = max(num_chosen, num_rejected)
        is_right = num_chosen == 1 and num_rejected == (benchmark.rejected_per_row or num_pairs)
        expected = f"1 and {benchmark.rejected_per_row or 'at least 1'}"
        if benchmark.scoring.get(subset) == "ties":
            if not row_id.startswith((REFERENCE, TIED)):
                raise InputError(f"{label}: expected an id ref:N or tied:N")
            least = 2 if row_id.startswith(TIED) else 1
            is_right, expected = num_chosen >= least, f"at least {least} and at least 1"
        is_right &= num_rejected > 0
        indices = [(n % num_chosen, n % num_rejected) for n in range(num_pairs) if is_right]
        parts = [subset] * len(indices)
    if not is_right:
        raise InputError(
            f"{label}: {num_chosen} chosen and {num_rejected} rejected responses; "
            f"expected {expected}"
        )
    if num_chosen > 1 and not set(chosen).isdisjoint(rejected):
        raise InputError(f"{label}: a chosen and a rejected response are the same text")
    for part, (first, second) in zip(parts, indices, strict=True):
        texts = {**row, "chosen": chosen[first], "rejected": rejected[second]}
        try:
            yield part, parse(texts, source=benchmark.name)
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


def _count_problems(
    benchmark: Benchmark, count: Mapping[str, int], rows_by_subset: Mapping[str, int]
) -> Iterator[str]:
    for subset in benchmark.subsets:
        num_rows = rows_by_subset.get(subset.name, 0)
        if num_rows != (subset.num_rows or num_rows):
            yield f"{subset.name} has {num_rows} rows, expected {subset.num_rows}"
            continue
        num_pairs, num_expected = count.get(subset.name, 0), subset.num_pairs
        if num_pairs != (num_expected or max(num_pairs, 1)):
            yield f"{subset.name} has {num_pairs} pairs, expected {num_expected or 'at least 1'}"
