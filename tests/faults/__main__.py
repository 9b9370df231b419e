"""Plant faults in a copy of the code, one at a time, and count those that the tests catch.

`python -m tests.faults` plants every fault of `tests/faults/*.toml`; names choose some of them. A
fault replaces `old`, which its file holds exactly once, by `new`. It is caught if one of its
`tests` fails. All faults with `escaped_before` (an earlier suite did not see them) must be caught,
and 90 % of the others.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Literal

from pydantic import BaseModel, ConfigDict

ROOT = Path(__file__).resolve().parents[2]
REQUIRED_SHARE = 0.9

Outcome = Literal["caught", "UNSEEN", "STALE", "BROKEN"]


class Fault(BaseModel):
    """A plausible mistake in the code, and the tests that must catch it.

    Attributes:
        name: The mistake in a few words, unique among all faults.
        file: The file to change, relative to the repository.
        old: Text that the file holds exactly once.
        new: The faulty text that replaces it.
        tests: Ids of the tests to run; the fault is caught if one of them fails.
        escaped_before: True if an earlier suite did not see this fault.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    escaped_before: bool = False


def read_faults() -> list[Fault]:
    """Read all faults of `tests/faults/*.toml`, in the order of the files."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return [
        Fault.model_validate(entry)
        for file in files
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
    ]


def main() -> int:
    """Plant the chosen faults; return exit code 0 if enough of them are caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults to plant; all when none is named")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the code tested at once")
    options = parser.parse_args()
    faults = [f for f in read_faults() if not options.names or f.name in options.names]
    unknown = set(options.names) - {fault.name for fault in faults}
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for number in range(options.jobs):
            copies.put(_copy_code(Path(folder) / str(number)))
        print("Running the tests of all faults on the unchanged code …", flush=True)
        if _run_tests(copies.queue[0], {test: None for fault in faults for test in fault.tests}):
            parser.exit(1, "Some fail before a fault is planted. Mend that first.\n")
        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(lambda fault: _plant(fault, copies), faults))
    return _summary(list(zip(faults, outcomes, strict=True)))


def _copy_code(target: Path) -> Path:
    """Copy every file that git tracks or would add; return the target folder."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    return target


def _plant(fault: Fault, copies: Queue[Path]) -> Outcome:
    """Change one copy, run the fault's tests there, and change the copy back."""
    copy = copies.get()
    started = time.monotonic()
    try:
        file = copy / fault.file
        sound = file.read_text(encoding="utf-8") if file.is_file() else ""
        if sound.count(fault.old) != 1:
            outcome: Outcome = "STALE"
        else:
            file.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
            code = _run_tests(copy, fault.tests)
            outcome = "UNSEEN" if code == 0 else "caught" if code == 1 else "BROKEN"
            file.write_text(sound, encoding="utf-8")
    finally:
        copies.put(copy)
    print(f"{outcome:7} {time.monotonic() - started:5.0f} s  {fault.name}", flush=True)
    return outcome


def _run_tests(copy: Path, tests: Iterable[str]) -> int:
    """Run tests and return pytest's exit code.

    0: all pass. 1: some fail. Any other: pytest could not run them, e.g. an import failed.
    """
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not full"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, check=False
    ).returncode


def _summary(results: list[tuple[Fault, Outcome]]) -> int:
    """Print the counts; return exit code 1 if a fault is stale or too few are caught."""
    escaped = [outcome for fault, outcome in results if fault.escaped_before]
    not_escaped = [outcome for fault, outcome in results if not fault.escaped_before]
    print(f"\n{len(results)} faults planted.")
    print(f"Escaped an earlier suite: {escaped.count('caught')} of {len(escaped)} caught.")
    print(f"Others: {not_escaped.count('caught')} of {len(not_escaped)} caught.")
    is_enough = escaped.count("caught") == len(escaped) and (
        not_escaped.count("caught") >= REQUIRED_SHARE * len(not_escaped)
    )
    is_stale = any(outcome in ("STALE", "BROKEN") for _, outcome in results)
    return 0 if is_enough and not is_stale else 1


if __name__ == "__main__":
    sys.exit(main())
