"""A budget binds from the first request of a server that is paid by the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from encore.data.study import Study
from encore.judges.base import NO_USAGE, Decoding, Prompt, Reply, Usage
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from encore.rating.rating_run import RatingRun, open_run
from encore.rating.spending import SpendingLimit
from encore.runs.worker import RunReport, work_through
from tests.rating.conftest import NUM_PAIRS
from tests.worlds.judges import ScriptedJudge

NUM_PROMPTS = NUM_PAIRS * 20
PRICES = {"price_input": 3.0, "price_output": 15.0}


@dataclass
class PaidJudge(ScriptedJudge):
    """Server that reads texts, and counts a token for four bytes and three to six for a reply."""

    reads_texts: bool = True
    is_remote: bool = True
    says_usage: bool = True

    def _reply(self, text: str, num_tokens: int, decoding: Decoding) -> Reply:
        output_tokens = 3 + num_tokens % 4
        usage = Usage(prompt_tokens=num_tokens // 4, output_tokens=output_tokens)
        return Reply(text=text, is_complete=True, usage=usage if self.says_usage else NO_USAGE)

    @property
    def cost(self) -> float:
        """Return the money that all prompts so far took."""
        return sum(3 * (len(text) // 4) + 15 * (3 + len(text) % 4) for text in self.asked) / 1e6


def opened(study: Study, judge: ScriptedJudge, **limits: Any) -> RatingRun:
    config = RatingConfig(judge=JudgeConfig(model="scripted"), shard_size=10)
    return open_run(study, config, RatingRunOptions(**{**PRICES, **limits}), judge=judge)


def rated(study: Study, judge: ScriptedJudge, **limits: Any) -> RunReport:
    return work_through(opened(study, judge, **limits).job())


@pytest.mark.parametrize("is_on_cpu", [False, True])
@pytest.mark.parametrize("budget", [0.002, 0.02, 0.2])
def test_a_run_ends_within_its_budget_and_goes_on_with_a_larger_one(study, budget, is_on_cpu):
    """All prompts cost about 0.5. A budget is kept to 2 %, or to the cost of two prompts."""
    judge = PaidJudge(is_on_cpu=is_on_cpu)
    report = rated(study, judge, budget=budget)
    assert judge.cost <= 1.02 * budget + 0.002
    assert judge.cost >= 0.9 * budget - 0.002
    assert not report.failures
    assert report.early_stop is not None
    assert not report.early_stop.is_success
    assert f"--budget {budget:g}: {judge.cost:.6g} spent" in report.early_stop.reason
    num_asked = judge.num_asked
    report = rated(study, judge, budget=budget)
    assert judge.num_asked - num_asked <= 2  # what is spent counts in the next call
    report = rated(study, judge, budget=10)
    assert report.early_stop is None
    assert len({*judge.asked}) == judge.num_asked == NUM_PROMPTS  # none is paid twice
    assert report.total("num_ratings") == NUM_PROMPTS


def test_engines_and_runs_priced_by_the_hour_keep_a_budget_by_whole_shards(study):
    judge = PaidJudge(is_remote=False)  # as several engines of this machine
    work_through(opened(study, judge, budget=0.01).job())
    assert judge.num_asked == 200  # the first shard, which tells the cost of a pair
    work_through(opened(study, judge, budget=0.01, price_gpu_hour=1).job())
    assert judge.num_asked == 200


def test_a_server_that_does_not_say_its_tokens_is_charged_at_most_a_token_for_two_bytes(study):
    judge = PaidJudge(says_usage=False, is_on_cpu=True)
    report = rated(study, judge, budget=0.2)
    assert report.early_stop is not None
    # 16 tokens are the limit of a reply.
    estimate = sum(3 * round(len(text) / 2) + 15 * 16 for text in judge.asked) / 1e6
    assert f"--budget 0.2: {estimate:.6g} spent" in report.early_stop.reason
    assert judge.cost < estimate <= 0.2
    rated(study, judge, budget_calls=NUM_PROMPTS)
    assert judge.num_asked == NUM_PROMPTS  # the first replies were paid for too, and were kept


def test_the_cost_of_a_prompt_is_estimated_before_replies_tell_and_then_from_them():
    """Prices of 2 and 10 a token; the limit of a reply is 7 tokens."""
    limit = SpendingLimit(limit=100_000, price_input=2e6, price_output=1e7, max_reply_tokens=7)

    def estimates(*prompts: Prompt) -> list[float]:
        return [limit._estimate(prompt) for prompt in prompts]

    # 8 bytes (é has two) have up to 4 tokens: 2 * 4 + 10 * 7. Three ids: 2 * 3 + 10 * 7.
    assert estimates("abcd\u00e9\u00e9", [5, 6, 7]) == [78, 76]
    for usage in (Usage(prompt_tokens=3, output_tokens=1), Usage(prompt_tokens=5, output_tokens=4)):
        limit.add("abcdefgh", Reply(text="1", is_complete=True, usage=usage))
    assert limit.spent == 2 * 8 + 10 * 5
    # 8 tokens of 16 bytes, and 5 tokens of 2 replies: 2 * 0.5 * 10 + 10 * 2.5.
    assert estimates("abcdefghij") == [35]
    limit.add("ab", Reply(text="", is_complete=False, null_reason="refused"))  # not paid
    assert (limit.spent, estimates("abcdefghij")) == (66, [35])
    # A second request reads the prompt and up to 20 tokens of thinking: 2 * (4 + 4 + 20) + 10 * 7.
    prices = {"price_input": 2e6, "price_output": 1e7}
    limit = SpendingLimit(limit=100_000, **prices, max_reply_tokens=7, max_read_again=20)
    assert estimates("abcdefgh") == [126]


def test_a_group_has_half_of_the_money_left_or_all_prompts_if_they_take_four_fifths():
    """At 1 a prompt token, a reply of 0: prompts of 4 ids cost 4 each."""
    prompts = [[1, 2, 3, 4]] * 100
    reply = Reply(text="1", is_complete=True, usage=Usage(prompt_tokens=4))

    def limit_of(money: float) -> SpendingLimit:
        options = {"price_input": 1e6, "price_output": 0.0, "max_reply_tokens": 16}
        return SpendingLimit(limit=money, **options)

    limit = limit_of(1000)
    with limit.group(prompts) as num_prompts:
        assert num_prompts == 16  # no reply has told the tokens of a prompt
        for prompt in prompts[:16]:
            limit.add(prompt, reply)
    with limit.group(prompts[16:]) as num_prompts:  # 336 of 936 left
        assert num_prompts == 84
    limit = limit_of(404)
    limit.add(prompts[0], reply)
    with limit.group(prompts) as num_prompts:  # 400 of 400 left
        assert num_prompts == 50
        with limit.group(prompts) as num_others:  # 200 are reserved
            assert num_others == 25
    limit = limit_of(7)
    limit.add(prompts[0], reply)
    with limit.group(prompts) as num_prompts:
        assert num_prompts == 0
    assert limit.is_used_up


def test_money_stays_for_a_reply_as_dear_as_the_dearest():
    """At 1 a prompt token: nine replies of 4 and one of 20, which are 56, and 5.6 in the mean."""
    prompts = [[1, 2, 3, 4]] * 10
    limit = SpendingLimit(limit=100, price_input=1e6, price_output=0.0, max_reply_tokens=16)
    for num_tokens in [4] * 9 + [20]:
        usage = Usage(prompt_tokens=num_tokens)
        limit.add(prompts[0], Reply(text="1", is_complete=True, usage=usage))
    # Of 44, 20 - 5.6 stay. Half of 29.6 is enough for two prompts; half of 44 would be for three.
    with limit.group(prompts) as num_prompts:
        assert num_prompts == 2
