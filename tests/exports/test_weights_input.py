"""Weights of a file fit the model's heads, or they are refused."""

from __future__ import annotations

import json

import pytest

from encore.core.errors import InputError
from encore.exports.weights_input import read_weights

HEADS = ("be-kind", "be-brief")


def test_a_file_has_the_output_of_weights_or_an_object_of_weights_by_rule(tmp_path):
    path = tmp_path / "w.json"
    content = {
        "rule_ids": list(HEADS),
        "weights": [0.5, 0.5],
        "provenance": {"num_shards": 10, "num_missing_shards": 4, "uses_labels": True},
    }
    path.write_text(json.dumps(content))
    composition = read_weights(path, head_ids=HEADS)
    assert (composition.num_shards, composition.num_missing_shards) == (10, 4)
    assert composition.learnt_from == ("people's preferences",)
    path.write_text(json.dumps({"be-brief": -2, "be-kind": 0.5}))
    composition = read_weights(path, head_ids=HEADS)
    assert composition.weights == {"be-brief": -2.0, "be-kind": 0.5}
    assert (composition.scheme, composition.entropy_nats) == ("given", {})


def test_a_file_without_weights_of_the_heads_is_refused_in_one_line(tmp_path):
    path = tmp_path / "w.json"
    for content, message in (
        ("{", "cannot be used"),
        ("[1]", "weights: Input should be a valid dict.*expected the output"),
        ({"be-kind": True, "be-brief": 0.5}, "be-kind: Input should be a valid number"),
        ({"rule_ids": ["be-kind"] * 2, "weights": [0.5, 0.5]}, "a rule is there twice"),
        ({"rule_ids": list(HEADS)}, r"cannot be used \(.weights.\)"),
        ({"be-kind": 1.0}, "be-brief among the heads but not weighed"),
        (
            {"be-kind": 0.5, "be-brief": 0.5, "be-odd": 0.0},
            "be-odd among the weights but no head, nothing among the heads but not weighed",
        ),
        ('{"be-kind": NaN, "be-brief": 1}', "'be-kind': nan"),
    ):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(InputError, match=message) as caught:
            read_weights(path, head_ids=HEADS)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(InputError, match=r"w\.json: cannot be used .*No such file"):
        read_weights(path, head_ids=HEADS)
