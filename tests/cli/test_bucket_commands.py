"""Commands on a study in a bucket: all of them, a killed driver, a second one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from encore.buckets.bucket_store import BucketStore
from encore.core.errors import EncoreError
from encore.core.folder_watches import sending_studies
from encore.data.study_options import StudyArgument
from encore.reports.report_options import ReportConfig
from tests.cli.conftest import Run
from tests.judges.hostile_server import MODEL, HostileServer, serving
from tests.worlds.buckets import fail_after, new_bucket, s3_server, set_s3_environment
from tests.worlds.studies import numbered_pairs, study_of, write_lines

NUM_PAIRS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def address(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a study with a few pairs, ingested by another machine."""
    set_s3_environment(monkeypatch, server)
    use_machine(monkeypatch, tmp_path / "a")
    return f"{new_bucket(server)}/my-study"


def use_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the following commands run as on a machine with this cache folder."""
    monkeypatch.setenv("ENCORE_CACHE_DIR", str(folder))


def ingest(encore: Run, address: str, tmp_path: Path, num_pairs: int = NUM_PAIRS) -> None:
    file = write_lines(tmp_path / "pairs.jsonl", numbered_pairs(num_pairs))
    finished = encore("ingest", address, f"mine={file}")
    assert finished.code == 0, finished.err
    assert f"next: encore rate {address} --judge JUDGE" in finished.err
    assert f"Preference pairs in {address}" in finished.out


@pytest.mark.services
def test_commands_give_the_same_on_a_bucket_as_on_a_folder(
    encore: Run, judge_folder: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(encore, address, tmp_path)
    local = study_of(numbered_pairs(NUM_PAIRS), tmp_path / "my-study")
    rating = ("--judge", judge_folder, "--backend", "transformers", "--shard-size", 4, "--json")
    for number, study in enumerate((address, local)):
        use_machine(monkeypatch, tmp_path / "b")  # one shard here, the other one elsewhere
        second_shard = encore("rate", study, *rating, "--shard", 1).json
        assert (second_shard["rated"], second_shard["reused"]) == (1, 0)
        use_machine(monkeypatch, tmp_path / "c")
        both = encore("rate", study, *rating).json
        assert (both["rated"], both["reused"]) == (1, 1), number
    use_machine(monkeypatch, tmp_path / "d")
    query = "select rule_id, response, rating from ratings order by all"
    calls: tuple[tuple[object, ...], ...] = (
        ("status", "{}", "--json"),
        ("analyze", "{}", "--json"),
        ("weights", "{}", "--json"),
        ("sql", "{}", query, "--json"),
        ("plan", "rate", "{}", *rating),
        ("analyze", "{}", "--compare", "{}", "--json"),
    )
    for call in calls:
        in_bucket, in_folder = (
            encore(*(study if part == "{}" else part for part in call))
            for study in (address, local)
        )
        assert in_bucket.code == in_folder.code == 0, in_bucket.err
        mirror = next((tmp_path / "d").glob("studies/*/files/my-study"))
        assert in_bucket.out.replace(str(mirror), str(local)) == in_folder.out, call
    report = encore("report", address, "--json").json
    names = BucketStore(address).objects()
    assert any(name.endswith("report.html") for name in names)
    assert Path(report["page"]).is_file()  # in the local copy


def test_inputs_that_are_wrong_are_one_line_each(encore: Run, address: str, tmp_path: Path) -> None:
    ingest(encore, address, tmp_path)
    bucket = address.removesuffix("/my-study")
    for call, reason in {
        ("status", address.replace("s3", "s4")): "begins with one of s3://, gs://, az://, file://",
        ("status", bucket): "expected a bucket and a folder in it",
        ("status", "s3://AKIATHEKEY:thesecret@b/study"): "leave keys out of it",
        ("status", "s3://no-such-bucket/study"): "there is no such bucket",
        ("status", f"{bucket}/other"): f"study {bucket}/other: no such directory",
        ("analyze", f"{bucket}/other"): f"ratings {bucket}/other: no such file or folder",
        ("report", address, "--out", f"{bucket}/report"): "only a study may be in a bucket",
        ("compare", address, f"{bucket}/other"): "no benchmark table yet",
    }.items():
        finished = encore(*call)
        assert finished.code == 1
        assert reason in finished.error, call
        assert "thesecret" not in finished.err


def test_what_cannot_be_sent_is_an_error_after_the_work(
    encore: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_lines(tmp_path / "pairs.jsonl", numbered_pairs(3))
    with pytest.MonkeyPatch.context() as limit:
        fail_after(limit, 0)
        finished = encore("ingest", address, f"mine={file}")
    assert finished.code == 1
    assert "new files are not in" in finished.error
    assert encore("status", address).code == 0  # sends them
    use_machine(monkeypatch, tmp_path / "b")
    assert encore("status", address, "--json").code == 0


def test_forms_and_recipes_take_an_address(encore: Run, address: str, tmp_path: Path) -> None:
    ingest(encore, address, tmp_path)
    with sending_studies():
        study = TypeAdapter(StudyArgument).validate_python(address)
        assert (study / "study.json").is_file()
        assert study.name == "my-study"
        with pytest.raises(EncoreError, match="out s3://b/x: only a study may be in a bucket"):
            ReportConfig.model_validate({"ratings": address, "out": "s3://b/x"})
    assert TypeAdapter(StudyArgument).json_schema()["format"] == "path"


@pytest.mark.services
def test_a_killed_driver_is_continued_elsewhere_and_a_second_one_refused(
    encore: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_shards = 12
    ingest(encore, address, tmp_path, num_shards)
    with serving(HostileServer(key="")) as judge:
        rating = (
            *("rate", address, "--judge", MODEL, "--backend", "http", "--base-url", judge.base_url),
            *("--shard-size", 1, "--concurrency", 1, "--json"),
        )
        use_machine(monkeypatch, tmp_path / "b")
        command = [sys.executable, "-m", "encore.cli", *map(str, rating)]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as driver:
            wait_for_shards(address, num_shards // 2)
            os.kill(driver.pid, signal.SIGSTOP)  # it is alive, and does not end meanwhile
            use_machine(monkeypatch, tmp_path / "c")
            second = encore(*rating)
            assert second.code == 1
            assert "another process works on this run (host" in second.error
            assert f"process {driver.pid}, since" in second.error
            driver.kill()
        num_done = num_shards_in(address)
        use_machine(monkeypatch, tmp_path / "d")
        values = encore(*rating).json
    assert num_shards // 2 <= num_done < num_shards
    assert (values["reused"], values["rated"]) == (num_done, num_shards - num_done)
    assert num_shards_in(address) == num_shards
    use_machine(monkeypatch, tmp_path / "b")
    assert f"{num_shards} done, 0 missing" in encore("status", address).out


def num_shards_in(address: str) -> int:
    """Return the number of shards in a bucket."""
    return sum("/shard-" in name for name in BucketStore(address).objects())


def wait_for_shards(address: str, number: int) -> None:
    """Wait until so many shards are in a bucket."""
    deadline = time.monotonic() + 60
    while num_shards_in(address) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)
