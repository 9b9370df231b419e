"""A judge's part of the run key covers everything that may change a reply, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from encore.judges import open_judge
from tests.run_identities import differing_parts
from tests.worlds.judges import judge_and_server

Options = dict[str, Any]

FOLDER = "FOLDER"  # stands for the folder of a tiny judge
HTTP: Options = {
    "model": "some-judge",
    "backend": "http",
    "base_url": "https://one.example/v1",
    "max_model_len": 2048,
}
NAMED_HTTP = HTTP | {"revision": "1"}
TRANSFORMERS: Options = {"model": FOLDER, "backend": "transformers"}
VLLM: Options = {"model": FOLDER, "backend": "vllm"}
#: Engine arguments with which a reply may be another one, and those that only change speed.
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
#: Options of a judge, a change of them, and the parts of the identity that change with it.
CHANGES: list[tuple[Options, Options, str]] = [
    (HTTP, {"model": "other-judge"}, "name"),
    (HTTP, {"base_url": "https://two.example/v1"}, "revision"),
    (HTTP, {"revision": "2024-08-06"}, "revision"),
    (HTTP, {"max_model_len": 1024}, "max_model_len"),
    # The revision of a served model replaces its host: it alone tells two models apart.
    (NAMED_HTTP, {"revision": "2"}, "revision"),
    (NAMED_HTTP, {"base_url": "https://two.example/v1"}, ""),
    (HTTP, {"base_url": "http://one.example:9000/"}, ""),
    (HTTP, {"concurrency": 3}, ""),
    (HTTP, {"request_timeout_seconds": 9}, ""),
    (HTTP, {"headers": {"X-Organisation": "ENV:ORGANISATION"}}, ""),
    (HTTP, {"request_fields": {"user": "me", "service_tier": "flex"}}, ""),
    (HTTP, {"request_fields": {"top_p": 0.9}}, "engine_args.request_fields"),
    (HTTP, {"omit_fields": ("temperature",)}, "engine_args.omit_fields"),
    (HTTP, {"api": "systemone"}, "engine_args.api"),
    (HTTP | {"api": "systemone"}, {"api": "decisions"}, "engine_args.api"),
    (
        HTTP | {"request_fields": {"reasoning_effort": "low"}},
        {"request_fields": {"reasoning_effort": "high"}},
        "engine_args.request_fields",
    ),
    (HTTP, {"system": "Be strict."}, "engine_args.system"),
    (HTTP, {"chat_template_args": {"thinking": False}}, "engine_args.chat_template_args"),
    (VLLM, {"system": "Be strict."}, "engine_args engine_args.system"),
    (
        VLLM,
        {"chat_template_args": {"thinking": False}},
        "engine_args engine_args.chat_template_args",
    ),
    # With a tokenizer here a text is completed; without one the server makes a chat of it.
    (HTTP, {"tokenizer": FOLDER}, "chat_template_sha256 engine_args.api frozen_date"),
    *(
        (VLLM, {"engine_args": {name: value}}, f"engine_args engine_args.{name}")
        for name, value in CHANGING.items()
    ),
    (VLLM, {"engine_args": FAST}, ""),
    (  # the engine's context is that of the changed config.json
        VLLM,
        {"engine_args": {"hf_overrides": {"max_position_embeddings": 512}}},
        "engine_args engine_args.hf_overrides.max_position_embeddings max_model_len",
    ),
    (TRANSFORMERS, {"backend": "vllm"}, "backend"),
    (TRANSFORMERS, {"dtype": "bfloat16"}, "dtype"),
    (TRANSFORMERS, {"max_model_len": 1024}, "max_model_len"),
]


def identity_of(options: Options, *, folder: Path) -> dict[str, Any]:
    """Return a judge's identity; no server is asked and no engine is started."""
    filled = {name: str(folder) if text == FOLDER else text for name, text in options.items()}
    return dataclasses.asdict(open_judge(*judge_and_server(filled)).identity)


@pytest.mark.parametrize(("options", "change", "parts"), CHANGES)
def test_a_change_that_may_change_a_reply_changes_its_parts_of_the_identity_alone(
    tiny_judge, options, change, parts
):
    first, second = (identity_of(judge, folder=tiny_judge) for judge in (options, options | change))
    assert differing_parts(first, second) == set(parts.split())


def test_the_identity_of_a_served_model_names_its_revision_and_the_kind_of_its_calls(tiny_judge):
    def identity(**change: str) -> dict[str, Any]:
        return identity_of(HTTP | change, folder=tiny_judge)

    assert [identity(revision=name)["revision"] for name in ("1", "2")] == ["1", "2"]
    assert identity()["engine_args"] == {"api": "chat"}
    assert identity(tokenizer=FOLDER)["engine_args"] == {"api": "completions"}
