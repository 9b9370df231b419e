"""A store that was copied or moved is refused: its runs name files of the original."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tasks.tracking.connection import TrackingUnavailableError
from tasks.tracking.sync import sync
from tests.tasks.tracking.conftest import TABLES, logged
from tests.tasks.tracking.study_files import benchmark, train
from tests.worlds.studies import file_digests

pytestmark = pytest.mark.services


def test_a_copied_store_is_refused_until_it_is_deleted_and_made_anew(study, tmp_path):
    train(study, num_steps=4, is_finished=True)
    benchmark(study)
    sync(study)
    copy = tmp_path / "elsewhere"
    shutil.copytree(study, copy)
    before, copy_before = file_digests(study), file_digests(copy)
    with pytest.raises(TrackingUnavailableError) as refusal:
        sync(copy)
    store, artifacts = copy / "mlflow.db", copy / "mlflow-artifacts"
    assert f"delete {store} and {artifacts}, then `python -m tasks.tracking {copy}`" in str(
        refusal.value
    )
    assert file_digests(copy) == copy_before
    store.unlink()
    shutil.rmtree(artifacts)
    tracking = [sys.executable, "-m", "tasks.tracking", copy]  # this process has the old file open
    finished = subprocess.run(tracking, capture_output=True, text=True, check=True)
    assert "5 new runs" in finished.stderr
    assert len(logged(copy, TABLES).runs()) == 4
    assert file_digests(study) == before


def test_a_moved_store_outside_the_study_is_refused_and_stays_as_it_is(study, tmp_path):
    """It may have runs of other studies, which the files of this study do not have."""
    train(study, num_steps=2)
    sync(study, tracking_uri=f"sqlite:///{tmp_path / 'shared' / 'runs.db'}")
    moved = (tmp_path / "shared").rename(tmp_path / "moved")
    before = file_digests(moved)
    uri = f"sqlite:///{moved / 'runs.db'}"
    with pytest.raises(TrackingUnavailableError, match=r"was copied or moved.*put it back"):
        sync(study, tracking_uri=uri)
    assert file_digests(moved) == before
