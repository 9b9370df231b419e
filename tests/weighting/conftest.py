"""A small rated study in which three pairs share each prompt."""

from __future__ import annotations

import pytest

from encore.data.study import Study, open_study
from encore.judges.judge_config import JudgeConfig
from encore.rating.rating_config import RatingConfig
from encore.rating.rating_run import open_run
from encore.runs.shard_runner import work_through
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import study_of

NUM_PROMPTS = 8
NUM_PAIRS = 3 * NUM_PROMPTS


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Eight prompts with three pairs each, rated under ten rules by a judge that rolls dice."""
    folder = tmp_path_factory.mktemp("weighting")
    records = [
        {"prompt": f"Question {n // 3}?", "chosen": f"Answer {n}.", "rejected": f"No {n}."}
        for n in range(NUM_PAIRS)
    ]
    opened = open_study(study_of(records, folder / "study"))
    config = RatingConfig(judge=JudgeConfig(model="scripted"), shard_size=10)
    work_through(open_run(opened, config, judge=ScriptedJudge()).job())
    return opened
