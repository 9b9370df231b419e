"""Tokens of a plan: what a prefix cache leaves, and a sample that stands for all pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from encore.data.ingestion import ingest
from encore.data.study import Study, open_study
from encore.demo import DATA_PATHS
from encore.judges.judge_config import JudgeConfig
from encore.rating.token_counts import _num_computed, count_tokens, kv_block_size
from encore.runs.shard_runner import work_through
from tests.rating.test_rating_run import opened
from tests.worlds.judges import ScriptedJudge


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("counted")
    ingest([f"hh={DATA_PATHS['synthetic-hh']}"], out=folder)
    return open_study(folder)


def test_full_blocks_that_were_there_before_are_not_computed_but_a_last_token_is():
    known: set[int] = set()

    def computed(*ids: int) -> int:
        return _num_computed(np.array(ids, np.uint32), 4, known)

    assert computed(*range(10)) == 10  # nothing is known; two full blocks of 4 are kept
    assert computed(*range(10)) == 2
    # Both blocks are known, but the second one has the last token: 8 - 4.
    assert computed(*range(8)) == 4
    # The second block has the same tokens behind another first one: 9.
    assert computed(9, 1, 2, 3, *range(4, 8), 8) == 9


def test_a_count_is_what_the_judge_is_asked_and_long_prompts_are_not(study):
    for most in (100_000, 1450):  # bytes, which are this judge's tokens
        judge = ScriptedJudge(max_model_len=most)
        run = opened(study, judge, limit=20)
        report = work_through(run.job())
        counts = count_tokens(run.rater, run.pairs, block_size=None)
        assert counts.num_calls == judge.num_asked == report.total_now("num_calls")
        assert counts.prompt_tokens == counts.computed_tokens == report.total_now("prompt_tokens")
    assert 0 < judge.num_asked < 400


def test_a_sample_stands_for_all_pairs(study):
    """Computed tokens a little less well: among more pairs, more begin alike."""
    run = opened(study, ScriptedJudge())
    whole = count_tokens(run.rater, run.pairs, block_size=16)
    sampled = count_tokens(run.rater, run.pairs, block_size=16, max_counted=60)
    assert sampled.num_calls == whole.num_calls == 20 * run.pairs.num_rows
    assert sampled.prompt_tokens == pytest.approx(whole.prompt_tokens, rel=0.01)
    assert 1 <= sampled.computed_tokens / whole.computed_tokens < 1.03


def test_the_conversation_first_leaves_less_to_compute(study):
    """All rules of a response begin with its conversation, which is computed once."""
    run = opened(study, ScriptedJudge(), limit=30)
    paper = count_tokens(run.rater, run.pairs, block_size=16)
    other = replace(run.rater, prompt=replace(run.rater.prompt, layout="conversation-first"))
    first = count_tokens(other, run.pairs, block_size=16)
    assert first.prompt_tokens == paper.prompt_tokens  # the same sentences
    assert first.computed_tokens < paper.computed_tokens / 2


@pytest.mark.parametrize(
    ("options", "on_cpu", "on_gpu"),
    [
        ({}, 32, 16),
        ({"engine_args": {"block_size": 64}}, 64, 64),
        ({"engine_args": {"enable_prefix_caching": False}}, None, None),
        ({"backend": "transformers"}, None, None),
    ],
)
def test_the_block_is_the_engines(options, on_cpu, on_gpu):
    judge = JudgeConfig(model="m", **options)
    assert kv_block_size(judge, is_on_cpu=True) == on_cpu
    assert kv_block_size(judge, is_on_cpu=False) == on_gpu
