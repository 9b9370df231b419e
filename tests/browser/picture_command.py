"""The command line of a script that takes pictures of an MLflow store's pages."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.browser.chromium import Page, browser_page
from tests.mlflow_server import mlflow_server

#: Given a page, the server's URL, the store's URI and the folder for pictures.
TakePictures = Callable[[Page, str, str, Path], None]


def run_picture_command(about: str | None, arguments: Sequence[str], take: TakePictures) -> None:
    """Parse ``STORE TO``, serve the store, have the pictures taken."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("store", type=Path, help="an MLflow store, e.g. demo-study/mlflow.db")
    parser.add_argument("to", type=Path, help="folder for the pictures")
    chosen = parser.parse_args(arguments)
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("needs Chromium (Debian: apt install chromium)")
    uri = f"sqlite:///{chosen.store.resolve()}"
    with (
        tempfile.TemporaryDirectory() as folder,
        mlflow_server(uri, Path(folder)) as url,
        browser_page(chromium) as page,
    ):
        take(page, url, uri, chosen.to)
