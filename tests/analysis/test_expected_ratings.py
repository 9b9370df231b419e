"""The means over the labels' probabilities are compared as ratings; entropies are of the labels."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import encore
from encore.analysis.intervals import rule_intervals
from encore.analysis.statistics import rating_statistics
from encore.core.errors import InputError
from encore.data.schemas import RATINGS_CONTRACT
from encore.data.study import open_study
from encore.judges.base import Decoding, Reply, Usage, label_reply
from encore.training.training_examples import read_examples
from encore.warehouse import open_ratings, open_warehouse, read_pairs_of
from tests.golden.command_line import encore as command
from tests.worlds.judges import ScriptedJudge
from tests.worlds.ratings import random_table, table_of
from tests.worlds.studies import numbered_pairs, rate_study, study_of
from tests.worlds.tokenizers import demo_tokenizer

pytestmark = pytest.mark.services

#: Figures of a rule that are of the labels.
LEVEL_FIGURES = (
    *("num_levels", "top_level", "top_level_share"),
    *("entropy_nats", "entropy_miller_madow_nats"),
)


class UnsureJudge(ScriptedJudge):
    """Judge that gives 0 or 1, with a probability of 1 that the prompt decides."""

    def _reply(self, text: str, num_tokens: int, decoding: Decoding) -> Reply:
        digest = hashlib.sha256(text.encode()).digest()
        share = 0.1 + 0.5 * int.from_bytes(digest[:4]) / 2**32
        return label_reply(
            decoding, (math.log(1 - share), math.log(share)), usage=Usage(output_tokens=1)
        )


def with_expected(table: pa.Table, rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """Return the table with expected ratings, and one that has these as its ratings."""
    rating = table["rating"].combine_chunks()
    expected = pa.array(rng.random(table.num_rows), mask=np.array(rating.is_null()))
    index = table.schema.get_field_index("rating")
    swapped = table.set_column(index, "rating", expected)
    return table.append_column("expected_rating", expected), swapped


def with_means_as_ratings(study: str) -> pa.Table:
    """Return a study's ratings as a table whose ratings are the expected ones."""
    table = pq.read_table(
        list(open_ratings(study).files), columns=[*RATINGS_CONTRACT.names, "expected_rating"]
    )
    return table.drop_columns("rating").rename_columns({"expected_rating": "rating"})


@pytest.mark.parametrize(("seed", "has_prompts"), [(0, False), (1, True), (2, False), (3, True)])
def test_pairs_are_compared_by_means_and_entropies_are_of_labels(seed, has_prompts):
    rng = np.random.default_rng(seed)
    table = random_table(rng, max_rows=2_000)
    if has_prompts:  # the pairs of a prompt are not those of one pair_id
        prompts = [f"{len(pair_id)}{pair_id[-1]}" for pair_id in table["pair_id"].to_pylist()]
        table = table.append_column("prompt_id", pa.array(prompts))
    table, swapped = with_expected(table, rng)
    analysis = encore.analyze(table, by_source=True, rating="expected")
    by_mean, by_label = (encore.analyze(t, by_source=True) for t in (swapped, table))
    for rule, mean, label in zip(analysis.rules, by_mean.rules, by_label.rules, strict=True):
        of_labels = {name: getattr(label, name) for name in LEVEL_FIGURES}
        assert rule == dataclasses.replace(mean, **of_labels)
    rows = zip(analysis.intervals, by_mean.intervals, by_label.intervals, strict=True)
    for interval, mean, label in rows:
        assert (interval.entropy, interval.entropy_method) == (label.entropy, label.entropy_method)
        assert (interval.half, interval.untied) == (mean.half, mean.untied)
    assert any("entropies are those of the levels" in note for note in analysis.notes)
    answers = [result.answers[-1].rows for result in (analysis, by_mean)]
    assert [(row.verdict, row.untied) for row in answers[0]] == [
        (row.verdict, row.untied) for row in answers[1]
    ]


@pytest.fixture(scope="module")
def rated(tmp_path_factory) -> str:
    study = study_of(numbered_pairs(40), tmp_path_factory.mktemp("unsure") / "study")
    rate_study(study, UnsureJudge(str), decode="expected", scale="0,1")
    return str(study)


def test_a_run_of_two_labels_has_signal_in_its_means_alone(rated):
    by_label = command("analyze", rated, "--json").json
    by_mean = command("analyze", rated, "--rating", "expected", "--json").json
    for label, mean in zip(by_label["rules"], by_mean["rules"], strict=True):
        assert label["tie_rate"] > 0.4
        assert mean["tie_rate"] < 0.05
        assert mean["num_levels"] == 2
        assert mean["entropy_nats"] == label["entropy_nats"]
    opened = open_ratings(rated, rating="expected")
    with open_warehouse(opened) as warehouse:
        statistics = rating_statistics(warehouse)[-1]
    with open_warehouse(opened.by_level) as warehouse:
        by_level = rating_statistics(warehouse)[-1]
    entropies = [[row.entropy for row in rule_intervals(part)] for part in (statistics, by_level)]
    assert entropies[0] == entropies[1]
    assert "2 of 2 labels" in command("analyze", rated, "--rating", "expected").out


def test_weights_by_entropy_stay_and_weights_by_labels_learn_from_means(rated):
    def weights(*options: str) -> dict[str, float]:
        return by_rule(command("weights", rated, *options, "--json").json)

    swapped = with_means_as_ratings(rated)
    assert weights("--rating", "expected") == weights()
    assert weights() != pytest.approx(by_rule(encore.weights(swapped).as_dict()), abs=1e-3)
    learnt = weights("--scheme", "bradley-terry", "--rating", "expected")
    of_swapped = encore.weights(swapped, scheme="bradley-terry").as_dict()
    assert learnt == pytest.approx(by_rule(of_swapped))
    assert learnt != pytest.approx(weights("--scheme", "bradley-terry"), abs=1e-3)


def by_rule(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the weights by rule of a document of weights."""
    return dict(zip(document["rule_ids"], document["weights"], strict=True))


def test_training_learns_the_means(rated):
    examples = read_examples(
        open_study(rated), tokenizer=demo_tokenizer(), objective="multi-head", rating="expected"
    )
    means = read_pairs_of(open_ratings(with_means_as_ratings(rated)))
    rows = [means.pair_id_P.tolist().index(pair_id) for pair_id in examples.pair_id_P]
    means = means.select_rules(examples.head_ids)
    np.testing.assert_allclose(
        examples.target_PSR, means.rating_2PR.transpose(1, 0, 2)[rows], atol=1e-6
    )


def test_ratings_without_means_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    table = random_table(rng, max_rows=300)
    with pytest.raises(InputError, match="no column expected_rating, which rating expected"):
        encore.analyze(table, rating="expected")
    study = study_of(numbered_pairs(3), tmp_path / "study")
    rate_study(study)
    finished = command("analyze", study, "--rating", "expected")
    assert finished.code == 1
    assert "no expected ratings, for it was rated by --decode text" in finished.err
    finished = command("analyze", study, "--rating", "expected", "--compare", "x")
    assert finished.code == 2
    assert "--rating expected with --compare" in finished.err


def test_a_rule_of_one_label_is_not_constant_if_its_means_differ():
    rng = np.random.default_rng(3)
    table = table_of(np.ones((60, 1)), np.ones((60, 1)))
    (answer,) = encore.analyze(with_expected(table, rng)[0], rating="expected").answers
    assert answer.rows[0].verdict == "undecided"
    (answer,) = encore.analyze(table).answers
    assert answer.rows[0].verdict == "says little"
