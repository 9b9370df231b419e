"""Run a real Prefect server with pools and workers, which tests stop, kill and cut off."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.data.pairs import planned_pairs, read_pairs, records_of
from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from infra.prefect_setup import prefect_environment
from tests.distributed.orders import FOLDER, WHO, Control
from tests.distributed.steered_judge import SteeredJudge
from tests.worlds.servers import (
    Answer,
    PrefectServer,
    add_database,
    background_process,
    free_port,
    wait_until,
    wait_until_healthy,
)
from tests.worlds.studies import numbered_pairs, rate_study, study_of, without_run_options

ROOT = Path(__file__).resolve().parents[2]
COORDINATORS, ENGINES = "encore", "encore-gpu"
_JUDGE = {"model": "steered", "backend": "transformers"}

_Processes = contextlib.ExitStack


# --- studies and their ratings ------------------------------------------------------------------


def make_study(folder: Path, *, num_pairs: int) -> Path:
    """Write a study of small pairs, each with a number that the judge finds in its prompt."""
    return study_of(numbered_pairs(num_pairs), folder / "study", replace=True)


def shard_names(study: Path, *, shard_size: int = 1) -> list[str]:
    """Return the steered judge's name of each shard, by the shard's index."""
    pairs = list(records_of(planned_pairs(read_pairs(open_study(study)), limit=None)))
    return [str(pair.prompt).split("Question ")[1].split("?")[0] for pair in pairs[::shard_size]]


def rating(**changes: Any) -> dict[str, Any]:
    """Return the config of a rating with the steered judge and one pair in each shard."""
    return {"judge": _JUDGE, "shard_size": 1, **changes}


def options(**changes: Any) -> list[str]:
    """Return the same config as command-line options."""
    fields = {"judge": _JUDGE["model"], "backend": _JUDGE["backend"], "shard_size": 1, **changes}
    return [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]


def ratings(study: Path) -> pa.Table:
    """Read all ratings of the study's only run, in plan order; the run must be complete."""
    status = run_status(list_runs(open_study(study).ratings_dir)[0])
    assert status.is_complete
    return pa.concat_tables([pq.read_table(path) for path in sorted(status.paths)])


def check_ratings(study: Path, control: Control, *, most_times: int = 2) -> None:
    """Check a study's ratings, and how often each shard was rated.

    The ratings must equal those that one engine in this process gives undisturbed.
    """
    num_pairs = read_pairs(open_study(study)).num_rows
    undisturbed_study = make_study(study.parent / "undisturbed", num_pairs=num_pairs)
    rate_study(undisturbed_study, SteeredJudge(), shard_size=1)
    assert ratings(study) == ratings(undisturbed_study)
    num_times_by_shard = Counter(event["shard"] for event in control.events("rated"))
    assert set(num_times_by_shard) == set(shard_names(study))
    assert max(num_times_by_shard.values()) <= most_times


def judge_environ(control: Control, who: str = "") -> dict[str, str]:
    """Return an environment in which a process and its children rate with the steered judge."""
    control.folder.mkdir(parents=True, exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if "PREFECT" not in name}
    folders = (ROOT / "tests" / "distributed" / "site", ROOT)
    return environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        FOLDER: str(control.folder),
        WHO: who,
        "ENCORE_ROOT": str(ROOT),
    }


# --- server and workers -------------------------------------------------------------------------


@dataclass(kw_only=True)
class Worker:
    """Prefect worker with its log and its process."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def children(self) -> list[psutil.Process]:
        """Return the worker's child processes and all their descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill(self, *, with_worker: bool) -> None:
        """Send SIGKILL to all descendants; with the worker, to the worker first.

        A worker that is killed first cannot report the end of its children to the server.
        """
        children = wait_until(lambda: self.children, seconds=60, event=f"a child of {self.name}")
        for process in [psutil.Process(self.process.pid)] * with_worker + children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@dataclass(kw_only=True)
class Farm:
    """Prefect server, which can stop and start again on its database, with its workers.

    Attributes:
        client_retries: How often Prefect's client tries a call again; 5 (its default) take 62 s.
    """

    folder: Path
    client_retries: int = 5
    host: str = "127.0.0.1"
    database_url: str | None = None
    port: int = field(default_factory=free_port)
    workers: dict[str, Worker] = field(default_factory=dict)
    _workers: _Processes = field(default_factory=_Processes)
    _server: _Processes = field(default_factory=_Processes)

    @property
    def control(self) -> Control:
        """Return the orders to the judges of all workers, and the log of their events."""
        return Control(self.folder / "control")

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def api(self) -> PrefectServer:
        """Return a client of the server's API."""
        return PrefectServer(url=self.url, folder=self.folder, environ=self.environ(""))

    def environ(self, who: str) -> dict[str, str]:
        """Return a client's environment; each ``who`` has its own PREFECT_HOME."""
        home = self.folder / "homes" / (who or "client")
        environ = judge_environ(self.control, who)
        return prefect_environment(home, port=self.port, environ=environ) | {
            "PREFECT_API_URL": f"{self.url}/api",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_CLIENT_MAX_RETRIES": str(self.client_retries),
        }

    def start_server(self) -> None:
        """Start the server, for the first time or after `stop_server`."""
        environ = self.environ("server") | {"PREFECT_SERVER_UI_ENABLED": "false"}
        if self.database_url:
            environ["PREFECT_API_DATABASE_CONNECTION_URL"] = self.database_url
        else:
            add_database(Path(environ["PREFECT_HOME"]))
        log = self.folder / "server.log"
        command = [sys.executable, "-m", "infra.stack", "server"]
        command += ["--host", self.host, "--port", str(self.port)]
        process = self._server.enter_context(
            background_process(*command, environ=environ, log=log, cwd=ROOT)
        )
        wait_until_healthy(f"{self.url}/api/health", process, log=log)

    def stop_server(self, *, is_killed: bool = False) -> None:
        """Stop the server; with ``is_killed``, by SIGKILL in the middle of its work."""
        if is_killed:
            [server] = [
                process
                for process in psutil.process_iter(["cmdline"])
                if {"infra.stack", "server", str(self.port)} <= {*(process.info["cmdline"] or ())}
            ]
            for process in [server, *server.children(recursive=True)]:
                process.kill()
        self._server.close()

    def register(self) -> None:
        """Create the pools, deployments and the automation as `make up` does."""
        command = [sys.executable, "-m", "infra.stack", "register"]
        done = subprocess.run(
            command, env=self.environ(""), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start_worker(self, name: str, *, pool: str = ENGINES, inside: Sequence[str] = ()) -> Worker:
        """Start a worker that takes one run at a time (a coordinator: any number).

        Args:
            name: The worker's name; orders and the judge's log use it for its engines.
            pool: The work pool that it serves.
            inside: Words before its command, e.g. to run it in a network namespace.
        """
        limit = ["--limit", "1"] if pool == ENGINES else []
        command = [*inside, sys.executable, "-m", "prefect", "worker", "start"]
        command += ["--pool", pool, "--name", name, "--type", "process", *limit]
        log = self.folder / f"{name}.log"
        process = self._workers.enter_context(
            background_process(*command, environ=self.environ(name), log=log, cwd=self.folder)
        )
        self._workers.callback(lambda: worker.children and worker.kill(with_worker=True))
        worker = self.workers[name] = Worker(name=name, log=log, process=process)
        return worker

    def start_run(self, *, study: str, parameters: Mapping[str, Any] = {}, **config: Any) -> str:
        """Start a run of the deployed flow `rate-pairs` and return the run's id."""
        name = "rate-pairs/encore-rate-pairs"
        config, how = without_run_options(rating(**config))
        parameters = {"study": study, "how": how.model_dump(exclude_unset=True), **parameters}
        return self.api.start_run(name, config=config, **parameters)

    def wait_for(self, flow_run_id: str, *, seconds: float) -> dict[str, Any]:
        """Wait until a run has ended and return it."""
        return self._with_logs(lambda: self.api.wait_for(flow_run_id, seconds=seconds))

    def retry(self, flow_run_id: str) -> None:
        """Retry a run as the button Retry of the UI does.

        First the worker must have told the server the exit code of the old process, or the server
        takes it for the end of the retried run. Its advice on that code comes after that call. The
        coordinator's processes must all have ended.
        """

        def has_ended() -> bool:
            text = log.read_text("utf-8", "replace")
            num_exits = text.count("Process for flow run")
            num_errors = text.count(" exited with status code: ")
            num_reports = text.count("prefect.flow_runs.worker - Check ")
            num_starts = text.count("Starting flow run process")
            return num_starts == num_exits and num_errors == num_reports

        log = self.workers["coordinator"].log
        wait_until(has_ended, seconds=60, event="the worker's report of the run's end")
        state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
        body = {"state": state, "force": False}
        answer = self.api.post(f"flow_runs/{flow_run_id}/set_state", body)
        assert answer["status"] == "ACCEPT", answer

    def shard_states(self, flow_run_id: str) -> dict[str, str]:
        """Return the state of each shard of a run as the pages show it, by the shard's name."""
        task_runs: list[dict[str, Any]] = []
        while True:
            body = {"flow_runs": {"id": {"any_": [flow_run_id]}}, "sort": "ID_DESC", "limit": 200}
            page = self.api.post("task_runs/filter", body | {"offset": len(task_runs)})
            task_runs += page
            if len(page) < 200:
                break
        newest_last = reversed(task_runs)
        states = {run["name"]: run["state_name"] for run in newest_last}
        return {name: state for name, state in states.items() if name.startswith("shard ")}

    def wait_for_shards(self, flow_run_id: str, expected: dict[str, str]) -> None:
        """Wait until the pages show the shards of a run as they ended."""

        def is_shown() -> bool:
            return self.shard_states(flow_run_id) == expected

        try:
            wait_until(is_shown, seconds=120, event="the shards")
        except AssertionError as error:
            raise AssertionError(f"{self.shard_states(flow_run_id)}\n{self.tails()}") from error

    def server_runs(self) -> list[dict[str, Any]]:
        """Return the runs of the flow `serve-judge`, oldest first."""
        runs = self.api.post("flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"})
        return [run for run in runs if any("encore-judge-" in tag for tag in run["tags"])]

    def rated(self) -> list[str]:
        """Return the shards rated so far; one that was rated twice is in the list twice."""
        return [event["shard"] for event in self.control.events("rated")]

    def wait_for_rated(self, count: int, *, seconds: float = 120) -> None:
        """Wait until this many shards have been rated."""
        event = f"{count} rated shards"
        is_rated = lambda: len(self.rated()) >= count  # noqa: E731
        self._with_logs(lambda: wait_until(is_rated, seconds=seconds, event=event))

    def _with_logs(self, wait: Callable[[], Answer]) -> Answer:
        """Call a function that waits; if it gives up, add the last lines of the logs."""
        try:
            return wait()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from error

    def logs(self) -> dict[str, str]:
        """Return the logs of the server and of every worker, by name."""
        return {path.stem: path.read_text("utf-8", "replace") for path in self.folder.glob("*.log")}

    def tails(self) -> str:
        """Return the last lines of each log, for the message of a failure."""
        return "\n".join(f"== {name}\n{text[-3000:]}" for name, text in self.logs().items())

    def close(self) -> None:
        self._workers.close()
        self._server.close()


@contextlib.contextmanager
def running_farm(folder: Path, *, num_engines: int, **options: Any) -> Iterator[Farm]:
    """Run a `Farm` of these options: a server with its pools, a coordinator, workers w1, w2, …"""
    folder.mkdir(exist_ok=True)
    farm = Farm(folder=folder, **options)
    with contextlib.closing(farm):
        farm.start_server()
        farm.register()
        farm.start_worker("coordinator", pool=COORDINATORS)
        for number in range(1, num_engines + 1):
            farm.start_worker(f"w{number}")
        yield farm


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Run a Postgres server on loopback and yield its URL for Prefect."""
    folders = map(Path, ("/usr/local/bin", *_debian_postgres()))
    programs = next((folder for folder in folders if (folder / "initdb").exists()), None)
    if programs is None:
        pytest.skip("Postgres is not installed (Debian: apt install postgresql)")
    # Postgres does not run as root, and only root may read pytest's folders.
    as_user: Mapping[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="encore-postgres-") as folder:
        if as_user:
            shutil.chown(folder, "postgres")
        data, port = f"{folder}/data", free_port()
        init = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust"]
        subprocess.run(init, cwd=folder, check=True, capture_output=True, **as_user)
        serve = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c max_connections=300"
        control = [programs / "pg_ctl", "-D", data, "-w"]
        start = [*control, "-l", f"{folder}/log", "-o", serve, "start"]
        subprocess.run(start, cwd=folder, check=True, stdout=subprocess.DEVNULL, **as_user)
        try:
            yield f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
        finally:
            stop = [*control, "-m", "fast", "stop"]
            subprocess.run(stop, cwd=folder, check=True, capture_output=True, **as_user)


def _debian_postgres() -> list[str]:
    return sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
