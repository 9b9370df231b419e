"""A model with head 0 is exported, served and judged by one composition of head 0 and its rules.

Suffixes: N texts, P pairs, 2 responses, R heads.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import encore
from encore.core.errors import InputError
from encore.exports.weights_input import read_weights
from encore.exports.write_export import export_model
from encore.model.score_sequences import score_sequences
from encore.serving.composed_rewards import RewardComposer
from encore.serving.serve_options import RuleUse
from tests.exports.test_write_export import SEQUENCES, plain_scores
from tests.worlds.models import RULES, WEIGHTS, opened_model
from tests.worlds.scorings import held_out_scores

HEADS = ("preference", *RULES)
#: Head 0: 4, 0, 0, 0, standard deviation √3. Each rule: 3, 1, 3, 1, standard deviation 1, and so
#: is that of their sum with weights that sum to 1.
HELD_OUT = held_out_scores([[[4, 3, 3, 3], [0, 1, 1, 1]], [[0, 3, 3, 3], [0, 1, 1, 1]]])
COMPOSED = {"preference": 1 / np.sqrt(3), **WEIGHTS}


def weights_file(folder: Path, content: object) -> Path:
    path = folder / "weights.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_beta_applies_to_weights_of_rules_and_not_to_weights_of_all_heads(tmp_path):
    heads = {"head_ids": HEADS, "held_out": HELD_OUT}
    path = weights_file(tmp_path, {"rule_ids": list(WEIGHTS), "weights": [*WEIGHTS.values()]})
    composition = read_weights(path, **heads)
    assert composition.weights == pytest.approx(COMPOSED)
    assert composition.params == pytest.approx(
        {"beta": 1, "sd_preference": np.sqrt(3), "sd_rules": 1}
    )
    assert (composition.learnt_from, composition.note) == ((), None)
    doubled = read_weights(path, beta=2.0, **heads).weights
    assert doubled == pytest.approx(COMPOSED | {rule: 2 * WEIGHTS[rule] for rule in RULES})
    chosen = read_weights(path, beta="auto", **heads)  # two pairs decide nothing
    assert chosen.params["beta"] == 0
    assert chosen.learnt_from == ("people's preferences",)
    assert "head 0 stands alone" in str(chosen.note)
    with pytest.raises(InputError, match=r"beta 2\.0: the model has no head 0"):
        read_weights(path, head_ids=RULES, beta=2.0)
    all_heads = {"preference": 7.0, **WEIGHTS}
    path = weights_file(tmp_path, all_heads)
    assert read_weights(path, **heads).weights == all_heads
    with pytest.raises(InputError, match=r"--beta 2\.0: the weights have one of head 0"):
        read_weights(path, beta=2.0, **heads)


def test_an_export_with_head_0_scores_as_the_composition_and_its_card_says_so(tmp_path):
    opened = opened_model(held_out=HELD_OUT)
    export = export_model(opened, out=tmp_path / "export", weights=WEIGHTS)
    pad = opened.tokenizer.pad_token_id
    score_NR = score_sequences(opened.model, SEQUENCES, pad_token_id=pad).astype(np.float64)
    expected_N = score_NR @ np.array([COMPOSED[head] for head in HEADS])
    np.testing.assert_allclose(plain_scores(tmp_path / "export")[:, 0], expected_N, atol=1e-5)
    assert export.as_dict()["params"]["beta"] == 1
    card = (tmp_path / "export" / "README.md").read_text(encoding="utf-8")
    assert "reward is z(head 0) + beta × z(weighted rules) with beta 1." in card
    assert "head 0 1.73205, weighted rules 1." in card
    assert "| `preference` | 0.0000 | 0.57735 |" in card
    assert "## Scale" not in card  # a composition with head 0 is on no rating's scale
    heads_export = export_model(opened, out=tmp_path / "heads")
    assert heads_export.written.labels == HEADS
    card = (tmp_path / "heads" / "README.md").read_text(encoding="utf-8")
    assert "4 scores of a response, `preference` (head 0) and one under each rule." in card


def test_a_verdict_names_head_0_beside_the_rules(tmp_path):
    opened = opened_model(held_out=HELD_OUT)
    conversation = [{"role": role, "content": "Hi."} for role in ("user", "assistant")]
    path = weights_file(tmp_path, WEIGHTS)
    for weights in (WEIGHTS, path):
        verdict = encore.guard(conversation, model=opened, weights=weights, threshold=0.0)
        score_by_head = opened.score([conversation])
        assert verdict.contributions == pytest.approx(
            {head: COMPOSED[head] * score_by_head[head][0] for head in HEADS}
        )


def composer(weights: list[float], **use: object) -> RewardComposer:
    return RewardComposer(
        head_ids=HEADS,
        mean_R=np.zeros(4),
        weight_R=np.array(weights),
        use=RuleUse.model_validate(use),
    )


def test_head_0_is_never_left_out_and_never_scaled():
    weight_R = [5.0, 0.5, 0.3, 0.2]
    score_R, num_dropped = np.ones(4), 0
    for number in range(8):
        digest = bytes([number])
        reward = composer(weight_R, drop_rules=0.6).compose(score_R, prompt_digest=digest)
        assert reward.weight_R[0] == 5
        assert reward.weight_R[1:].sum() == pytest.approx(1)  # the rules' weights sum to 1 still
        num_dropped += int((reward.weight_R == 0).sum())
    assert num_dropped == 16  # 0.6 of three rules is two
    only_head_0 = composer([5.0, 0, 0, 0], drop_rules=0.6)
    assert only_head_0.compose(score_R, prompt_digest=b"a").reward == 5


def test_watching_head_0_leaves_the_rules_and_watching_all_rules_leaves_head_0():
    weight_R = [5.0, 0.5, 0.3, 0.2]
    assert composer(weight_R, watch=["preference"]).weight_R == pytest.approx([0, 0.5, 0.3, 0.2])
    assert composer(weight_R, watch=RULES).weight_R == pytest.approx([5, 0, 0, 0])
    with pytest.raises(InputError, match="no rule is left"):
        composer(weight_R, watch=HEADS)
