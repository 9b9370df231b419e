"""A small rated study in which three pairs share each prompt."""

from __future__ import annotations

import pytest

from encore.data.study import Study, open_study
from tests.worlds.studies import rate_study, study_of

NUM_PROMPTS = 8
NUM_PAIRS = 3 * NUM_PROMPTS


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return a study of eight prompts with three pairs each, rated under ten rules."""
    records = [
        {"prompt": f"Question {n // 3}?", "chosen": f"Answer {n}.", "rejected": f"No {n}."}
        for n in range(NUM_PAIRS)
    ]
    path = study_of(records, tmp_path_factory.mktemp("weighting") / "study")
    rate_study(path)
    return open_study(path)
