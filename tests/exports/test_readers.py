"""Four other programs read an export and score conversations as ENCORE does.

The readers are transformers of three versions, TRL and vLLM's server; `rewardbench` is read beside
the benchmarks. If an environment cannot be built, the test is skipped and says why. The model is a
random Llama with a misleading tokenizer.

Legend: P pairs, 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from encore.demo import JUDGE_PATH
from encore.exports.write_export import export_model
from encore.model.score_sequences import score_sequences
from tests.exports.readers.conversations import messages_of, reader_pairs
from tests.exports.readers.environments import ask, reader_python
from tests.exports.tokenizers import misleading_tokenizer
from tests.judges.vllm_server import vllm_server, wait_until_ready
from tests.worlds.models import RULES, WEIGHTS, opened_model

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
    """Return a model of 4,096 positions and ENCORE's scores of the conversations, score_NR."""
    opened = opened_model(max_position_embeddings=4096, **config)
    opened.tokenizer.max_length = 4096
    with torch.no_grad():
        opened.model.heads.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(5))
    pairs = opened.tokenizer.encode_pairs(PAIRS)
    responses = [response for pair in pairs for response in pair]
    assert not any(response.num_cut for response in responses)
    sequences = [response.token_ids for response in responses]
    pad = opened.tokenizer.pad_token_id
    return opened, score_sequences(opened.model, sequences, pad_token_id=pad).astype(np.float64)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> SimpleNamespace:
    """Return an export with all heads, a composed one, and the model's scores for both."""
    folder = tmp_path_factory.mktemp("readers")
    wide = {"hidden_size": 128, "intermediate_size": 256}  # vLLM has no attention for 8 wide heads
    opened, score_NR = scored_model(tokenizer=misleading_tokenizer(), rope_parameters=ROPE, **wide)
    export_model(opened, out=folder / "heads")
    export_model(opened, out=folder / "composed", weights=WEIGHTS)
    reward_N = score_NR @ [WEIGHTS[rule] for rule in RULES]
    return SimpleNamespace(folder=folder, score_NR=score_NR, reward_N=reward_N)


def check_scores(scores: object, expected: np.ndarray) -> None:
    actual = np.reshape(np.array(scores), expected.shape)
    np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=0)
    assert np.ptp(expected) > 0.1  # equal scores would not tell readers apart


# --- transformers ---------------------------------------------------------------------------------

OLDER = [pytest.param(minor, marks=pytest.mark.full) for minor in ("4.51", "4.57")]


@pytest.mark.parametrize("minor", [pytest.param("5", marks=pytest.mark.services), *OLDER])
def test_transformers_gives_the_scores_of_heads_folds_and_scaled_positions(
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
    for name, reading, scores in zip(models, answer["readings"], expected, strict=True):
        assert reading["dtype"] == "torch.float32"
        assert reading["labels"] == (["reward"] if name == "composed" else list(RULES))
        check_scores(reading["scores"], scores)


# --- TRL, vLLM -----------------------------------------------------------------------------------


@pytest.mark.full
def test_trl_computes_the_rewards_of_the_composed_export(exported, tmp_path):
    request = {
        "policy": str(JUDGE_PATH),
        "model": str(exported.folder / "composed"),
        "conversations": CONVERSATIONS,
    }
    answer = ask(reader_python("trl"), "trl_rewards.py", request, folder=tmp_path)
    check_scores(answer["scores"], exported.reward_N)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["heads", "composed"])
def test_vllms_pooling_server_gives_the_scores(exported, kind, tmp_path):
    folder = exported.folder / kind
    expected = exported.score_NR if kind == "heads" else exported.reward_N[:, None]
    [flags] = re.findall(r"`vllm serve \S+ (--[^`]+)`", (folder / "README.md").read_text())
    with vllm_server(folder, tmp_path / "vllm.log", *flags.split()) as (url, process):
        wait_until_ready(url, process)
        bodies = [{"model": kind, "messages": messages} for messages in CONVERSATIONS]
        with httpx.Client(base_url=url, timeout=300) as client:
            answers = [client.post("/classify", json=body).raise_for_status() for body in bodies]
    entries = [answer.json()["data"][0] for answer in answers]
    check_scores([entry["probs"] for entry in entries], expected)
    labels = RULES if kind == "heads" else ("reward",)
    best = [labels[index] for index in expected.argmax(axis=1)]
    assert [entry["label"] for entry in entries] == best
