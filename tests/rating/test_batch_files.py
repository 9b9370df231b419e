"""Batch files: requests and answers in files give the rows that a server gives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.data.rating_runs import RatingStatus, status
from encore.rating import batch_files
from tests.golden.command_line import Finished, encore
from tests.judges.hostile_server import KEY, MODEL, HostileServer, answer_to, serving
from tests.worlds.studies import numbered_pairs, study_of, write_lines

NUM_PAIRS = 6
HOST = ("--judge", MODEL, "--backend", "http", "--base-url", "https://api.example.com/v1")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return study_of(numbered_pairs(NUM_PAIRS), tmp_path / "study")


def rate(study: Path, *options: object) -> Finished:
    return encore("rate", study, *HOST, "--shard-size", 2, *options)


def requests_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_results(requests: Path, results: Path, *, num_failed: int = 0, **changes: object) -> Path:
    """Write what a provider makes of a file of requests; the first ones may fail."""
    rows = []
    for number, request in enumerate(requests_in(requests)):
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        row = {"id": f"batch-{number}", "custom_id": request["custom_id"]}
        response = {"status_code": 200, "body": answer_to(request["body"]) | changes}
        error = {"response": None, "error": {"code": "batch_expired"}}
        rows.append(row | (error if number < num_failed else {"response": response, "error": None}))
    return write_lines(results, reversed(rows))  # results come in any order


def only_run(study: Path) -> RatingStatus:
    [run] = status(study)
    return run


def rows(run: RatingStatus) -> list[dict[str, object]]:
    table = pa.concat_tables(map(pq.read_table, run.paths))
    return table.drop_columns(["judge", "run_key"]).to_pylist()


def test_answers_in_files_give_the_rows_that_a_server_gives(study, tmp_path, monkeypatch):
    requests = tmp_path / "requests.jsonl"
    written = rate(study, "--batch-file", requests, "--json")
    assert written.json["files"] == {str(requests): NUM_PAIRS * 20}
    ids = [request["custom_id"] for request in requests_in(requests)]
    assert max(Counter(ids).values()) == 1
    assert max(map(len, ids)) <= 64
    done = rate(study, "--batch-results", write_results(requests, tmp_path / "results.jsonl"))
    assert done.code == 0, done.err
    run = only_run(study)
    assert run.total("num_ratings") == NUM_PAIRS * 20
    assert run.total("prompt_tokens") == NUM_PAIRS * 20 * 100
    assert "nothing is left" in rate(study, "--batch-file", tmp_path / "more.jsonl").err

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    served_study = study_of(numbered_pairs(NUM_PAIRS), tmp_path / "served")
    with serving(HostileServer()) as server:
        assert rate(served_study, "--base-url", server.base_url).code == 0
    assert rows(only_run(served_study)) == rows(run)


def test_files_of_requests_have_the_fields_that_calls_have(study, tmp_path):
    requests = tmp_path / "requests.jsonl"
    fields = ("--request-field", 'reasoning_effort="low"', "--omit-field", "temperature")
    assert rate(study, "--batch-file", requests, *fields).code == 0
    [*bodies] = (request["body"] for request in requests_in(requests))
    assert {body["reasoning_effort"] for body in bodies} == {"low"}
    assert not any("temperature" in body for body in bodies)


def test_missing_answers_leave_their_shard_open_and_can_be_asked_again(study, tmp_path):
    requests, more = tmp_path / "requests.jsonl", tmp_path / "more.jsonl"
    assert rate(study, "--batch-file", requests).code == 0
    results = write_results(requests, tmp_path / "results.jsonl", num_failed=3)
    incomplete = rate(study, "--batch-results", results)
    assert incomplete.code == 3
    assert "lack 3 of 40 answers" in incomplete.err
    assert "batch_expired" in incomplete.err
    assert [shard.state for shard in only_run(study).shards] == ["failed", "done", "done"]
    again = rate(study, "--batch-file", more, "--batch-results", results, "--json")
    assert again.json["files"] == {str(more): 3}
    more_results = write_results(more, tmp_path / "more-results.jsonl")
    two_files = ("--batch-results", results, "--batch-results", more_results)
    assert rate(study, *two_files).code == 0
    assert only_run(study).total("num_ratings") == NUM_PAIRS * 20


def test_results_of_another_run_or_model_and_contradictions_are_refused(study, tmp_path):
    requests = tmp_path / "requests.jsonl"
    assert rate(study, "--batch-file", requests).code == 0
    results = write_results(requests, tmp_path / "results.jsonl")
    contrary = tmp_path / "contrary.jsonl"
    contrary.write_text(results.read_text().replace('"content": "0.', '"content": "1.'))
    foreign = write_results(requests, tmp_path / "foreign.jsonl", model="another-judge")
    (page := tmp_path / "page.jsonl").write_text("<html>")
    for message, *options in (
        ("belongs to run", "--batch-results", results, "--max-reply-tokens", 8),
        ("is answered twice", "--batch-results", results, "--batch-results", contrary),
        ("is an answer by 'another-judge'", "--batch-results", foreign),
        ("line 1: no batch result", "--batch-results", page),
        ("no --tokenizer", "--batch-file", requests, "--tokenizer", study),
    ):
        refused = rate(study, *options)
        assert refused.code == 1
        assert message in refused.err
    # The same answer twice is no contradiction.
    same = rate(study, "--batch-results", results, "--batch-results", results, "--shard", 0)
    assert same.code == 0


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


def test_only_requests_within_the_limits_of_a_run_are_written(study, tmp_path):
    written = rate(study, "--batch-file", tmp_path / "r.jsonl", "--budget-calls", 50, "--json")
    assert [*written.json["files"].values()] == [40]  # a shard: two pairs under ten rules
