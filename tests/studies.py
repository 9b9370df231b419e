"""Studies without pairs, for tests of what else a study holds."""

from __future__ import annotations

from pathlib import Path

from encore.data.study import Study, changed_study, open_study


def create_study(path: Path) -> Study:
    """A new study without pairs."""
    with changed_study(path):
        pass
    return open_study(path)
