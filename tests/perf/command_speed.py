"""Measure the start of commands, and the speed and memory of `encore ingest`.

    python -m tests.perf.command_speed [--pairs 30000 100000] [--rounds 5]

Each measurement is a new process; its peak memory is the kernel's figure. Imports bound the start;
parsing and digesting every record, in one thread, bound `ingest`.
"""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.perf import harness

WORDS = tuple(f"word{number}" for number in range(5000))
COMMANDS = ("--help", "--version", "train --help", "analyze --help")


def main() -> None:
    """Measure and print the tables."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("--pairs", type=int, nargs="*", default=[30_000, 100_000])
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of the commands that only start"
    )
    options = parser.parse_args()
    sides = {
        command: partial(harness.run_python, "-m", "encore.cli", *command.split())
        for command in COMMANDS
    }
    rows = [
        {
            "command": f"encore {name}",
            "seconds": harness.median_and_range([seconds for _, seconds, _ in results]),
        }
        for name, results in harness.measure_in_turn(sides, rounds=options.rounds).items()
    ]
    harness.print_table("start", rows)
    for kind in (".jsonl", ".jsonl.gz", ".parquet") if options.pairs else ():
        harness.print_table(
            f"encore ingest, {kind}", [_ingest(kind, count) for count in options.pairs]
        )


def _ingest(kind: str, num_pairs: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        source, study = Path(folder) / f"pairs{kind}", Path(folder) / "study"
        write_pairs(source, num_pairs)
        text, seconds, peak_mib = harness.run_python(
            *("-m", "encore.cli", "ingest", study, f"p={source}", "--json")
        )
        size_mib = source.stat().st_size / 2**20
    (label,) = json.loads(text)["sources"]
    assert label["num_read"] == num_pairs == label["num_kept"] + label["num_duplicates"]
    return {
        "pairs": f"{num_pairs:,}",
        "file MiB": size_mib,
        "seconds": seconds,
        "pairs/s": num_pairs / seconds,
        "peak MiB": peak_mib,
    }


def write_pairs(path: Path, num_pairs: int) -> None:
    """Write pairs of about 2 KB each, one in fifty repeated; the suffix decides the format."""
    generator = random.Random(0)
    records: list[dict[str, str]] = []
    for number in range(num_pairs):
        if number and generator.random() < 0.02:
            records.append(records[-1])
            continue
        prompt, chosen, rejected = (" ".join(generator.choices(WORDS, k=k)) for k in (40, 90, 90))
        records.append({"prompt": f"{number} {prompt}", "chosen": chosen, "rejected": rejected})
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=1000)
        return
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(lines, 1) if path.suffix == ".gz" else lines)


if __name__ == "__main__":
    main()
