"""A real vLLM server gives the replies of the engine in this process, also behind a router."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.core.reporting import Reporter
from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from encore.judges import open_judge
from encore.judges.base import Decoding, Reply
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_options import ServerOptions
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from encore.rating.rating_run import rate
from encore.rating.replies import read_answers
from tests.judges.asking import rating_prompts, replies_to
from tests.judges.vllm_server import router, vllm_server, wait_until_ready
from tests.worlds.judges import judge_and_server
from tests.worlds.studies import numbered_pairs, study_of

DECODINGS = (
    Decoding(max_reply_tokens=16),
    Decoding(kind="choice", max_reply_tokens=16, labels=("0.1", "0.3", "0.5")),
    Decoding(kind="expected", max_reply_tokens=16, labels=tuple("0123456789")),
)
SCORES = replace(DECODINGS[1], num_scores=3, max_reply_tokens=100)
KEYS = ("pair_id", "response", "rule_id")


def over_http(folder: Path, url: str, **changes: object) -> tuple[JudgeConfig, ServerOptions]:
    config = {"model": folder.name, "backend": "http", "base_url": f"{url}/v1", **changes}
    return judge_and_server(config)


@pytest.mark.services
def test_a_server_gives_the_replies_of_the_engine(folder, tmp_path):
    """Completions and chats are compared in every decoding."""
    prompts = rating_prompts(num_conversations=10)
    sessions = [str(number // 20) for number in range(len(prompts))]
    served: dict[tuple[str, str], list[Reply]] = {}
    with vllm_server(folder, tmp_path / "server.log") as (url, process):
        wait_until_ready(url, process)
        configs = {
            "completions": over_http(folder, url, tokenizer=str(folder)),
            "chat": over_http(folder, url),
        }
        for api, config in configs.items():
            judge = open_judge(*config)
            for decoding in DECODINGS:
                served[api, decoding.kind] = replies_to(judge, prompts, decoding, sessions=sessions)
            for reply in replies_to(judge, prompts[:8], SCORES, sessions=sessions[:8]):
                answers = read_answers(reply, SCORES, min_label_mass=0.5)
                assert {answer.rating for answer in answers} <= {0.1, 0.3, 0.5}, (api, reply)
            if api == "chat":
                [long] = replies_to(judge, ["word " * 5000], DECODINGS[0])
                assert long.null_reason == "prompt_too_long"
            judge.close()
    engine = open_judge(JudgeConfig(model=str(folder)))
    try:
        for decoding in DECODINGS:
            expected = replies_to(engine, prompts, decoding)
            num_tokens = sum(reply.usage.prompt_tokens for reply in expected)
            for api in configs:
                actual = served[api, decoding.kind]
                assert [reply.text for reply in actual] == [reply.text for reply in expected]
                assert all(reply.is_complete for reply in actual)
                assert sum(reply.usage.prompt_tokens for reply in actual) == num_tokens
        for reply, expected_reply in zip(served["completions", "expected"], expected, strict=True):
            assert reply.label_logprobs == pytest.approx(expected_reply.label_logprobs, abs=1e-4)
    finally:
        engine.close()


class Killer(Reporter):
    """Reporter that kills a server after a number of ratings."""

    def __init__(self, pid: int, after: int) -> None:
        self.pid, self.num_remaining = pid, after

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        self.num_remaining -= count
        if self.num_remaining <= 0 and self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0


def ratings(study: Path, run_key: str) -> pa.Table:
    paths = run_status(study / "ratings" / run_key).paths
    table = pa.concat_tables([pq.read_table(path) for path in paths])
    columns = [*KEYS, "rating", "raw_reply", "null_reason"]
    return table.select(columns).sort_by([(name, "ascending") for name in KEYS])


@pytest.mark.full
@pytest.mark.parametrize("way", ["router", "addresses"])
def test_two_servers_lose_no_rating_when_one_is_killed(folder, tmp_path, way):
    study = study_of(numbered_pairs(100), tmp_path / "study")
    with (
        vllm_server(folder, tmp_path / "one.log") as (first_url, first),
        vllm_server(folder, tmp_path / "two.log") as (second_url, second),
    ):
        wait_until_ready(first_url, first)
        wait_until_ready(second_url, second)
        both: AbstractContextManager[str] = nullcontext(f"{first_url}/v1,{second_url}")
        if way == "router":
            both = router([first_url, second_url], tmp_path / "router.log")
        with both as url:
            judge, server = over_http(folder, url, tokenizer=str(folder))
            killer = Killer(second.pid, after=500)
            config = RatingConfig(judge=judge, shard_size=20)
            how = RatingRunOptions(base_url=server.base_url, concurrency=4)
            report = rate(study, config, how, reporter=killer).report
    assert killer.pid == 0
    assert second.wait(10) == -signal.SIGKILL
    assert report.failures == {}
    [served] = list_runs(open_study(study).ratings_dir)
    rate(study, RatingConfig(judge=JudgeConfig(model=str(folder)), shard_size=20))
    [engine] = set(list_runs(open_study(study).ratings_dir)) - {served}
    table = ratings(study, served.name)
    assert table.num_rows == 100 * 2 * 10
    assert len(set(zip(*(table[name].to_pylist() for name in KEYS), strict=True))) == 2000
    assert table.equals(ratings(study, engine.name))
