"""The same rated studies as for SQL."""

from __future__ import annotations

from tests.tables.sql.conftest import one_run, two_runs

__all__ = ["one_run", "two_runs"]
