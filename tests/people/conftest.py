"""A study with hostile texts and three rating runs, copied for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encore.data.rating_runs import list_runs, read_run
from encore.data.study import open_study
from encore.people.export_sample import ExportedSample, export_sample
from encore.people.people_options import AnnotateExportConfig


@pytest.fixture
def study(hostile_study: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(hostile_study, tmp_path / "study"))


def run_of(study: Path) -> str:
    """Return the key of the first run of ``judge one``."""
    runs = [read_run(run_dir) for run_dir in list_runs(study / "ratings")]
    return next(run.run_key for run in runs if run.title == "judge one")


def exported(study: Path, **options: object) -> ExportedSample:
    """Export a sample that is drawn by the ratings of ``judge one``."""
    config = AnnotateExportConfig(study=study, run=run_of(study), **options)
    return export_sample(open_study(study), config)
