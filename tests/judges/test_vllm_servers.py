"""Servers of this machine: how they start, what replaces a lost one, and that all of them end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from encore.core.errors import JudgeUnavailableError
from encore.judges import open_judge
from encore.judges.base import Decoding, Reply
from encore.judges.judge_options import JudgeConfig
from encore.judges.served_judge import ServedJudge
from encore.judges.server_options import ServerOptions
from encore.judges.server_process import ServerProcess
from encore.judges.vllm_engine import VllmJudge
from encore.judges.vllm_servers import LocalServers, served_name, server_command
from tests.judges.asking import rating_prompts
from tests.judges.standin_vllm import Standin, text_of
from tests.worlds.servers import wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(60)]

DECODING = Decoding(max_reply_tokens=16)
_SECONDS = 30


@pytest.fixture(autouse=True)
def check_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("encore.judges.served_judge._CHECK_SECONDS", 0.2)
    monkeypatch.setattr("encore.judges.served_judge._POLL_SECONDS", 0.1)
    monkeypatch.setattr("encore.judges.server_process._ANSWER_SECONDS", 0.5)


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    return Standin(tmp_path / "standin")


def servers_of(standin: Standin, *, num_servers: int = 2, **options: Any) -> LocalServers:
    """Return servers that are stand-ins, with their logs beside the orders."""
    return LocalServers(
        shares=[{}] * num_servers,
        log_dir=standin.folder / "logs",
        make_command=standin.command,
        **options,
    )


def opened(folder: Path, standin: Standin, **options: Any) -> ServedJudge:
    servers = servers_of(standin, **options)
    return ServedJudge(JudgeConfig(model=str(folder)), ServerOptions(), servers=servers)


@contextmanager
def served(folder: Path, standin: Standin, **options: Any) -> Iterator[ServedJudge]:
    """Open a judge on stand-ins; all of them have ended afterwards."""
    judge = opened(folder, standin, **options)
    try:
        yield judge
    finally:
        judge.close()
        assert not any(map(psutil.pid_exists, standin.pids))


def ask(
    judge: ServedJudge, *, on_progress: Callable[[int], None] = lambda _: None, num: int = 40
) -> list[Reply]:
    """Ask for a number of conversations under ten rules; check that each reply is the prompt's."""
    prompts = judge.tokenizer.encode(rating_prompts(num_conversations=num))
    sessions = [str(index // 10) for index in range(len(prompts))]
    replies = judge.reply(prompts, decoding=DECODING, on_progress=on_progress, sessions=sessions)
    assert [reply.text for reply in replies] == [text_of([*ids]) for ids in prompts]
    return replies


def wait_for_all(standin: Standin, judge: ServedJudge) -> None:
    """Wait until the client knows every server."""
    assert judge._watcher is not None
    rows = judge.server_rows
    number = judge.num_engines
    wait_until(
        lambda: sum(row["state"] == "up" for row in rows()) == number,
        seconds=_SECONDS,
        event="all servers",
    )


def test_a_served_judge_is_the_judge_of_the_engine_in_process(folder, standin):
    config = JudgeConfig(model=str(folder))
    judge, engine = opened(folder, standin), VllmJudge(config)
    assert judge.identity == engine.identity
    judge.check(Decoding(kind="expected", max_reply_tokens=16, labels=tuple("0123456789")))
    with pytest.raises(JudgeUnavailableError):
        judge.check(Decoding(kind="expected", max_reply_tokens=16, labels=("0.10", "0.25")))
    assert standin.pids == []  # neither opening nor checking it starts a server


def test_servers_of_several_hosts_are_one_judge(folder, standin):
    judge = opened(folder, standin)
    urls = ["http://one:1/v1", "http://two:1/v1"]
    assert open_judge(*judge._client_options(urls)).how.base_urls == tuple(urls)


def test_servers_share_the_prompts_and_the_key_of_a_service_is_not_sent(
    folder, standin, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-service")
    with served(folder, standin) as judge:
        judge.start()
        wait_for_all(standin, judge)
        standin.order(seconds=0.05)
        replies = ask(judge, num=200)
        assert judge.how.api_key_env != "OPENAI_API_KEY"
    assert {reply.answered_by for reply in replies} == {""}
    assert {line.split()[0] for line in standin.lines("prompts")} == {*map(str, standin.pids)}
    assert len(standin.lines("prompts")) == len(replies)  # each prompt once


def test_servers_of_this_machine_are_asked_without_the_networks_proxy(folder, standin, monkeypatch):
    monkeypatch.setenv("no_proxy", "example.org")
    for name in ("NO_PROXY", "http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "" if name == "NO_PROXY" else "http://127.0.0.1:9")
    with served(folder, standin, num_servers=1) as judge:
        ask(judge, num=1)
    assert os.environ["no_proxy"] == "example.org,127.0.0.1"


def test_the_servers_name_holds_what_can_change_a_reply(folder):
    config = JudgeConfig(model=str(folder))
    name = served_name(VllmJudge(config))
    assert name.startswith(f"{folder.name}@")
    for changes in ({"dtype": "bfloat16"}, {"max_model_len": 512}, {"engine_args": {"seed_": 1}}):
        changed_judge = VllmJudge(JudgeConfig(model=str(folder), **changes))
        assert served_name(changed_judge) != name
    faster = config.model_copy(update={"engine_args": {"max_num_seqs": 8}})
    assert served_name(VllmJudge(faster)) == name


def test_a_server_has_the_engine_of_the_process(folder):
    args = {"max_num_seqs": 8, "enable_prefix_caching": False, "quantization": "fp8"}
    judge = VllmJudge(JudgeConfig(model=str(folder), dtype="bfloat16", engine_args=args))
    command = server_command(judge, port=8123, served_name="judge@0")
    assert command[:4] == [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    assert {
        *(f"--model={folder}", "--served-model-name=judge@0", "--host=127.0.0.1", "--port=8123"),
        *("--dtype=bfloat16", "--max-model-len=2048", "--load-format=safetensors", "--seed=0"),
        *("--max-num-seqs=8", "--no-enable-prefix-caching", "--quantization=fp8"),
        *("--generation-config=vllm", "--performance-mode=throughput", "--no-enable-log-requests"),
    } <= {*command}
    assert not any("trust" in part or "revision" in part for part in command)


@pytest.mark.parametrize("name", ["port", "middleware", "api_key", "ssl_keyfile", "no_such_thing"])
def test_an_option_of_the_server_is_no_engine_argument(folder, name):
    judge = VllmJudge(JudgeConfig(model=str(folder), engine_args={name: "x"}))
    with pytest.raises(JudgeUnavailableError, match=f"engine argument '{name}': vLLM's engine has"):
        server_command(judge, port=8123, served_name="judge@0")


def test_a_killed_server_is_replaced_and_every_prompt_is_answered(folder, standin, caplog):
    with served(folder, standin) as judge:
        judge.start()
        wait_for_all(standin, judge)
        standin.order(seconds=0.3)
        killed: list[int] = []

        def kill_once(num_done: int) -> None:
            if num_done and not killed:
                killed.append(standin.pids[0])
                os.kill(killed[0], signal.SIGKILL)

        ask(judge, on_progress=kill_once)
        assert killed
        wait_until(lambda: len(standin.pids) == 3, seconds=_SECONDS, event="the replacement")
        wait_for_all(standin, judge)
        ask(judge, num=10)
    assert " of 2 is started again: a signal killed it" in caplog.text


def test_a_server_that_hangs_is_replaced(folder, standin, caplog):
    with served(folder, standin, silence_seconds=1) as judge:
        judge.start()
        wait_for_all(standin, judge)
        os.kill(standin.pids[0], signal.SIGSTOP)
        ask(judge)
        wait_until(lambda: len(standin.pids) == 3, seconds=_SECONDS, event="the replacement")
    assert " of 2 is started again: no answer for 1 s" in caplog.text


def test_a_server_whose_engine_computes_nothing_is_replaced_and_an_idle_one_is_not(
    folder, standin, caplog
):
    with served(folder, standin, stalled_seconds=2) as judge:
        judge.start()
        wait_for_all(standin, judge)
        standin.order(stalls=standin.pids[1])
        ask(judge)
        time.sleep(3)
        ask(judge, num=2)
    assert len(standin.pids) == 3
    assert caplog.text.count("is started again") == 1
    assert " of 2 is started again: it has requests and computed no token" in caplog.text


def test_a_server_is_given_up_after_three_starts_and_the_others_go_on(folder, standin, caplog):
    """Starts 1 and 2 are the first servers; one of them and both its replacements end at once."""
    standin.order(ends=[2, 3, 4], prints="RuntimeError: no memory\n")
    with served(folder, standin) as judge:
        judge.start()
        wait_until(lambda: "is given up" in caplog.text, seconds=_SECONDS, event="the third end")
        ask(judge)
    assert len(standin.pids) == 4
    assert "is given up: exit code 3: RuntimeError: no memory (log: " in caplog.text


def test_starts_count_anew_after_a_finished_prompt(folder, standin):
    with served(folder, standin, num_servers=1) as judge:
        for number in range(1, 6):
            ask(judge, num=1)
            wait_until(
                lambda: judge.servers.slots[0].process.has_finished_prompts,
                seconds=_SECONDS,
                event="a prompt",
            )
            os.kill(standin.pids[-1], signal.SIGKILL)
            wait_until(
                lambda number=number: len(standin.pids) == 1 + number,
                seconds=_SECONDS,
                event="the replacement",
            )
        ask(judge, num=1)


def test_a_server_whose_prompts_fail_is_given_up(folder, standin):
    standin.order(dies_at=1)
    with (
        served(folder, standin, num_servers=1) as judge,
        pytest.raises(JudgeUnavailableError, match=r"exit code 1: .*after 3 starts"),
    ):
        ask(judge, num=1)
    assert len(standin.pids) == 3


@pytest.mark.parametrize(
    ("prints", "cause"),
    [
        (
            "(EngineCore pid=7) ERROR 11-28 22:15:12 [core.py:16] ValueError: no such quant",
            "ValueError: no such quant",
        ),
        ("api_server.py: error: unrecognized arguments: --q", "api_server.py: error: unrecog"),
    ],
)
def test_an_error_that_every_server_meets_is_one_error_with_the_cause(
    folder, standin, prints, cause
):
    last_line = "(APIServer pid=5) RuntimeError: Engine core failed. See root cause above."
    standin.order(ends=[*range(1, 20)], prints=f"{prints}\n{last_line}\n")
    with served(folder, standin) as judge, pytest.raises(JudgeUnavailableError) as refused:
        judge.start()
    message = str(refused.value)
    assert message.startswith(f"no vLLM server is left: server 1 of 2: exit code 3: {cause}")
    assert message.count(cause) == 2
    assert len(standin.pids) == 6


def test_a_run_ends_when_its_last_server_is_given_up(folder, standin):
    standin.order(seconds=0.2)
    with served(folder, standin) as judge:
        judge.start()
        wait_for_all(standin, judge)
        standin.order(ends=[*range(1, 20)], seconds=0.2)

        def kill_all(_num_done: int) -> None:
            for pid in standin.pids[:2]:
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)

        with pytest.raises(JudgeUnavailableError, match="no vLLM server is left"):
            ask(judge, on_progress=kill_all, num=100)


def test_a_taken_port_is_another_start(folder, standin, monkeypatch):
    """The first of two ports is taken when the server comes to listen."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        free_port = LocalServers._started.__globals__["_free_port"]
        ports = [listener.getsockname()[1]]
        monkeypatch.setattr(
            "encore.judges.vllm_servers._free_port",
            lambda host: ports.pop() if ports else free_port(host),
        )
        servers = servers_of(standin, num_servers=1)
        try:
            servers.start(VllmJudge(JudgeConfig(model=str(folder))))
            [url] = wait_until(servers.check, seconds=_SECONDS, event="the second start")
            assert len(standin.pids) == 2
            assert str(listener.getsockname()[1]) not in url
        finally:
            servers.close()


@pytest.mark.services  # it takes the time that a server has to end by itself
def test_servers_end_with_a_killed_driver_and_with_all_that_they_started(standin, tmp_path):
    """The driver starts a server that stops itself and has a child that ignores SIGTERM."""
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    server = (
        f"import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{p.pid}} \\n'); "
        "os.kill(os.getpid(), 19)"
    )
    driver = (
        "import sys, time, os; from pathlib import Path\n"
        "from encore.judges.server_process import ServerProcess\n"
        f"ServerProcess.start([sys.executable, '-c', {server!r}], url='http://127.0.0.1:1/v1', "
        f"environment=os.environ, log_path=Path({str(tmp_path / 'log')!r})); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", driver])
    path = tmp_path / "pids"
    wait_until(
        lambda: path.exists() and path.read_text().endswith(" \n"),
        seconds=_SECONDS,
        event="the server",
    )
    pids = [*map(int, path.read_text().split())]
    assert all(map(psutil.pid_exists, pids))
    process.kill()
    process.wait()
    wait_until(
        lambda: not any(map(psutil.pid_exists, pids)), seconds=_SECONDS, event="the servers' end"
    )


def test_a_server_that_is_killed_leaves_no_process_of_its_own(standin, tmp_path):
    code = (
        "import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; "
        f"time.sleep(600)']); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); "
        "os.kill(os.getpid(), 9)"
    )
    process = ServerProcess.start(
        [sys.executable, "-c", code],
        url="http://127.0.0.1:1/v1",
        environment=os.environ,
        log_path=tmp_path / "log",
    )
    wait_until(lambda: process.process.poll() is not None, seconds=_SECONDS, event="its end")
    assert process.ending == f"a signal killed it (log: {tmp_path / 'log'})"
    child = int((tmp_path / "pid").read_text())
    process.kill()
    wait_until(lambda: not psutil.pid_exists(child), seconds=_SECONDS, event="its child's end")
    process.close()  # its process group may be another program's now


@pytest.mark.services  # it takes the time that a server has to end by itself
def test_a_killed_keeper_is_replaced_and_the_server_ends_with_its_driver(tmp_path):
    driver = (
        "import sys, time, os; from pathlib import Path\n"
        "from encore.judges.server_process import ServerProcess\n"
        "server = ServerProcess.start([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "url='http://127.0.0.1:1/v1', environment=os.environ, "
        f"log_path=Path({str(tmp_path / 'log')!r}))\n"
        "server.keeper.kill(); server.keeper.wait()\n"
        "server.loss(silence_seconds=9, stalled_seconds=9)\n"
        "print(server.process.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE)
    assert process.stdout is not None
    server = int(process.stdout.readline())
    process.kill()
    process.communicate()
    wait_until(lambda: not psutil.pid_exists(server), seconds=_SECONDS, event="the server's end")


def test_logs_stay_only_if_a_server_was_lost(folder, standin, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(standin.folder))

    def logs_after(*, is_killed: bool) -> list[str]:
        servers = replace(servers_of(standin, num_servers=1), log_dir=None)
        servers.start(VllmJudge(JudgeConfig(model=str(folder))))
        wait_until(servers.check, seconds=_SECONDS, event="the server")
        if is_killed:
            os.kill(standin.pids[-1], signal.SIGKILL)
            wait_until(lambda: servers.check() == [], seconds=_SECONDS, event="the loss")
        servers.close()
        return [path.name for path in standin.folder.glob("encore-servers-*/*.log")]

    assert logs_after(is_killed=False) == []
    assert logs_after(is_killed=True) == ["server-0.log"]
