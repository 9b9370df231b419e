"""A real vLLM server answers decisions with the probabilities that plain transformers computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from encore.analysis.all_rules_check import check_all_rules
from encore.data.pairs import read_pairs, records_of
from encore.data.records import Rule
from encore.data.rule_sets import load_rule_set
from encore.data.study import open_study
from encore.rating.decision_prompts import LEVEL_QUESTION, STATEMENT
from encore.rating.prompts import render_conversation
from encore.warehouse import open_ratings
from tests.golden.command_line import encore
from tests.judges.vllm_server import vllm_server, wait_until_ready
from tests.worlds.studies import numbered_pairs, study_of
from tests.worlds.tiny_judge import make_tiny_qwen

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

RULES = {rule.rule_id: rule for rule in load_rule_set("encore-10").rules}
LEVELS = ("poor", "fair", "good", "best")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen(tmp_path_factory.mktemp("decisions") / "qwen")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with vllm_server(folder, folder.parent / "server.log") as (address, process):
        wait_until_ready(address, process)
        yield f"{address}/v1"


def rate(study: Path, url: str, *options: object) -> Any:
    judge = ["--backend", "http", "--base-url", url, "--judge", "qwen", "--api", "systemone"]
    options = ("--decode", "expected", "--min-label-mass", 1e-9, *options)
    return encore("rate", study, *judge, *options, "--json").json


def rows_of(study: Path, run_key: str) -> list[dict[str, Any]]:
    [path] = (study / "ratings" / run_key).glob("shard-*.parquet")
    return pq.read_table(path, partitioning=None).to_pylist()


class PlainModel:
    """The judge's model in transformers, and the label probabilities that it computes."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()

    def probabilities(self, state: str, rule: Rule, levels: tuple[str, ...]) -> list[float]:
        """Return the probability of each level after the server's prompt, the lowest first.

        The text of a question is vLLM's own; the labels of a yes-or-no question begin with yes.
        """
        import torch
        from vllm.entrypoints.generate.structured_decisions.question_types import build_question

        text = (LEVEL_QUESTION if levels else STATEMENT).format(rule=rule.rating_rule)
        kind, criteria = ("score", [*levels]) if levels else ("noul", None)
        question = build_question("1", kind, text, criteria, 10)
        message = {"role": "user", "content": f"{state}\n\n{question.type.prompt(question)}"}
        ids = self.tokenizer.apply_chat_template(
            [message], add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        with torch.no_grad():
            probability_V = self.model(ids).logits[0, -1].softmax(-1)
        label_ids = self.tokenizer.convert_tokens_to_ids([*question.labels])
        probabilities: list[float] = probability_V[label_ids].tolist()
        return probabilities if levels else probabilities[::-1]


@pytest.mark.parametrize("levels", [(), LEVELS], ids=["predicate", "score"])
def test_ratings_are_the_label_probabilities_of_plain_transformers(folder, url, tmp_path, levels):
    study = study_of(numbered_pairs(4), tmp_path / "study")
    scale = ["--scale", ",".join(levels)] if levels else []
    run = rate(study, url, "--layout", "all-rules", *scale)
    assert (run["num_ratings"], run["num_nulls"]) == (80, 0)
    plain = PlainModel(folder)
    pairs = {pair.pair_id: pair for pair in records_of(read_pairs(open_study(study)))}
    values = np.linspace(0, 1, len(levels) or 2)
    for row in rows_of(study, run["run_key"]):
        pair = pairs[row["pair_id"]]
        state = render_conversation(pair.prompt, pair.response_text(row["response"]))
        mass_L = np.array(plain.probabilities(state, RULES[row["rule_id"]], levels))
        assert row["label_mass"] == pytest.approx(mass_L.sum(), abs=1e-4)
        p_L = mass_L / mass_L.sum()
        assert row["expected_rating"] == pytest.approx(p_L @ values, abs=1e-4)
        assert row["rating"] == values[p_L.argmax()]
        assert row["raw_reply"] == (levels or ("0", "1"))[p_L.argmax()]
        assert row["reply_entropy"] == pytest.approx(-(p_L * np.log(p_L)).sum(), abs=1e-4)


def test_all_questions_in_one_request_are_answered_as_one_at_a_time(url, tmp_path):
    """This model reads the questions of a request apart."""
    study = study_of(numbered_pairs(4), tmp_path / "study")
    run = rate(study, url, "--layout", "all-rules", "--order-seed", 3, "--check", 6)
    assert run["plan"]["num_calls"] == {"planned": 8, "actual": 8}
    assert run["check"]["plan"]["num_calls"] == {"planned": 60, "actual": 60}
    check = check_all_rules(open_ratings(study / "ratings" / run["run_key"]))
    assert check.run_key == run["check"]["run_key"]
    assert check.comparison is not None
    expected, actual = (
        {(row["pair_id"], row["response"], row["rule_id"]): row for row in rows_of(study, key)}
        for key in (check.run_key, run["run_key"])
    )
    assert len(expected) == 60
    for key, row in expected.items():
        for column in ("expected_rating", "label_mass"):
            assert actual[key][column] == pytest.approx(row[column], abs=1e-5)
    finished = encore("analyze", study, "--run", run["run_key"], "--compare", check.run_key)
    assert finished.code == 0, finished.err


def test_labels_that_are_unlikely_or_beyond_the_context_give_nulls_with_their_reason(url, tmp_path):
    pairs = numbered_pairs(2)
    study = study_of(pairs, tmp_path / "study")
    run = rate(study, url, "--layout", "all-rules", "--min-label-mass", 0.5)
    assert run["null_reasons"] == {"low_label_mass": 40}
    long = [pair | {"chosen": "long " * 1000} for pair in pairs]
    study = study_of(long, tmp_path / "long")
    run = rate(study, url, "--layout", "all-rules")
    assert run["null_reasons"] == {"prompt_too_long": 20}
    assert run["num_ratings"] == 20
