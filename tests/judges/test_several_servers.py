"""Several servers of one judge share its prompts, and those of a lost one go to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import openai._base_client
import pytest
from pydantic import ValidationError

from encore.core.errors import InputError, JudgeUnavailableError
from encore.judges import http_server, http_servers, open_judge
from encore.judges.base import Reply
from encore.judges.http_judge import HttpJudge
from encore.judges.http_protocol import ServerAwayError
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_options import ServerOptions
from tests.judges.asking import interrupt_after_5
from tests.judges.hostile_server import KEY, MODEL, HostileServer, serving
from tests.judges.test_http_judge import TEXT
from tests.worlds.judges import hashed_score, judge_and_server
from tests.worlds.servers import wait_until

pytestmark = pytest.mark.services

QUESTIONS = [f"Question {number}?" for number in range(240)]
SESSIONS = [f"pair {number // 4}" for number in range(240)]
ANSWERS = [hashed_score(question) for question in QUESTIONS]
PROMPTS = [[1, number] for number in range(240)]
ANSWERS_TO_IDS = [hashed_score(str(prompt)) for prompt in PROMPTS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_server, "MAX_RETRIES", 1)
    monkeypatch.setattr(http_servers, "_MIN_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(http_servers, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(http_servers, "_LOOK_LIMIT_SECONDS", 0.3)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture
def servers() -> Iterator[list[HostileServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(HostileServer())) for _ in range(3)]


def opened(servers: list[HostileServer], **changes: object) -> HttpJudge:
    urls = ",".join(server.base_url for server in servers)
    options = {"model": MODEL, "backend": "http", "base_url": urls, "concurrency": 8, **changes}
    return HttpJudge(*judge_and_server(options))


def ask(judge: HttpJudge, on_progress=lambda _: None) -> list[Reply]:
    return judge.reply(QUESTIONS, decoding=TEXT, on_progress=on_progress, sessions=SESSIONS)


def num_answered(server: HostileServer) -> int:
    return server.num_requests["/v1/chat/completions"]


def test_prompts_of_a_pair_meet_one_server_and_every_server_gets_its_share(servers):
    with closing(opened(servers)) as judge:
        assert [reply.text for reply in ask(judge)] == ANSWERS
    assert sum(map(num_answered, servers)) == 240
    assert all(40 <= num_answered(server) <= 140 for server in servers)
    pairs_by_server = [server.sessions - {""} for server in servers]
    assert len(set().union(*pairs_by_server)) == 60
    # A server that is full passes a pair's prompts on. By chance alone 144 meetings are expected:
    # 60 * 3 * (1 - (2 / 3) ** 4).
    assert sum(map(len, pairs_by_server)) <= 120


def test_requests_of_token_ids_keep_pairs_whole_and_suit_the_number_of_servers(servers, tiny_judge):
    with closing(opened(servers, tokenizer=str(tiny_judge), max_model_len=64)) as judge:
        replies = judge.reply(PROMPTS, decoding=TEXT, on_progress=lambda _: None, sessions=SESSIONS)
        assert [reply.text for reply in replies] == ANSWERS_TO_IDS
        rows = judge.server_rows()
    prompts_of_requests = [body["prompt"] for server in servers for body in server.bodies]
    lists = [prompts for prompts in prompts_of_requests if isinstance(prompts, list)]
    assert sorted(map(len, lists)) == [20] * 12  # four requests a server
    assert all(prompts[0][1] % 4 == 0 for prompts in lists)
    assert sum(row["prompts"] for row in rows) == 240
    assert {row["state"] for row in rows} == {"up"}
    assert [row["requests at work"] for row in rows] == [0, 0, 0]


@pytest.mark.parametrize("fault", ["503", "nothing"])
def test_the_prompts_of_a_server_that_is_lost_go_to_the_others_once(servers, fault):
    lost = servers[1]
    lost.after, lost.fault = 10, fault
    with closing(opened(servers)) as judge:
        assert [reply.text for reply in ask(judge)] == ANSWERS
    num_of_others = num_answered(servers[0]) + num_answered(servers[2])
    assert num_of_others <= 240
    assert num_of_others + lost.after >= 240 - lost.most_at_once


def test_a_silent_server_is_left_out_and_gets_requests_again_when_it_answers(servers, caplog):
    silent = servers[0]
    # Without the looks at the servers, each of its requests would fail after these seconds.
    with closing(opened(servers, request_timeout_seconds=20)) as judge:
        judge.start()
        silent.is_silent = True
        assert [reply.text for reply in ask(judge)] == ANSWERS
        states = {row["address"]: row["state"] for row in judge.server_rows()}
        assert states[silent.base_url] == "away"
        silent.is_silent = False
        num_before = num_answered(silent)
        wait_for_state(judge, silent, "up")
        assert [reply.text for reply in ask(judge)] == ANSWERS
        assert num_answered(silent) > num_before
    assert f"{silent.base_url} is left out until it is back" in caplog.text
    assert f"{silent.base_url} is back" in caplog.text


def wait_for_state(judge: HttpJudge, server: HostileServer, state: str) -> None:
    def has_state() -> bool:
        rows = judge.server_rows()
        return any((row["address"], row["state"]) == (server.base_url, state) for row in rows)

    wait_until(has_state, seconds=30)


class ChangingJudge(HttpJudge):
    servers_change = True


def test_servers_are_added_and_dropped_while_prompts_are_asked(servers):
    first, second, third = servers
    options = {"model": MODEL, "backend": "http", "base_url": first.base_url, "concurrency": 2}
    judge = ChangingJudge(*judge_and_server(options))
    is_changed = threading.Event()

    def change(num_done: int) -> None:
        if num_done > 20 and not is_changed.is_set():
            is_changed.set()
            judge.set_servers([first.base_url, second.base_url])
            judge.set_servers([second.base_url, third.base_url])

    with closing(judge):
        judge.start()
        thread = threading.Thread(target=lambda: replies.extend(ask(judge, on_progress=seen)))
        replies: list[Reply] = []
        numbers: list[int] = []

        def seen(num_done: int) -> None:
            numbers.append(num_done)

        thread.start()
        while thread.is_alive():
            thread.join(0.01)
            change(numbers[-1] if numbers else 0)
        assert [reply.text for reply in replies] == ANSWERS
        assert {row["address"] for row in judge.server_rows()} == {second.base_url, third.base_url}
    assert is_changed.is_set()
    assert num_answered(second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("other-judge",)}, "has no such model; it has other-judge"),
        ({"context": 512}, "has a context of 512 tokens, another server has 1024"),
        ({"tokens": (1, 2, 3)}, "makes other tokens of a text than .* does"),
    ],
)
def test_a_server_with_another_judge_is_refused_by_name_before_the_first_prompt(
    servers, tiny_judge, changes, message
):
    for server in servers:
        server.context = 1024
    for name, value in changes.items():
        setattr(servers[2], name, value)
    judge = opened(servers, tokenizer=str(tiny_judge))
    with pytest.raises(JudgeUnavailableError, match=f"{servers[2].base_url} {message}"):
        judge.reply(PROMPTS, decoding=TEXT, on_progress=lambda _: None)
    assert not any(server.num_requests["/v1/completions"] for server in servers)


def test_a_server_that_comes_back_with_another_model_is_not_asked(servers, caplog):
    changed = servers[0]
    changed.fault = "503"
    with closing(opened(servers)) as judge:
        judge.start()
        changed.models = ("another-judge",)
        assert [reply.text for reply in ask(judge)] == ANSWERS
        wait_for_state(judge, changed, "refused")
        num_before = num_answered(changed)
        assert [reply.text for reply in ask(judge)] == ANSWERS
        assert num_answered(changed) == num_before


def test_without_any_server_the_run_ends_or_waits_as_it_was_told(servers):
    for server in servers:
        server.fault = "503"
    with (
        closing(opened(servers)) as judge,
        pytest.raises(ServerAwayError, match=r"none of its servers is there.*answered 503"),
    ):
        ask(judge)
    with closing(opened(servers, wait_for_server=1)) as judge:
        judge.start()
        back = threading.Timer(1.0, lambda: [setattr(server, "fault", "") for server in servers])
        back.start()
        assert [reply.text for reply in ask(judge)] == ANSWERS
        assert judge.wait_seconds > 0


def test_an_interruption_reaches_the_requests_of_every_server(servers):
    with closing(opened(servers)) as judge, pytest.raises(KeyboardInterrupt):
        ask(judge, on_progress=interrupt_after_5)
    assert sum(map(num_answered, servers)) < 240


def test_addresses_are_separated_by_commas_and_hosts_need_a_revision():
    judge = JudgeConfig(model=MODEL, backend="http")
    urls = "http://one:8000/v1, http://one:8001/v1,http://one:8000/v1"
    assert ServerOptions(base_url=urls).base_urls == ("http://one:8000/v1", "http://one:8001/v1")
    two = ServerOptions(base_url="http://one/v1,http://two/v1")
    with pytest.raises(InputError, match=r"names 2 hosts.*--revision"):
        open_judge(judge, two)
    judge = open_judge(judge.model_copy(update={"revision": "mine"}), two)
    assert (judge.identity.revision, judge.num_engines) == ("mine", 2)
    for bad in ("http://one/v1,two/v1", "http://one/v1,ftp://two/v1", ","):
        with pytest.raises(ValidationError, match="expected http://HOST:PORT/v1"):
            ServerOptions(base_url=bad)
    with pytest.raises(JudgeUnavailableError, match="user, a password"):
        ServerOptions(base_url="http://one/v1,http://me:pw@two/v1")
