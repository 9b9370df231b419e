"""Run the benchmarks of this folder, and write what they print to a page of docs/benchmarks/.

    python -m tests.perf [command_speed analysis_speed …]

The page is named after the processor and the number of cores, so a machine has one page, and a
later run replaces it. Run it on a machine without other work; the page states the load before.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from encore.core.versions import package_versions
from tests.perf import harness

FOLDER = Path("docs/benchmarks")
#: Benchmarks that end within minutes on two cores, with their arguments.
BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "command_speed": (),
    "analysis_speed": ("--millions", "1.4"),
    "scoring_speed": (),
    "train_throughput": (),
    "rating_throughput": ("--num-pairs", "15", "--rounds", "1"),
    "distributed_speed": (),
    "many_shards": ("--shards", "200", "2000"),
}


def main() -> None:
    """Run the benchmarks that the command line names, or all, and write the page."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := sorted(set(names).difference(BENCHMARKS)):
        parser.error(f"{unknown[0]}: no benchmark; expected {', '.join(BENCHMARKS)}")
    processor, num_cores = processor_name(), len(os.sched_getaffinity(0))
    facts = machine_facts(processor, num_cores)
    outputs = {}
    for name in names:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"tests.perf.{name}", *BENCHMARKS[name]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        end = "" if done.returncode == 0 else f"\nended with exit code {done.returncode}"
        outputs[" ".join(command[2:])] = done.stdout.strip("\n") + end
        print(outputs[" ".join(command[2:])], flush=True)
    slug = re.sub(r"[^a-z0-9]+", "-", f"{processor} {num_cores} cores".lower()).strip("-")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{slug}.md").write_text(page(facts, outputs), encoding="utf-8")
    print(f"written: {FOLDER / slug}.md")


def processor_name() -> str:
    """Return the processor's name as the kernel gives it, or the machine's architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    match = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()


def machine_facts(processor: str, num_cores: int) -> dict[str, str]:
    """Return what a reader must know of the machine and the software to compare figures."""
    git = ["git", "describe", "--always", "--abbrev=8", "--dirty", "--exclude=*"]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": subprocess.check_output(git, text=True).strip(),
        "processor": processor,
        "cores": str(num_cores),
        "memory": f"{memory:.0f} GiB",
        "load before (1 minute)": f"{os.getloadavg()[0]:.2f}",
        "versions": ", ".join(f"{name} {version}" for name, version in package_versions().items()),
    }


def page(facts: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    """Return the page as Markdown: the facts as a table, each benchmark's output as it is."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    sections = "".join(f"\n## {name}\n\n```\n{text}\n```\n" for name, text in outputs.items())
    return (
        f"# Measured: {facts['processor']}, {facts['cores']} cores\n\n"
        f"Written by `make perf` on {facts['date']}. "
        f"[Speed](../contributors.md#how-fast-is-it) says how to read it.\n\n"
        f"| | |\n|---|---|\n{rows}\n{sections}"
    )


if __name__ == "__main__":
    main()
