"""Take one cure away from an export, and an older reader or vLLM gives other scores, or none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.export.readers.conversations import conversations_of, reader_pairs
from tests.export.readers.exports import Exported, export_both
from tests.export.readers.models import CHATML
from tests.export.readers.processes import ask
from tests.export.readers.skipping import reader_python
from tests.export.readers.vllm_server import classify, pooling_server

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
PAIRS = reader_pairs()
CONVERSATIONS = conversations_of(PAIRS)
#: A hundred times what readers may differ by.
CLEARLY = 1e-3

_BEGIN_AGAIN = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]}},
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Exported:
    return export_both("trapful", tmp_path_factory.mktemp("trapful"), PAIRS)


@pytest.fixture(scope="module")
def old_python() -> Path:
    return reader_python("transformers-4.51")


def change(folder: Path, name: str, edit: Callable[[dict], None]) -> None:
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))


def only_the_new_rope(folder: Path) -> None:
    change(folder, "config.json", lambda c: (c.pop("rope_theta"), c.pop("rope_scaling")))


def padding_with_the_end_of_turn(folder: Path) -> None:
    end = "<|im_end|>"
    change(folder, "config.json", lambda c: c.update(pad_token_id=2))
    change(folder, "tokenizer_config.json", lambda c: c.update(pad_token=end))


def the_template_as_it_was(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(CHATML)
    change(folder, "tokenizer_config.json", lambda c: c.update(chat_template=CHATML))


def a_tokenizer_that_begins_every_text(folder: Path) -> None:
    change(folder, "tokenizer.json", lambda c: c.update(post_processor=_BEGIN_AGAIN))


CURES = [
    only_the_new_rope,
    padding_with_the_end_of_turn,
    the_template_as_it_was,
    a_tokenizer_that_begins_every_text,
]


def scores_of(folder: Path, python: Path, place: Path) -> np.ndarray:
    request = {"models": [str(folder)], "conversations": CONVERSATIONS}
    [reading] = ask(python, "plain_transformers.py", request, folder=place)["readings"]
    return np.reshape(reading["scores"], (-1, 2))


@pytest.mark.parametrize("take_away", CURES)
def test_without_it_transformers_4_scores_otherwise(exported, old_python, take_away, tmp_path):
    damaged = shutil.copytree(exported.composed, tmp_path / "damaged")
    take_away(damaged)
    theirs_P2 = scores_of(damaged, old_python, tmp_path / "ask")
    assert np.abs(theirs_P2 - exported.reward_P2).max() > CLEARLY


def test_with_the_tokenizer_class_of_transformers_5_version_4_loads_nothing(
    exported, old_python, tmp_path
):
    damaged = shutil.copytree(exported.composed, tmp_path / "damaged")
    change(
        damaged,
        "tokenizer_config.json",
        lambda content: content.update(tokenizer_class="TokenizersBackend"),
    )
    with pytest.raises(AssertionError, match="TokenizersBackend"):
        scores_of(damaged, old_python, tmp_path / "ask")


def test_without_the_problem_type_vllm_serves_a_sigmoid(exported, tmp_path):
    damaged = shutil.copytree(exported.composed, tmp_path / "damaged")
    change(damaged, "config.json", lambda content: content.pop("problem_type"))
    with pooling_server(damaged, folder=tmp_path) as url:
        served_N1, _ = classify(url, CONVERSATIONS)
    sigmoid_P2 = 1 / (1 + np.exp(-exported.reward_P2))
    np.testing.assert_allclose(served_N1.reshape(-1, 2), sigmoid_P2, rtol=0, atol=1e-5)
