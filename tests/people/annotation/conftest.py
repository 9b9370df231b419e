"""A study with hostile texts and three rating runs; each test has a copy of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from encore.data.annotations import Sample
from encore.data.rating_runs import list_runs, read_run
from encore.people.annotate_config import AnnotateExportConfig
from encore.people.export_sample import export_sample
from tests.tables.browse.studies import write_hostile_study


@pytest.fixture(scope="session")
def hostile_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile_study(tmp_path_factory.mktemp("annotation"))


@pytest.fixture
def study(hostile_study: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(hostile_study, tmp_path / "study"))


def run_of(study: Path, title: str = "judge one") -> str:
    """The key of the run of this title."""
    found = [read_run(run_dir) for run_dir in list_runs(study / "ratings")]
    return next(run.run_key for run in found if run.title == title)


class Exported(NamedTuple):
    """What `export_sample` gives."""

    sample: Sample
    files: tuple[Path, ...]
    note: str


def exported(study: Path, **options: object) -> Exported:
    """A sample drawn by the ratings of ``judge one``."""
    config = AnnotateExportConfig(study=study, run=run_of(study), **options)
    return Exported(*export_sample(config))
