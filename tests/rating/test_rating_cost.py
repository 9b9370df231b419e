"""Token counts of a plan: tokens that are not in the prefix cache, and samples of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from encore.data.ingestion import ingest
from encore.data.study import Study, open_study
from encore.demo import DATA_PATHS
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_cost import TokenCounts, _num_computed, count_tokens, kv_block_size
from encore.rating.rating_run import RatingRun
from encore.runs.worker import work_through
from tests.rating.test_rating_run import opened
from tests.worlds.judges import ScriptedJudge


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("counted")
    ingest([f"hh={DATA_PATHS['synthetic-hh']}"], out=folder)
    return open_study(folder)


def count(run: RatingRun, **options: Any) -> TokenCounts:
    return count_tokens(run.rater.prompts, run.pairs, decoding=run.rater.decoding, **options)


def test_full_blocks_in_the_cache_are_not_computed_but_a_last_token_is():
    cached_blocks: set[int] = set()

    def computed(*ids: int) -> int:
        return _num_computed(np.array(ids, np.uint32), 4, cached_blocks)

    assert computed(*range(10)) == 10  # the cache is empty; it keeps two full blocks of 4
    assert computed(*range(10)) == 2
    # Both blocks are in the cache, but the second one has the last token: 8 - 4.
    assert computed(*range(8)) == 4
    # The second block has the same tokens behind another first one: 9.
    assert computed(9, 1, 2, 3, *range(4, 8), 8) == 9


def test_counts_equal_the_prompts_that_the_judge_gets_and_leave_out_long_ones(study):
    for max_model_len in (100_000, 1450):  # bytes, which are this judge's tokens
        judge = ScriptedJudge(max_model_len=max_model_len)
        run = opened(study, judge, limit=20)
        report = work_through(run.job())
        counts = count(run, block_size=None)
        assert counts.num_calls == judge.num_asked == report.computed("num_calls")
        assert counts.prompt_tokens == counts.computed_tokens == report.computed("prompt_tokens")
    assert 0 < judge.num_asked < 400


def test_a_sample_stands_for_all_pairs(study):
    run = opened(study)
    exact = count(run, block_size=16)
    sampled = count(run, block_size=16, max_counted=60)
    assert sampled.num_calls == exact.num_calls == 20 * run.pairs.num_rows
    assert sampled.prompt_tokens == pytest.approx(exact.prompt_tokens, rel=0.01)
    # Among more pairs, more begin alike.
    assert 1 <= sampled.computed_tokens / exact.computed_tokens < 1.03


@pytest.mark.services
def test_what_rules_share_and_stands_first_is_computed_once(study):
    # All rules of a response begin with its conversation, and with the demand for a score.
    paper, conversation_first, demand_first = (
        count(run, block_size=1)
        for layout in ("paper", "conversation-first", "demand-first")
        for run in [opened(study, layout=layout, limit=30)]
    )
    assert conversation_first.prompt_tokens == paper.prompt_tokens  # the same sentences
    assert conversation_first.computed_tokens < paper.computed_tokens / 2
    # One line feed more: the demand stands in a paragraph of its own.
    assert demand_first.prompt_tokens == paper.prompt_tokens + paper.num_calls
    # The demand is computed for one rule of ten, a token a byte.
    num_bytes = len("You must return a score between 0 and 1 and nothing else.")
    saved = 30 * 2 * 9 * num_bytes
    computed = conversation_first.computed_tokens - demand_first.computed_tokens
    assert computed == pytest.approx(saved, rel=0.05)


def test_thinking_counts_in_full_and_its_prompt_is_read_twice(study):
    """The second step reads the prompt, ten tokens of thinking and up to 16 of its mark."""
    one_step = opened(study, limit=5)
    two_steps = opened(study, limit=5, think_tokens=10)
    for block_size in (None, 1):
        before, counts = (count(run, block_size=block_size) for run in (one_step, two_steps))
        num_calls = counts.num_calls
        assert num_calls == before.num_calls
        assert counts.prompt_tokens == 2 * before.prompt_tokens + 26 * num_calls
        num_again = before.computed_tokens if block_size is None else 0  # in the cache
        assert counts.computed_tokens == before.computed_tokens + num_again + 26 * num_calls
        assert counts.output_tokens == before.output_tokens + 10 * num_calls


@pytest.mark.parametrize(
    ("options", "on_cpu", "on_gpu"),
    [
        ({}, 32, 16),
        ({"engine_args": {"block_size": 64}}, 64, 64),
        ({"engine_args": {"enable_prefix_caching": False}}, None, None),
        ({"backend": "transformers"}, None, None),
    ],
)
def test_the_size_of_a_cache_block_is_that_of_the_engine(options, on_cpu, on_gpu):
    judge = JudgeConfig(model="m", **options)
    assert kv_block_size(judge, is_on_cpu=True) == on_cpu
    assert kv_block_size(judge, is_on_cpu=False) == on_gpu
