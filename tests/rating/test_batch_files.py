"""Batch files: a run is asked and answered in files, and its rows are those of a server's run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from encore.data.rating_runs import RatingStatus, status
from encore.rating import batch_files
from tests.golden.command_line import Finished, encore
from tests.judges.hostile_server import KEY, MODEL, HostileServer, answer_to, serving
from tests.judges.test_http_judge import write_study

NUM_PAIRS = 6
HOST = ("--judge", MODEL, "--backend", "http", "--base-url", "https://api.example.com/v1")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path, num_pairs=NUM_PAIRS)


def rate(study: Path, *options: object) -> Finished:
    return encore("rate", study, *HOST, "--shard-size", 2, *options)


def answered(requests: Path, results: Path, *, skip: int = 0, **changes: object) -> Path:
    """What a provider makes of a file; ``skip`` requests at the beginning get an error."""
    lines = []
    for number, line in enumerate(requests.read_text(encoding="utf-8").splitlines()):
        request = json.loads(line)
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        row = {"id": f"batch-{number}", "custom_id": request["custom_id"], "error": None}
        body = answer_to(request["body"]) | changes
        row["response"] = {"status_code": 200, "body": body}
        if number < skip:
            row |= {"response": None, "error": {"code": "batch_expired"}}
        lines.append(json.dumps(row) + "\n")
    results.write_text("".join(reversed(lines)), encoding="utf-8")  # in any order
    return results


def only_run(study: Path) -> RatingStatus:
    [run] = status(study)
    return run


def rows(run: RatingStatus) -> list[dict[str, object]]:
    every = [row for path in run.paths for row in pq.read_table(path).to_pylist()]
    return [{name: row[name] for name in row if name not in ("judge", "run_key")} for row in every]


def test_answers_in_files_give_the_rows_that_a_server_gives(study, tmp_path, monkeypatch):
    requests = tmp_path / "requests.jsonl"
    written = rate(study, "--batch-file", requests, "--json")
    assert written.json["files"] == {str(requests): NUM_PAIRS * 20}
    ids = [json.loads(line)["custom_id"] for line in requests.read_text().splitlines()]
    assert max(Counter(ids).values()) == 1
    assert max(map(len, ids)) <= 64
    done = rate(study, "--batch-results", answered(requests, tmp_path / "results.jsonl"))
    assert done.code == 0, done.err
    run = only_run(study)
    assert run.total("num_ratings") == NUM_PAIRS * 20
    assert run.total("prompt_tokens") == NUM_PAIRS * 20 * 100
    assert "nothing is left" in rate(study, "--batch-file", tmp_path / "more.jsonl").err

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    other = write_study(tmp_path / "served", num_pairs=NUM_PAIRS)
    with serving(HostileServer()) as server:
        over = ("--judge", MODEL, "--backend", "http", "--base-url", server.base_url)
        assert encore("rate", other, *over, "--shard-size", 2).code == 0
    assert rows(only_run(other)) == rows(run)


def test_rows_that_lack_leave_their_shard_open_and_can_be_asked_again(study, tmp_path):
    requests, more = tmp_path / "requests.jsonl", tmp_path / "more.jsonl"
    assert rate(study, "--batch-file", requests).code == 0
    results = answered(requests, tmp_path / "results.jsonl", skip=3)
    partly = rate(study, "--batch-results", results)
    assert partly.code == 3
    assert "lack 3 of 40 answers" in partly.err
    assert "batch_expired" in partly.err
    assert [shard.state for shard in only_run(study).shards] == ["failed", "done", "done"]
    again = rate(study, "--batch-file", more, "--batch-results", results, "--json")
    assert again.json["files"] == {str(more): 3}
    both = ("--batch-results", results, "--batch-results", answered(more, tmp_path / "rest.jsonl"))
    assert rate(study, *both).code == 0
    assert only_run(study).total("num_ratings") == NUM_PAIRS * 20


def test_results_of_another_run_or_model_and_contradictions_are_refused(study, tmp_path):
    requests = tmp_path / "requests.jsonl"
    assert rate(study, "--batch-file", requests).code == 0
    results = answered(requests, tmp_path / "results.jsonl")
    other = rate(study, "--batch-results", results, "--max-reply-tokens", 8)
    assert other.code == 1
    assert "belongs to run" in other.err
    same = rate(study, "--batch-results", results, "--batch-results", results, "--shard", 0)
    assert same.code == 0
    contrary = tmp_path / "contrary.jsonl"
    contrary.write_text(results.read_text().replace('"content": "0.', '"content": "1.'))
    refused = rate(study, "--batch-results", results, "--batch-results", contrary)
    assert refused.code == 1
    assert "is answered twice" in refused.err
    named = answered(requests, tmp_path / "named.jsonl", model="another-judge")
    assert "is an answer by 'another-judge'" in rate(study, "--batch-results", named).err
    named.write_text("<html>")
    assert "line 1: no batch result" in rate(study, "--batch-results", named).err
    assert rate(study, "--batch-file", requests, "--tokenizer", study).code == 1


def test_requests_are_divided_as_providers_limit_their_files(study, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_files, "MAX_REQUESTS", 50)
    written = rate(study, "--batch-file", tmp_path / "r.jsonl", "--json").json["files"]
    assert written == {
        str(tmp_path / name): count
        for name, count in (("r.jsonl", 50), ("r-2.jsonl", 50), ("r-3.jsonl", 20))
    }
    monkeypatch.setattr(batch_files, "MAX_BYTES", 20_000)
    for name in rate(study, "--batch-file", tmp_path / "r.jsonl", "--json").json["files"]:
        assert 0 < Path(name).stat().st_size <= 20_000


def test_only_what_is_within_the_limits_of_a_run_is_written(study, tmp_path):
    written = rate(study, "--batch-file", tmp_path / "r.jsonl", "--budget-calls", 50, "--json")
    assert [*written.json["files"].values()] == [40]  # a shard: two pairs under ten rules
