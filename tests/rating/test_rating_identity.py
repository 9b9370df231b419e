"""Without --shard-size a shard has as many pairs as make a number of calls, on any machine."""

from __future__ import annotations

import pytest

from encore.data.study import Study
from encore.judges import open_judge
from encore.judges.base import Judge
from encore.judges.gpu_groups import GPU_VARIABLE
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_options import ServerOptions
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import RatingRun, open_run
from encore.runs.worker import work_through
from tests.rating.conftest import NUM_PAIRS
from tests.worlds.judges import ScriptedJudge

#: A pair has 20 calls under ten rules, 40 under twenty; 2 if a call is for all rules.
SIZES = {
    (0, "encore-10", "paper"): 100,
    (0, "encore-20", "paper"): 50,
    (0, "encore-10", "all-rules"): 1000,
    (1, "encore-10", "paper"): 1000,
    (1, "encore-20", "paper"): 500,
}


def opened(study: Study, judge: Judge | None = None, **options: object) -> RatingRun:
    config = RatingConfig(judge=JudgeConfig(model="scripted"), **options)
    return open_run(study, config, judge=judge or ScriptedJudge())


@pytest.mark.parametrize(("num_gpus", "rules", "layout"), SIZES)
def test_a_shard_is_2000_calls_on_a_processor_and_20000_elsewhere(
    study, monkeypatch, num_gpus, rules, layout
):
    monkeypatch.setenv(GPU_VARIABLE, "0" * num_gpus)
    run = opened(study, rules=rules, layout=layout)
    assert run.manifest.shard_size == SIZES[num_gpus, rules, layout]


def test_servers_compute_elsewhere(study, monkeypatch):
    monkeypatch.setenv(GPU_VARIABLE, "")
    assert opened(study, ScriptedJudge(num_engines=2)).manifest.shard_size == 1000
    server = ServerOptions(base_url="http://127.0.0.1:9/v1")
    client = open_judge(JudgeConfig(model="scripted", backend="http"), server)
    assert opened(study, client).manifest.shard_size == 1000


def test_a_run_keeps_its_shards_on_another_machine_and_as_the_user_began_it(study, monkeypatch):
    monkeypatch.setenv(GPU_VARIABLE, "0")
    begun = opened(study)
    work_through(begun.job())
    monkeypatch.setenv(GPU_VARIABLE, "")
    run = opened(study)
    assert run.manifest == begun.manifest
    assert work_through(run.job()).summary == "0 rated, 1 reused, 0 failed"
    by_hand = opened(study, shard_size=10, limit=NUM_PAIRS - 1)
    work_through(by_hand.job())
    assert opened(study, limit=NUM_PAIRS - 1).manifest == by_hand.manifest
    for changes in ({"shard_size": 100}, {"limit": 5}, {"max_reply_tokens": 17}):
        assert opened(study, **changes).manifest.shard_size == changes.get("shard_size", 100)
