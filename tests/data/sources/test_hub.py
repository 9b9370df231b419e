"""Data sets on the hub are read with the real client libraries, from a hub on this machine."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.core.errors import InputError
from encore.data.sources.hub import resolve_commit, stream_records
from encore.data.sources.locate import Source, hub_sources
from tests.data.sources.mini_hub import HubRepo, mini_hub
from tests.data.sources.test_formats import record_of

HEAD, OLDER = "b1c5623" + "0" * 33, "aaaaaaa" + "1" * 33
ROOT = Path(__file__).parents[3]


def hub_repo(source: Source, head: str, **prompts: str) -> HubRepo:
    """Return a repository whose files have a pair for each letter of their prompts."""
    files = {}
    for name, letters in prompts.items():
        texts = {"chosen": "yes", "rejected": "no"}
        format_name = source.format or "pairs"
        records = [record_of(format_name, prompt=letter, **texts) for letter in letters]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        files[f"{name}.jsonl.gz"] = gzip.compress(lines.encode())
    return HubRepo(repo_id=str(source.repo_id), commits=(head, OLDER), files=files)


@pytest.fixture(autouse=True)
def reachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client libraries connect: the hub of these tests is on this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")


PAPER_HH, PAPER_PKU = hub_sources()["hh-pku"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    [hh] = hub_sources()["hh"]
    hh_files = {"harmless-base/train": "ab", "harmless-base/test": "c", "helpful-base/train": "d"}
    with mini_hub(
        hub_repo(PAPER_HH, HEAD, train="abcde", test="e"),
        hub_repo(PAPER_PKU, "d92dda2" + "0" * 33, train="abc", test="c"),
        hub_repo(hh, str(hh.revision), **hh_files),
    ) as url:
        yield url


def resolved(endpoint: str, repo_id: str, revision: str | None) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        return resolve_commit(repo_id, revision)


@pytest.mark.parametrize("revision", ["c0ffee5", "no-such-branch"])
def test_an_unknown_revision_repository_or_hub_is_an_error(endpoint, revision):
    with pytest.raises(InputError, match=f"{PAPER_HH.repo_id}.*{revision}"):
        resolved(endpoint, str(PAPER_HH.repo_id), revision)
    with pytest.raises(
        InputError, match=r"nobody/nothing: no such folder here.*check id, revision and network"
    ):
        resolved(endpoint, "nobody/nothing", None)
    with pytest.raises(InputError, match="give a local copy as FORMAT:PATH"):
        resolved("http://127.0.0.1:9", "owner/name", None)


def test_a_local_folder_streams_like_a_repository(tmp_path):
    rows = [record_of("pairs", prompt=f"Q{n}", chosen="y", rejected="n") for n in range(4)]
    for split, part in (("train", rows[:3]), ("test", rows[3:])):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / f"{split}-00000.parquet")
    streamed = list(stream_records(str(tmp_path), split="train+test"))
    assert [record.value for record in streamed] == rows
    assert [record.number for record in streamed] == [1, 2, 3, 4]
    assert len(list(stream_records(str(tmp_path)))) == 3
    with pytest.raises(InputError, match="holdout"):
        list(stream_records(str(tmp_path), split="holdout"))


@pytest.mark.services
def test_pinned_commits_subsets_and_splits_are_read_and_recorded(endpoint, tmp_path):
    """The command runs in a new process, because the hub's address is read when it starts."""
    command = [
        sys.executable,
        "-m",
        "encore.cli",
        "ingest",
        tmp_path / "study",
        "hh-pku",
        "every=hh",
    ]
    command += ["base=hh/harmless-base", "--split", "train+test", "--json"]
    output = subprocess.check_output(
        command,
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf")},
        cwd=ROOT,
        timeout=120,
    )
    sources = {source["label"]: source for source in json.loads(output)["sources"]}
    # harmless-base has two pairs for training and one for testing, helpful-base one more.
    num_kept = {label: source["num_kept"] for label, source in sources.items()}
    assert num_kept == {"hh": 5, "pku": 3, "every": 4, "base": 3}
    [origin] = sources["hh"]["origins"]
    assert origin["name"] == PAPER_HH.repo_id
    assert (origin["revision"], origin["split"]) == (HEAD, "train+test")
    assert sources["pku"]["origins"][0]["revision"].startswith(PAPER_PKU.revision)
