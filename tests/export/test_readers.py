"""One export, five readers: other people's programs score a conversation as we do.

The readers are transformers of four versions, TRL, the `rewardbench` command and vLLM's server.
Where an environment cannot be built the test says why and is skipped; with ENCORE_REQUIRE_READERS=1
it fails instead. Full runs print the largest difference of each reader.

Legend: P pairs, 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from encore.cli.export import export as export_command
from encore.demo import judge_path
from encore.export import export_model
from encore.export.verify import EXAMPLE
from encore.model.scoring import score_sequences
from tests.cli.invoking import Command
from tests.export.opened import RULES, opened_model
from tests.export.readers.card import code_of_card, run_card, scores_promised
from tests.export.readers.conversations import (
    conversations_of,
    reader_pairs,
)
from tests.export.readers.environments import reader_python
from tests.export.readers.exports import Exported, export_both, own_scores
from tests.export.readers.models import WEIGHTS, save_demo_model
from tests.export.readers.processes import ask
from tests.export.readers.vllm_server import classify, classify_texts, pooling_server
from tests.perf.readers_rewardbench import run_rewardbench

#: Building an environment takes a minute or two, once on a machine.
pytestmark = pytest.mark.timeout(1800)
TOLERANCE = 1e-5
PAIRS = reader_pairs()
CONVERSATIONS = conversations_of(PAIRS)
THIS_PYTHON = Path(sys.executable)

Agree = Callable[[str, object, NDArray[np.floating]], None]


# --- fixtures -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[pytest.param("demo", marks=pytest.mark.full), "trapful"])
def exported(request, tmp_path_factory) -> Exported:
    return export_both(request.param, tmp_path_factory.mktemp(request.param), PAIRS)


@pytest.fixture(scope="module")
def demo_export(tmp_path_factory) -> Exported:
    return export_both("demo", tmp_path_factory.mktemp("demo"), PAIRS)


@pytest.fixture(scope="module")
def trapful_export(tmp_path_factory) -> Exported:
    return export_both("trapful", tmp_path_factory.mktemp("trapful"), PAIRS)


@pytest.fixture
def tell(request, capsys) -> Callable[[str], None]:
    """Print a line also where pytest captures output; only full runs say anything."""
    is_full = request.node.get_closest_marker("full") is not None

    def line(text: str) -> None:
        if is_full:
            with capsys.disabled():
                request.config.get_terminal_writer().line(f"\n  {text}")

    return line


@pytest.fixture
def agree(tell) -> Agree:
    """Whether a reader's scores are ours, to the tolerance."""

    def compare(reader: str, theirs: object, ours: NDArray[np.floating]) -> None:
        difference = np.abs(np.reshape(np.array(theirs), ours.shape) - ours).max()
        tell(f"{reader}: largest difference {difference:.1e}")
        assert difference <= TOLERANCE, reader

    return compare


# --- transformers ---------------------------------------------------------------------------------


def assert_plain_transformers_agrees(
    exported: Exported, python: Path, folder: Path, *, agree: Agree
) -> str:
    """Both exports, read by the version that an interpreter has; which one that is."""
    models = [str(exported.heads), str(exported.composed)]
    request = {"models": models, "conversations": CONVERSATIONS}
    answer = ask(python, "plain_transformers.py", request, folder=folder)
    version = str(answer["transformers"])
    heads, composed = answer["readings"]
    assert heads["dtype"] == composed["dtype"] == "torch.float32"
    assert heads["labels"] == list(exported.scores.head_ids)
    assert composed["labels"] == ["reward"]
    agree(f"transformers {version}, heads", heads["scores"], exported.score_NR)
    # Folded in theirs = composed in ours.
    agree(f"transformers {version}, composed", composed["scores"], exported.reward_P2)
    return version


def test_transformers_of_this_environment_agrees(exported, agree, tmp_path):
    version = assert_plain_transformers_agrees(exported, THIS_PYTHON, tmp_path, agree=agree)
    assert version.startswith("5.")


@pytest.mark.full
@pytest.mark.parametrize("minor", ["4.51", "4.57"])
def test_older_transformers_agree(exported, minor, agree, tmp_path):
    python = reader_python(f"transformers-{minor}")
    version = assert_plain_transformers_agrees(exported, python, tmp_path, agree=agree)
    assert version.startswith(minor)


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    "yarn": YARN | {"original_max_position_embeddings": 4096},
    "yarn of a quarter": YARN | {"original_max_position_embeddings": 1024},
}


@pytest.mark.full
@pytest.mark.parametrize("minor", ["4.51", "4.57"])
def test_older_transformers_agree_on_every_scaling_of_positions(minor, agree, tmp_path):
    ours = {}
    for name, rope in ROPES.items():
        opened = opened_model(max_position_embeddings=4096, rope_parameters=dict(rope))
        opened.tokenizer.max_length = 4096
        export_model(opened, out=tmp_path / name)
        ours[name] = own_scores(opened, PAIRS).score_P2R.reshape(-1, len(RULES))
    request = {"models": [str(tmp_path / name) for name in ROPES], "conversations": CONVERSATIONS}
    python = reader_python(f"transformers-{minor}")
    answer = ask(python, "plain_transformers.py", request, folder=tmp_path / "ask")
    for (name, scores), reading in zip(ours.items(), answer["readings"], strict=True):
        agree(f"transformers {answer['transformers']}, {name}", reading["scores"], scores)


# --- TRL, rewardbench, vLLM -----------------------------------------------------------------------


@pytest.mark.full
def test_trl_takes_the_composed_export_as_reward_funcs(exported, agree, tmp_path):
    request = {
        "policy": str(judge_path()),
        "model": str(exported.composed),
        "conversations": CONVERSATIONS,
    }
    answer = ask(reader_python("trl"), "trl_rewards.py", request, folder=tmp_path)
    agree(f"TRL {answer['trl']}", answer["scores"], exported.reward_P2)


@pytest.mark.full
# It pads on the left, which moves positions: beside a conversation of 2,400 tokens the angles of
# the rotary embedding round otherwise, and scores differ by 1.4e-5. One at a time nothing moves.
@pytest.mark.parametrize(("model", "batch_size"), [("demo", 8), ("trapful", 1)])
def test_the_rewardbench_command_agrees(model, batch_size, agree, request):
    exported: Exported = request.getfixturevalue(f"{model}_export")
    python = reader_python("rewardbench")
    run = run_rewardbench(exported.composed, PAIRS, python=python, batch_size=batch_size)
    agree(f"rewardbench, batches of {batch_size}", run.score_P2, exported.reward_P2)
    # It takes a pair for right where chosen is strictly above rejected.
    assert run.accuracy == pytest.approx(
        np.mean(exported.reward_P2[:, 0] > exported.reward_P2[:, 1])
    )


@pytest.mark.full
@pytest.mark.parametrize(("model", "kind"), [("demo", "composed"), ("trapful", "heads")])
def test_vllms_pooling_server_agrees(model, kind, agree, tmp_path, request):
    exported: Exported = request.getfixturevalue(f"{model}_export")
    folder, ours, labels = {
        "heads": (exported.heads, exported.score_NR, exported.scores.head_ids),
        "composed": (exported.composed, exported.reward_P2, ("reward",)),
    }[kind]
    tokenizer = exported.opened.tokenizer
    texts = [
        tokenizer.render(pair.prompt, response)
        for pair in PAIRS
        for response in (pair.chosen, pair.rejected)
    ]
    with pooling_server(folder, folder=tmp_path) as url:
        of_messages, entries = classify(url, CONVERSATIONS)
        of_texts = classify_texts(url, texts)
    agree(f"vLLM, {kind}, messages", of_messages, ours)
    agree(f"vLLM, {kind}, rendered texts", of_texts, ours)
    assert [entry["label"] for entry in entries] == [
        labels[place] for place in of_messages.argmax(axis=1)
    ]


# --- a stranger -----------------------------------------------------------------------------------


def example_score(exported: Exported) -> float:
    """What our own composition says of the card's example."""
    prompt, response = EXAMPLE
    tokenizer = exported.opened.tokenizer
    score_1R = score_sequences(
        exported.opened.model,
        [tokenizer.encode(prompt, response).token_ids],
        pad_token_id=tokenizer.pad_token_id,
    )
    weight_R = np.array([exported.weights[head_id] for head_id in exported.scores.head_ids])
    return float(score_1R[0].astype(np.float64) @ weight_R)


def test_the_cards_own_lines_print_the_number_it_promises(trapful_export, tmp_path):
    promised = scores_promised(trapful_export.composed)
    printed = run_card(trapful_export.composed, python=THIS_PYTHON, folder=tmp_path)
    assert printed == pytest.approx(promised, abs=TOLERANCE)
    assert printed == pytest.approx({"reward": example_score(trapful_export)}, abs=TOLERANCE)


@pytest.mark.full
@pytest.mark.parametrize("name", ["transformers-4.51", "transformers-4.57"])
def test_a_stranger_needs_transformers_and_the_cards_ten_lines(name, demo_export, tell, tmp_path):
    save_demo_model(tmp_path / "model")
    (tmp_path / "weights.json").write_text(json.dumps(WEIGHTS))
    arguments = [tmp_path / "model", "--out", tmp_path / "given-away"]
    done = Command(export_command)(*arguments, "--weights", tmp_path / "weights.json")
    assert done.exit_code == 0, done.output
    export = tmp_path / "given-away"
    statements = code_of_card(export).split("\n")
    assert len([line for line in statements if line.strip()]) <= 10
    assert "encore" not in code_of_card(export)
    [(label, printed)] = run_card(
        export, python=reader_python(name), folder=tmp_path / "stranger"
    ).items()
    assert label == "reward"
    assert printed == pytest.approx(example_score(demo_export), abs=TOLERANCE)
    assert printed == pytest.approx(scores_promised(export)["reward"], abs=TOLERANCE)
    tell(f"{name}: the card's lines print {printed:.6f}, ENCORE {example_score(demo_export):.6f}")


# --- bfloat16 -------------------------------------------------------------------------------------
