"""`encore judge`: a table with intervals, a warning where a judge deserves one, clear refusals."""

from __future__ import annotations

import json
import sys
import types
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
from encore.judges import BACKENDS
from encore.rating.rating_run import rate
from tests.benchmarks.judging.scripted import (
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


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedJudge:
    """Stands in for the engine: right about pairs 0 to 6, takes A for the others."""
    made = judge_saying(lambda prompt: verdict_of("right" if index_in(prompt) < 7 else "A", prompt))
    monkeypatch.setattr("encore.benchmarks.judging.judge_report.open_judge", lambda config: made)
    return made


def test_a_judging_ends_with_subsets_consistency_and_where_its_words_are(arguments, scripted):
    result = invoke(*arguments, "--protocol", "verdict-only")
    assert result.exit_code == 0, result.output
    # Even pairs 0, 2, 4, 6 right and 8 at one half; odd 1, 3, 5 right, 7 and 9 at one half.
    for line in ("even 5 90.0%", "odd 5 80.0%", "Accuracy 10 85.0%"):
        assert any(line in " ".join(row.split()) for row in result.stdout.splitlines()), line
    # Seven pairs of ten are consistent; A in 7 + 2 · 3 of 20 verdicts.
    assert "overall 85.0% 70.0% 65.0% 0 of 20" in " ".join(result.stdout.split())
    assert "no verdict and a tie count one half" in result.stdout
    assert "with one order a pair, as RewardBench asks: Accuracy" in result.stderr
    assert "ties: 3 of 10 pairs count one half" in result.stderr
    assert "next: encore benchmark STUDY --results" in result.stderr


def test_json_is_all_there_is_on_stdout_and_agrees_with_the_results_file(arguments, scripted):
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert found["name"] == "judge scripted (explained)"
    assert found["score"]["headline"]["score"] == pytest.approx(0.85)
    assert found["criteria"][0]["consistency"] == pytest.approx(0.7)
    assert (found["num_ties"], found["weights"], found["null_reasons"]) == (3, None, {})
    [stored] = read_pair_results(Path(found["results"])).rows
    assert stored.name == found["name"]
    assert stored.ties == "half"
    assert stored.credit_P.tolist() == [1] * 7 + [0.5] * 3
    assert stored.reward_P2 is None


def test_the_results_are_a_row_of_the_table_of_the_same_benchmark(arguments, scripted, data):
    found = json.loads(invoke(*arguments, "--name", "judge-llama3-8b", "--json").stdout)
    pairs = read_benchmark_pairs(load_benchmark("generic"), data=data)
    [row] = stored_rows(Path(found["results"]), pairs=pairs)
    assert (row.name, row.about.kind) == ("judge-llama3-8b", "judge")
    assert row.credit_P.mean() == pytest.approx(0.85)
    assert row.credit_P.tolist() == [1] * 7 + [0.5] * 3


def test_the_same_command_again_asks_nothing(arguments, scripted):
    first = invoke(*arguments, "--json").stdout
    assert invoke(*arguments, "--json").stdout == first
    assert scripted.num_asked == 2 * NUM_PAIRS


def test_a_judge_that_always_answers_a_is_warned_of(arguments, scripted):
    scripted.script = lambda _: "[[A]]"
    result = invoke(*arguments)
    assert "warning: judge scripted always answers A" in result.stderr
    assert "Accuracy 10 50.0%" in " ".join(result.stdout.split())


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


def test_missing_verdicts_are_warned_of(arguments, scripted):
    scripted.script = lambda prompt: "?" if index_in(prompt) < 3 else verdict_of("right", prompt)
    result = invoke(*arguments)
    assert "warning: judge scripted: 6 of 20 verdicts are missing: neither" in result.stderr
    assert "6 of 20" in result.stdout


def test_a_known_position_bias_comes_out_as_computed_by_hand(
    arguments, data, monkeypatch, tmp_path
):
    """A scripted engine in a backend's place: config, interface, files and table are the real ones.

    Ten pairs, twenty replies. 0 to 4 are judged rightly in both orders; 5 and 6 follow the first
    place, 7 the second; 8 is wrong in both orders; 9 names the chosen answer where it stands first
    and says nothing where it stands second.

    Accuracy: 5 · 1 + 3 · 1/2 (right in one order of two) + 0 + (1 + 1/2) / 2 = 7.25 of 10, between
    7 and 7.5 with the missing verdict wrong or right. Consistency: of the nine pairs with two
    verdicts the five right ones and the wrong one: 6 of 9. First place: once for each of these six,
    twice for 5 and for 6, never for 7, once for 9: 11 of 19 verdicts.
    """
    opinions = ["right"] * 5 + ["A"] * 2 + ["B", "wrong"]

    def say(prompt: str) -> str:
        if index_in(prompt) == 9:
            return "[[A]]" if is_chosen_first(prompt) else "I cannot say."
        return verdict_of(opinions[index_in(prompt)], prompt)

    opened = []

    def open_biased(config: JudgeConfig) -> ScriptedJudge:
        opened.append(judge_saying(say, name=config.model))
        return opened[-1]

    engine = types.ModuleType("tests_scripted_engine")
    engine.BiasedJudge = open_biased
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    monkeypatch.setitem(BACKENDS, "vllm", (engine.__name__, "BiasedJudge"))

    found = json.loads(invoke(*arguments, "--protocol", "verdict-only", "--json").stdout)
    assert [one.num_asked for one in opened] == [20]
    assert found["judge"] == "scripted"
    assert found["score"]["headline"]["score"] == pytest.approx(7.25 / 10)
    assert found["bounds"] == pytest.approx([7 / 10, 7.5 / 10])
    [verdicts] = found["criteria"]
    assert verdicts["consistency"] == pytest.approx(6 / 9)
    assert verdicts["share_first"] == pytest.approx(11 / 19)
    assert (verdicts["num_answered_twice"], verdicts["num_unparsed"]) == (9, 1)
    assert verdicts["always"] is None

    pairs = read_benchmark_pairs(load_benchmark("generic"), data=data)
    rows = stored_rows(Path(found["results"]), pairs=pairs, name="biased")
    assert rows[0].credit_P.tolist() == [1] * 5 + [0.5] * 3 + [0, 0.75]
    text = render(make_table(rows, pairs=pairs), form="markdown")
    assert "72.5" in text
    assert "19 verdicts in 20 replies; both orders agree on 66.7% of 9 pairs (a coin: 50%)" in text
    assert "57.9% of the verdicts name the answer shown first" in text
    assert "Accuracy would be 70.0% or 75.0%" in text


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


def test_a_judge_without_a_chat_template_is_one_clear_line(data, tmp_path):
    folder = make_tiny_judge(tmp_path / "bare")
    for path in folder.glob("chat_template*"):
        path.unlink()
    arguments = ["--benchmark", "generic", "--data", data, "--out", tmp_path / "judged"]
    assert "no chat template" in str(error_of(*arguments, "--judge", folder))


@pytest.mark.parametrize(
    "arguments",
    [(), ("--judge", "m"), ("--judge", "m", "--out", "d", "--by", "luck")],
)
def test_bad_usage_is_exit_code_2(arguments):
    assert invoke(*arguments).exit_code == 2
