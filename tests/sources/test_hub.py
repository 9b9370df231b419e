"""Data sets on the hub: the real client libraries against a hub on this machine."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.data.sources import HUB_SOURCES
from encore.data.sources.hub import resolve_commit, stream_records
from encore.errors import InputError
from tests.sources.mini_hub import HubRepo, mini_hub
from tests.sources.test_formats import record_of

HEAD, OLDER = "b1c5623" + "0" * 33, "aaaaaaa" + "1" * 33
ROOT = Path(__file__).parents[2]


def rlhflow_repo(repo_id: str, *, head: str, num_pairs: int) -> HubRepo:
    rows = [
        record_of("rlhflow", prompt=f"Q{index}?", chosen="yes", rejected="no")
        for index in range(num_pairs)
    ]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    name = "data/train-00000-of-00001.parquet"
    return HubRepo(repo_id=repo_id, commits=(head, OLDER), files={name: file.getvalue()})


def hh_repo() -> HubRepo:
    def lines(*prompts: str) -> bytes:
        records = [record_of("hh", prompt=text, chosen="yes", rejected="no") for text in prompts]
        return gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode())

    (source,) = HUB_SOURCES["hh"]
    files = {
        "harmless-base/train.jsonl.gz": lines("a", "b"),
        "harmless-base/test.jsonl.gz": lines("c"),
        "helpful-base/train.jsonl.gz": lines("d"),
    }
    return HubRepo(repo_id=source.repo_id, commits=(source.revision,), files=files)


@pytest.fixture(autouse=True)
def reachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run offline; the hub of these tests is on this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")


PAPER_HH, PAPER_PKU = HUB_SOURCES["hh-pku"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with mini_hub(
        rlhflow_repo(PAPER_HH.repo_id, head=HEAD, num_pairs=5),
        rlhflow_repo(PAPER_PKU.repo_id, head="d92dda2" + "0" * 33, num_pairs=3),
        hh_repo(),
    ) as url:
        yield url


@pytest.mark.parametrize("revision", [None, "main", "b1c5623", HEAD])
def test_every_way_to_name_a_commit_gives_its_full_id(endpoint: str, revision: str | None) -> None:
    assert resolve_commit(PAPER_HH.repo_id, revision, endpoint=endpoint) == HEAD


@pytest.mark.parametrize("revision", ["c0ffee5", "no-such-branch", "f" * 40])
def test_an_unknown_revision_is_an_error(endpoint: str, revision: str) -> None:
    with pytest.raises(InputError, match=f"{PAPER_HH.repo_id}.*{revision}"):
        resolve_commit(PAPER_HH.repo_id, revision, endpoint=endpoint)


def test_an_unknown_repository_is_an_error(endpoint: str) -> None:
    with pytest.raises(InputError, match=r"nobody/nothing.*check id, revision and network"):
        resolve_commit("nobody/nothing", None, endpoint=endpoint)


def test_a_hub_out_of_reach_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(InputError, match="give a local copy as FORMAT:PATH"):
        resolve_commit("owner/name", None, endpoint="http://127.0.0.1:9")


def test_a_local_folder_streams_like_a_repository(tmp_path: Path) -> None:
    rows = [record_of("pairs", prompt=f"Q{n}", chosen="y", rejected="n") for n in range(4)]
    for split, part in (("train", rows[:3]), ("test", rows[3:])):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / f"{split}-00000.parquet")
    both = list(stream_records(str(tmp_path), split="train+test"))
    assert [record.value for record in both] == rows
    assert [record.number for record in both] == [1, 2, 3, 4]
    assert len(list(stream_records(str(tmp_path)))) == 3


def test_an_unknown_split_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "Q"}\n')
    with pytest.raises(InputError, match="holdout"):
        list(stream_records(str(tmp_path), split="holdout"))


def ingest(endpoint: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`encore ingest` as a process of its own: the hub's address is read when it starts."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "encore.cli",
            "ingest",
            *arguments,
            "--out",
            str(home / "study"),
            "--json",
        ],
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_papers_data_come_from_their_pinned_commits(endpoint: str, tmp_path: Path) -> None:
    done = ingest(endpoint, tmp_path, "hh-pku")
    assert done.returncode == 0, done.stderr
    hh, pku = json.loads(done.stdout)["sources"]
    assert (hh["label"], hh["num_kept"], pku["label"], pku["num_kept"]) == ("hh", 5, "pku", 3)
    assert hh["origins"] == [
        {
            "kind": "hub",
            "name": PAPER_HH.repo_id,
            "format": "rlhflow",
            "revision": HEAD,
            "split": "train",
            "subset": None,
            "prefer": None,
            "num_read": 5,
        }
    ]
    assert pku["origins"][0]["revision"].startswith(PAPER_PKU.revision)


def test_a_subset_and_splits_can_be_chosen(endpoint: str, tmp_path: Path) -> None:
    arguments = ("every=hh", "base=hh/harmless-base", "--split", "train+test")
    done = ingest(endpoint, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    kept = {one["label"]: one["num_kept"] for one in json.loads(done.stdout)["sources"]}
    # harmless-base has two pairs for training and one for testing, helpful-base one more.
    assert kept == {"every": 4, "base": 3}


def test_two_commits_of_one_data_set_do_not_mix(endpoint: str, tmp_path: Path) -> None:
    repo = PAPER_HH.repo_id
    done = ingest(endpoint, tmp_path, repo, f"{repo}@{OLDER}")
    assert done.returncode != 0
    assert "under one label 'hh'" in done.stderr
    assert not (tmp_path / "study").exists()
