"""`encore weights --for`: each configuration, read by a parser of its language."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
import yaml

from encore.core.errors import InputError
from encore.model.held_out_scores import write_held_out_scores
from encore.rewards.for_trl import RuleRewards
from encore.weighting.trainer_configs import TrainerName, TrainerWeights, trainer_config
from tests.golden.command_line import encore
from tests.weighting.test_weights_command import ROWS
from tests.worlds.ratings import ratings_table
from tests.worlds.scorings import held_out_scores, make_model

#: Without quotes YAML reads these ids as False and as a number. Alphabetical order is another one.
RULES = TrainerWeights(
    label="given",
    weights={"no": 0.75, "be kind": 0.2, "1e5": 0.05},
    effective_weights={"no": 0.25, "be kind": 0.5, "1e5": 1e-05},
    texts={"no": 'It says "no".', "be kind": "Is kind — très.", "1e5": "Back\\slash."},
)


def arguments(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", ""), comments=True)


def test_trls_weights_follow_the_order_of_the_servers_rules_and_leave_out_watched_ones(monkeypatch):
    # The server's heads are in another order than the study's rules, and it only watches "no".
    order = ("1e5", "no", "be kind")
    rules = RuleRewards(SimpleNamespace(__name__=rule_id) for rule_id in order)
    rules.weights = [0.6, 0, 0.4]
    monkeypatch.setattr("encore.rewards.rule_rewards", lambda _url: rules)
    names: dict[str, Any] = {}
    exec(trainer_config("trl", RULES), names)  # noqa: S102  # a user runs it
    assert names["reward_weights"] == [0.05, 0, 0.2]
    assert names["gdpo_reward_weights"] == [1e-05, 0, 0.5]


def test_verl_reads_keys_and_weights_in_one_order():
    overrides = dict(text.split("=", 1) for text in arguments(trainer_config("verl", RULES)))
    assert overrides["reward.custom_reward_function.path"] == "pkg://encore.rewards.for_verl"
    assert (
        overrides["+reward.custom_reward_function.reward_kwargs.url"] == "'http://127.0.0.1:5000'"
    )
    assert overrides["+algorithm.gdpo_reward_keys"] == "['no','be kind','1e5']"
    assert json.loads(overrides["+algorithm.gdpo_reward_weights"]) == [0.25, 0.5, 1e-05]


def test_nemo_rl_reads_the_weights_in_alphabetical_order():
    config = yaml.safe_load(trainer_config("nemo-rl", RULES))
    estimator = config["grpo"]["adv_estimator"]
    assert estimator["name"] == "gdpo"
    assert estimator["reward_weights"] == [1e-05, 0.5, 0.25]  # 1e5, be kind, no


def test_verifiers_rubric_has_names_texts_and_weights():
    criteria = tomllib.loads(trainer_config("verifiers", RULES))["criteria"]
    assert [criterion["name"] for criterion in criteria] == ["no", "be kind", "1e5"]
    assert [criterion["text"] for criterion in criteria] == list(RULES.texts.values())
    assert [criterion["weight"] for criterion in criteria] == [0.75, 0.2, 0.05]
    # Answer number 3 of 0 to 10 scores 3 / 10: the answers are the levels of a rating.
    assert criteria[0]["choices"][3] == "0.3"
    assert len(criteria[0]["choices"]) == 11


def test_swift_reads_rules_and_weights_in_one_order():
    argument_list = arguments(trainer_config("swift", RULES))
    assert argument_list[2:6] == ["--reward_funcs", "no", "be kind", "1e5"]
    assert argument_list[6:10] == ["--reward_weights", "0.75", "0.2", "0.05"]
    assert argument_list[10:] == ["--reward_weights", "0.25", "0.5", "1.0e-05"]


def test_openrlhf_is_told_that_the_server_weighs():
    text = trainer_config("openrlhf", RULES)
    assert arguments(text) == ["--reward.remote_url", "http://127.0.0.1:5000/get_reward"]
    assert "be kind: 0.2" in text


@pytest.mark.parametrize("trainer", get_args(TrainerName))
def test_each_configuration_says_which_weights_it_has(trainer):
    text = trainer_config(trainer, RULES)
    assert "3 rules by scheme given" in text
    assert "# w: " in text or "# w × sd: " in text or ". w: " in text


@pytest.mark.parametrize("rule_id", ["a,b", "${x}", "-x", "a'b", "é", "a:b", "a\nb", ""])
def test_names_that_a_configuration_would_read_as_something_else_are_refused(rule_id):
    rules = TrainerWeights(
        label="given", weights={rule_id: 1}, effective_weights={rule_id: 1}, texts={rule_id: ""}
    )
    for trainer in get_args(TrainerName):
        with pytest.raises(InputError, match="rename the rule"):
            trainer_config(trainer, rules)


def test_verls_name_of_the_reward_is_no_rule():
    rules = TrainerWeights(
        label="given", weights={"score": 1}, effective_weights={"score": 1}, texts={}
    )
    with pytest.raises(InputError, match="for verl not 'score'"):
        trainer_config("verl", rules)
    assert "'score'" in trainer_config("swift", rules)


def test_unknown_texts_and_deviations_are_errors():
    unknown = TrainerWeights(
        label="given", weights={"a": 1}, effective_weights={"a": None}, texts={}
    )
    with pytest.raises(InputError, match="the text of rule a is not known"):
        trainer_config("verifiers", unknown)
    with pytest.raises(InputError, match="rule a: fewer than two pairs"):
        trainer_config("trl", unknown)


def test_the_command_prints_the_configuration_alone(tmp_path: Path):
    path = tmp_path / "r.parquet"
    pq.write_table(ratings_table(ROWS), path)
    finished = encore("weights", path, "--for", "nemo-rl")
    # Both rules tie or move every pair alike: the differences have no spread, so w × sd is 0.
    assert yaml.safe_load(finished.out)["grpo"]["adv_estimator"]["reward_weights"] == [0, 0]
    weights = encore("weights", path, "--json").json
    assert f"#   two: {weights['weights'][1]}" in encore("weights", path, "--for", "openrlhf").out
    for view in ("--json", "--compare", "--sweep"):
        assert encore("weights", path, "--for", "trl", view).code == 2


def test_a_model_with_head_0_adds_it_to_the_weights_as_the_server_composes_them(tmp_path):
    """Held-out scores 2, 0, 2, 0 have the deviation 1, their margins -2 and 2 that of √8."""
    path = tmp_path / "ratings.parquet"
    pq.write_table(ratings_table(ROWS), path)
    rules = encore("weights", path, "--json").json["rule_ids"]
    model = make_model(tmp_path / "model", head_ids=("preference", *rules))
    heads = 1 + len(rules)
    write_held_out_scores(
        model, held_out_scores([[[2] * heads, [0] * heads], [[0] * heads, [2] * heads]])
    )
    arguments_of_model = ("weights", path, "--scheme", "uniform", "--model", model, "--beta", 0.5)
    argument_list = arguments(encore(*arguments_of_model, "--for", "swift").out)
    assert argument_list[2 : 3 + heads] == ["--reward_funcs", "preference", *rules]
    weights = [float(text) for text in argument_list[4 + heads : 4 + 2 * heads]]
    assert weights == pytest.approx([1, *[0.5 / len(rules)] * len(rules)])
    gdpo_weights = [float(text) for text in argument_list[5 + 2 * heads :]]
    assert gdpo_weights == pytest.approx([weight * 8**0.5 for weight in weights])
    assert "head 0 is none" in encore(*arguments_of_model, "--for", "verifiers").err
    assert "--model belongs to --for" in encore(*arguments_of_model).err
    finished = encore("weights", path, "--for", "trl", "--model", tmp_path / "none")
    assert "expected a folder that `encore train` wrote" in " ".join(finished.err.split())
