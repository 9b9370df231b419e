"""Does the memory of `encore ingest` stay the same when there are three times as many pairs?

Not a test with a time limit: it prints a table. Run it as `python -m tests.perf.ingest_memory`.
Each measurement is a process of its own; peak resident memory is what the kernel recorded for it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_WORDS = tuple(f"word{number}" for number in range(5000))
_ROWS_PER_GROUP = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One ingest of ``num_pairs`` pairs in one kind of file."""

    kind: str
    num_pairs: int
    file_mib: float
    seconds: float
    peak_mib: float


def synthetic_pairs(num_pairs: int, *, seed: int) -> Iterator[dict[str, str]]:
    """Pairs of about 2 KB of text each; one in fifty repeats the one before."""
    chance = random.Random(seed)
    record: dict[str, str] = {}
    for number in range(num_pairs):
        if number == 0 or chance.random() > 0.02:
            prompt, chosen, rejected = (" ".join(chance.choices(_WORDS, k=k)) for k in (40, 90, 90))
            record = {"prompt": f"{number} {prompt}", "chosen": chosen, "rejected": rejected}
        yield record


def write_file(path: Path, num_pairs: int) -> None:
    """The pairs as JSON lines, compressed JSON lines or Parquet, as the name says."""
    pairs = synthetic_pairs(num_pairs, seed=0)
    if path.suffix == ".parquet":
        schema = pa.schema([(name, pa.string()) for name in ("prompt", "chosen", "rejected")])
        with pq.ParquetWriter(path, schema) as writer:
            for start in range(0, num_pairs, _ROWS_PER_GROUP):
                rows = [next(pairs) for _ in range(min(_ROWS_PER_GROUP, num_pairs - start))]
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        return
    lines = (json.dumps(pair).encode() + b"\n" for pair in pairs)
    with path.open("wb") as plain:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=plain, mode="wb", compresslevel=1) as compressed:
                compressed.writelines(lines)
        else:
            plain.writelines(lines)


def measure(kind: str, num_pairs: int, *, folder: Path) -> Measured:
    """Ingest freshly written pairs in a child process."""
    source, study = folder / f"{num_pairs}{kind}", folder / f"study-{num_pairs}{kind}"
    write_file(source, num_pairs)
    command = [
        sys.executable,
        "-m",
        "encore.cli",
        "ingest",
        f"p={source}",
        "--out",
        str(study),
        "--json",
    ]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.read())
        # Of this one child, where getrusage would give the largest of all so far.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    assert process.returncode == 0
    (label,) = report["sources"]
    assert label["num_read"] == num_pairs == label["num_kept"] + label["num_duplicates"]
    unit = 1 if sys.platform == "darwin" else 1024
    return Measured(
        kind=kind,
        num_pairs=num_pairs,
        file_mib=source.stat().st_size / 2**20,
        seconds=seconds,
        peak_mib=usage.ru_maxrss * unit / 2**20,
    )


def main() -> None:
    """Measure every kind of file at every size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 300_000])
    parser.add_argument("--kinds", nargs="+", default=[".jsonl", ".jsonl.gz", ".parquet"])
    options = parser.parse_args()
    print(f"{'file':<10} {'pairs':>9} {'MiB':>8} {'seconds':>8} {'pairs/s':>9} {'peak MiB':>9}")
    for kind in options.kinds:
        for num_pairs in options.pairs:
            with tempfile.TemporaryDirectory() as folder:
                one = measure(kind, num_pairs, folder=Path(folder))
            print(
                f"{one.kind:<10} {one.num_pairs:>9,} {one.file_mib:>8.0f} {one.seconds:>8.1f} "
                f"{one.num_pairs / one.seconds:>9,.0f} {one.peak_mib:>9.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
