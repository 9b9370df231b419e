"""`encore judge`: a table with intervals, a warning where a judge deserves one, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import read_benchmark_pairs
from encore.benchmarks.render import render
from encore.benchmarks.results import read_pair_results, stored_rows
from encore.benchmarks.table import make_table
from encore.cli.judge import judge
from encore.config import JudgeConfig, RatingConfig
from encore.data.ingestion import ingest
from encore.rating.rating_run import rate
from tests.benchmarks.judging.scripted import (
    Opinion,
    index_in,
    is_chosen_first,
    judge_saying,
    make_pair,
    verdict_of,
)
from tests.cli.invoking import Command
from tests.scripted_judge import ScriptedJudge
from tests.tiny_judge import make_tiny_judge

NUM_PAIRS = 10

invoke = Command(judge)
error_of = invoke.error_of


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real judge that says 0.1 to 0.9 to anything."""
    return make_tiny_judge(tmp_path_factory.mktemp("judge") / "tiny", max_model_len=4096)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [
        {
            "prompt": pair.prompt[0].content,
            "chosen": pair.chosen,
            "rejected": pair.rejected,
            "subset": "even" if index % 2 == 0 else "odd",
            "id": index,
        }
        for index, pair in enumerate(map(make_pair, range(NUM_PAIRS)))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def arguments(data: Path, tmp_path: Path) -> list[object]:
    own = ["--benchmark", "generic", "--data", data, "--out", tmp_path / "judged"]
    return [*own, "--judge", "scripted", "--shard-size", 4]


#: Opinions on the ten pairs. 0 to 4 are judged rightly in both orders; 5 and 6 follow the first
#: place, 7 the second; 8 is wrong in both orders; of 9 see `say`.
OPINIONS: list[Opinion] = [*["right"] * 5, "A", "A", "B", "wrong"]


def say(prompt: str) -> str:
    """What the scripted judge says: 9 is named chosen where it stands first, else not at all."""
    if index_in(prompt) == 9:
        return "[[A]]" if is_chosen_first(prompt) else "I cannot say."
    return verdict_of(OPINIONS[index_in(prompt)], prompt)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedJudge:
    """Stands in for the engine."""
    made = judge_saying(say)
    monkeypatch.setattr("encore.benchmarks.judging.judge_report.open_judge", lambda config: made)
    return made


def test_a_known_position_bias_comes_out_as_computed_by_hand(arguments, scripted, data):
    """The figures of `OPINIONS`, on ten pairs with twenty replies.

    Accuracy: 5 · 1 + 3 · 1/2 (right in one order of two) + 0 + (1 + 1/2) / 2 = 7.25 of 10, between
    7 and 7.5 with the missing verdict wrong or right. Consistency: of the nine pairs with two
    verdicts the five right ones and the wrong one: 6 of 9. First place: once for each of these six,
    twice for 5 and for 6, never for 7, once for 9: 11 of 19 verdicts.
    """
    found = json.loads(invoke(*arguments, "--name", "judge-llama3-8b", "--json").stdout)
    assert (found["judge"], found["name"]) == ("scripted", "judge-llama3-8b")
    assert found["score"]["headline"]["score"] == pytest.approx(7.25 / 10)
    assert found["bounds"] == pytest.approx([7 / 10, 7.5 / 10])
    [verdicts] = found["criteria"]
    assert verdicts["consistency"] == pytest.approx(6 / 9)
    assert verdicts["share_first"] == pytest.approx(11 / 19)
    assert (verdicts["num_answered_twice"], verdicts["num_unparsed"]) == (9, 1)
    assert (verdicts["always"], found["num_ties"], found["null_reasons"]) == (
        None,
        3,
        {"no_verdict": 1},
    )
    # The results are a row of the table of the same benchmark.
    pairs = read_benchmark_pairs(load_benchmark("generic"), data=data)
    [row] = stored_rows(Path(found["results"]), pairs=pairs)
    assert (row.name, row.about.kind) == ("judge-llama3-8b", "judge")
    assert row.credit_P.tolist() == [1] * 5 + [0.5] * 3 + [0, 0.75]
    text = render(make_table([row], pairs=pairs), form="markdown")
    assert "72.5" in text
    assert "19 verdicts in 20 replies; both orders agree on 66.7% of 9 pairs (a coin: 50%)" in text
    assert "57.9% of the verdicts name the answer shown first" in text
    assert "Accuracy would be 70.0% or 75.0%" in text


def test_a_judging_ends_with_tables_warnings_and_where_its_words_are(arguments, scripted):
    result = invoke(*arguments, "--protocol", "verdict-only")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    # Even pairs 0, 2, 4 right, 6 at one half, 8 wrong; odd 1, 3 right, 5, 7 at one half, 9 at 3/4.
    for line in ("even 5 70.0%", "odd 5 75.0%", "Accuracy 10 72.5%", "overall 72.5% 66.7% 57.9%"):
        assert line in shown
    assert "no verdict and a tie count one half" in shown
    for said in (
        "with one order a pair, as RewardBench asks: Accuracy",
        "ties: 3 of 10 pairs count one half",
        "warning: judge scripted: 1 of 20 verdicts are missing: neither",
        "next: encore benchmark STUDY --results",
    ):
        assert said in result.stderr
    assert scripted.num_asked == 20
    assert invoke(*arguments, "--protocol", "verdict-only").stdout == result.stdout
    assert scripted.num_asked == 20


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--scheme", "encore", "--tau", 1], "--scheme encore, --tau 1.0: says how"),
        (["--weights-run", "ab"], "--weights-run ab: says how"),
        (["--rules", "encore-20"], "judged as a whole, by no rule"),
    ],
)
def test_options_that_would_change_nothing_are_refused(arguments, scripted, options, problem):
    result = invoke(*arguments, *options)
    assert result.exit_code == 2
    assert problem in str(result.exception)
    assert scripted.num_asked == 0


def test_what_does_not_fit_together_is_refused_before_anything_is_read(tmp_path):
    """Neither the training study nor the benchmark's rows are there: nobody gets that far."""
    nowhere = ["--judge", "m", "--out", tmp_path, "--data", tmp_path / "no-rows.jsonl"]
    weights = ["--weights-from", tmp_path / "no-study"]
    assert "there is nothing to weigh" in str(error_of(*nowhere, *weights))
    assert "needs weights of rules" in str(error_of(*nowhere, "--by", "rating"))
    protocol = ["--by", "rating", "--protocol", "explained"]
    assert "a prompt of their own" in str(error_of(*nowhere, *weights, *protocol))
    words = ["--by", "rating", "--max-reply-tokens", 513]
    assert "max-reply-tokens 513: by rating a reply is a number and has at most 512" in str(
        error_of(*nowhere, *weights, *words)
    )
    assert invoke(*nowhere, "--by", "rule").exit_code == 2


@pytest.fixture
def training_study(tmp_path: Path, tiny: Path) -> Path:
    """A study that the tiny judge has rated."""
    path = tmp_path / "train.jsonl"
    rows = [{"prompt": f"Why {n}?", "chosen": f"So {n}.", "rejected": "No."} for n in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ingest([f"mine={path}"], out=tmp_path / "study")
    config = JudgeConfig(model=str(tiny), backend="transformers")
    rate(tmp_path / "study", RatingConfig(judge=config))
    return tmp_path / "study"


def test_by_rating_a_real_judges_weighted_ratings_are_the_reward(
    data, tmp_path, tiny, training_study
):
    result = invoke(
        *("--benchmark", "generic", "--data", data, "--out", tmp_path / "judged", "--json"),
        *("--judge", tiny, "--backend", "transformers", "--by", "rating"),
        *("--weights-from", training_study, "--tau", 2),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["name"] == "judge tiny by rating, encore tau 2.0"
    assert sum(found["weights"].values()) == pytest.approx(1)
    assert found["criteria"] == []
    stored = read_pair_results(Path(found["results"]))
    # The rewards once more, from the ratings as they lie in the study.
    rating_of = {
        (row["pair_id"], row["response"], row["rule_id"]): row["rating"]
        for path in Path(found["folder"]).glob("ratings/*/shard-*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    assert len(rating_of) == NUM_PAIRS * 2 * len(found["weights"])
    weights = found["weights"].items()
    expected_P2 = [
        [
            sum(weight * rating_of[pair_id, response, rule] for rule, weight in weights)
            for response in ("chosen", "rejected")
        ]
        for pair_id in stored.pair_id_P
    ]
    assert stored.rows[0].reward_P2 == pytest.approx(np.array(expected_P2))
    margin_P = np.array(expected_P2) @ [1, -1]
    assert (abs(margin_P) > 1e-9).sum() >= 5  # else nothing would be tested here
    credit_P = (np.sign(margin_P.round(9)) + 1) / 2
    assert stored.rows[0].credit_P.tolist() == credit_P.tolist()
    assert found["score"]["headline"]["score"] == pytest.approx(credit_P.mean())
    strict = found["strict_score"]["headline"]["score"]
    assert strict == pytest.approx((margin_P > 1e-9).mean())


def test_a_partial_benchmark_is_refused_or_marked(arguments, scripted, tmp_path, data):
    toml = tmp_path / "mine.toml"
    toml.write_text(
        'name = "mine"\nversion = "1"\ntitle = "t"\ncitation = "c"\nheadline = "Safety"\n'
        'licence = "mit"\n[[subsets]]\nname = "even"\nnum_pairs = 6\n'
    )
    own = ["--benchmark", toml, *arguments[2:]]
    assert "even has 5 pairs, not 6" in str(error_of(*own))
    result = invoke(*own, "--allow-partial")
    assert "on mine, partial" in result.stdout
