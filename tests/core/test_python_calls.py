"""Public functions speak Python: their errors, and what a terminal and a notebook show."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

import encore
from encore.analysis.statistics import POOLED
from encore.core.python_calls import python_words
from encore.core.shown_record import ShownRecord


@pytest.fixture(scope="module")
def ratings() -> list[dict]:
    """Ratings of two rules for 40 pairs, the first of which agrees with people."""
    rng = np.random.default_rng(0)
    return [
        {
            "pair_id": f"p{n}",
            "source": "mine",
            "response": response,
            "rule_id": rule,
            "rating": rating,
        }
        for n in range(40)
        for response in ("chosen", "rejected")
        for rule, rating in (
            ("be-kind", 0.9 - 0.5 * (response == "rejected") + 0.1 * (n % 2)),
            ("be-brief", round(rng.random(), 1)),
        )
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("--tau 0: Input should be greater than 0", "tau=0: expected a value greater than 0"),
        ("--k x: Input should be a valid integer", "k=x: expected a valid integer"),
        ("give --rule-columns, or one name a column", "give rule_columns, or one name a column"),
        ("no ratings: run `encore rate s --judge J`", "no ratings: run `encore rate s --judge J`"),
        ("a--b and a text -- with dashes", "a--b and a text -- with dashes"),
    ],
)
def test_a_message_names_arguments_and_keeps_commands(message, expected):
    assert python_words(message) == expected


@pytest.mark.parametrize("tau", [0, -1.0, "warm"])
def test_a_parameter_out_of_range_is_named_as_it_was_given(ratings, tau):
    with pytest.raises(encore.EncoreError, match=rf"^tau={tau}: expected a v") as refusal:
        encore.weights(ratings, tau=tau)
    assert "--" not in str(refusal.value)
    assert "Input should" not in str(refusal.value)


def test_the_answer_is_a_data_frame_of_what_is_printed(ratings):
    analysis = encore.analyze(ratings)
    frame = analysis.to_pandas()
    rows = [row for answer in analysis.answers for row in answer.rows]
    assert [*frame["rule_id"]] == [row.rule_id for row in rows]
    assert [*frame["verdict"]] == [row.verdict for row in rows]
    pooled = frame[frame["source"] == POOLED].set_index("rule_id")
    assert pooled.loc["be-kind", "verdict"] == "trust"
    assert pooled.loc["be-kind", "untied"] == 1.0
    assert 0.5 < pooled.loc["be-kind", "low"] < pooled.loc["be-kind", "high"] == 1.0
    weights = encore.weights(analysis)
    assert pooled["weight"].to_dict() == pytest.approx(dict(weights))
    assert {"tie_rate", "agrees_with_others", "reason", "remedy"} <= {*frame.columns}


def test_weights_are_a_mapping_a_table_and_a_data_frame(ratings):
    weights = encore.weights(ratings, scheme="single", rule="be-kind")
    assert dict(weights) == {"be-kind": 1.0, "be-brief": 0.0}
    assert [*weights] == ["be-brief", "be-kind"]
    assert len(weights) == 2
    title, *lines = repr(weights).splitlines()
    assert "single" in title
    assert [line.split() for line in lines] == [["be-brief", "0.000"], ["be-kind", "1.000"]]
    assert weights.to_pandas().to_dict("list") == {
        "rule_id": ["be-brief", "be-kind"],
        "weight": [0.0, 1.0],
    }
    assert "<td>1.000</td>" in weights._repr_html_()


@dataclass(frozen=True, repr=False)
class Wide(ShownRecord):
    table: tuple[int, ...]
    text: str
    left_out: str = field(default="", repr=False)


def test_a_record_is_shown_in_a_few_words():
    record = Wide(tuple(range(10_000)), "<b>" + "x" * 5_000)
    assert repr(record).startswith("Wide(table=(0, 1, 2, ...), text='<b>xxx")
    assert len(repr(record)) < 200
    assert "left_out" not in repr(record)
    assert "&lt;b&gt;" in record._repr_html_()


@pytest.mark.services
def test_what_public_functions_return_is_short(ratings, tmp_path):
    analysis = encore.analyze(ratings)
    records = [
        analysis,
        encore.weights(analysis),
        encore.compare_schemes(analysis),
        encore.open_ratings(ratings),
        encore.load_rule_set("encore-10"),
        encore.report(ratings, tmp_path / "page.html"),
    ]
    assert max(len(repr(record)) for record in records) < 2_000
