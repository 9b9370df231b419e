"""Run commands in this process as if only the core's packages were installed.

``python -m tests.cli.core_only`` reads JSON from standard input: modules that cannot be imported,
and argument lists. It writes the exit code, the output and the error of each call as JSON.
"""

from __future__ import annotations

import json
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from tests.golden.command_line import encore

_ABSENT: set[str] = set()


class _CoreFinder(PathFinder):
    """Finder of modules that are not absent."""

    @classmethod
    def find_spec(cls, fullname: str, *arguments: Any, **keywords: Any) -> ModuleSpec | None:
        """Return nothing for an absent module, as if it were not installed."""
        is_absent = fullname.partition(".")[0] in _ABSENT
        return None if is_absent else super().find_spec(fullname, *arguments, **keywords)


def main() -> None:
    """Run the calls; an exception that leaves a command is reported as exit code -1."""
    request = json.load(sys.stdin)
    _ABSENT.update(request["absent"])
    sys.meta_path[sys.meta_path.index(PathFinder)] = _CoreFinder
    results = []
    for arguments in request["calls"]:
        try:
            finished = encore(*arguments)
            results.append([finished.code, finished.out, finished.err])
        except Exception:  # noqa: BLE001 - what a user would see as a traceback
            results.append([-1, "", traceback.format_exc()])
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
