"""A judge's part of the run key covers everything that may change a reply, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from encore.judges import open_judge
from encore.judges.judge_options import JudgeConfig
from tests.run_identities import differing_parts
from tests.worlds.tiny_judge import make_tiny_judge

HTTP: dict[str, Any] = {
    "model": "some-judge",
    "backend": "http",
    "base_url": "https://one.example/v1",
    "max_model_len": 2048,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_judge(tmp_path_factory.mktemp("judges") / "my-judge")


def identity_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return a judge's identity; no server is asked and no engine is started."""
    return dataclasses.asdict(open_judge(JudgeConfig.model_validate(options)).identity)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("name", {"model": "other-judge"}),
        ("revision", {"base_url": "https://two.example/v1"}),
        ("revision", {"revision": "2024-08-06"}),
        ("max_model_len", {"max_model_len": 1024}),
    ],
)
def test_the_known_facts_of_a_served_model_are_in_its_identity(part, change):
    assert differing_parts(identity_of(HTTP), identity_of(HTTP | change)) == {part}


def test_the_revision_of_a_served_model_replaces_its_host_in_the_identity():
    """Two models of one name on one host are told apart by it alone."""
    first, second = (identity_of({**HTTP, "revision": revision}) for revision in ("1", "2"))
    assert (first["revision"], second["revision"]) == ("1", "2")
    moved = {**HTTP, "revision": "1", "base_url": "https://two.example/v1"}
    assert identity_of(moved) == first


def test_chats_and_completions_of_one_server_are_two_judges(folder):
    """A tokenizer here makes the texts that are completed; the server's own template a chat."""
    chat, completions = identity_of(HTTP), identity_of({**HTTP, "tokenizer": str(folder)})
    assert differing_parts(chat, completions) == {
        "chat_template_sha256",
        "engine_args.api",
        "frozen_date",
    }
    assert chat["engine_args"] == {"api": "chat"}
    assert completions["engine_args"] == {"api": "completions"}


@pytest.mark.parametrize(
    "change",
    [{"base_url": "http://one.example:9000/"}, {"concurrency": 3}, {"request_timeout_seconds": 9}],
    ids=lambda change: next(iter(change)),
)
def test_port_and_request_options_of_a_server_are_not_in_the_identity(change):
    assert identity_of(HTTP | change) == identity_of(HTTP)


#: Of vLLM: engine arguments by whether a reply may be another one with them.
CHANGING = {
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "hf_overrides": "{}",
    "enable_lora": True,
    "attention_backend": "FLASHINFER",
}
FAST = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "gpu_memory_utilization": 0.5,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}


@pytest.mark.parametrize("name", CHANGING)
def test_an_engine_argument_that_may_change_a_reply_is_in_the_identity(folder, name):
    vllm = {"model": str(folder), "backend": "vllm"}
    changed = identity_of({**vllm, "engine_args": {name: CHANGING[name]}})
    parts = {"engine_args", f"engine_args.{name}"}
    assert differing_parts(identity_of(vllm), changed) == parts


def test_engine_arguments_that_only_change_speed_are_not_in_the_identity(folder):
    vllm = {"model": str(folder), "backend": "vllm"}
    assert identity_of({**vllm, "engine_args": FAST}) == identity_of(vllm)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("backend", {"backend": "vllm"}),
        ("dtype", {"dtype": "bfloat16"}),
        ("max_model_len", {"max_model_len": 1024}),
    ],
)
def test_backend_dtype_and_context_of_a_local_judge_are_in_its_identity(folder, part, change):
    local = {"model": str(folder), "backend": "transformers"}
    assert differing_parts(identity_of(local), identity_of(local | change)) == {part}
