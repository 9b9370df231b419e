"""A study of 25 pairs, which are three shards of ten."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.data.study import Study, open_study
from tests.worlds.studies import numbered_pairs, study_of

NUM_PAIRS = 25


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return open_study(study_of(numbered_pairs(NUM_PAIRS), tmp_path / "study"))
