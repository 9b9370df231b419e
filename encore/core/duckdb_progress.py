"""Keep DuckDB's progress bar off standard output."""

from __future__ import annotations

from typing import Any


def hide_progress_bar(connection: Any) -> None:
    """Switch off the progress bar of a DuckDB connection, if it is on.

    A Jupyter kernel without ipywidgets has no bar, and DuckDB refuses to switch it off there.
    """
    [(is_shown,)] = connection.execute("select current_setting('enable_progress_bar')").fetchall()
    if is_shown:
        connection.execute("set enable_progress_bar = false")
