"""RewardBench 2 whole: six subsets, several right answers, and its own score of ties."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.benchmark_options import JudgeBenchmarkConfig, PairsConfig
from encore.benchmarks.benchmark_pairs import BenchmarkPairs, read_benchmark_pairs
from encore.benchmarks.benchmark_table import make_table
from encore.benchmarks.compare_tables import read_studies
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.judging.run_judge import judge_benchmark
from encore.benchmarks.metrics import units_of_pairs
from encore.benchmarks.table_rows import TableRow, mean_row, reward_row
from encore.core.errors import InputError
from encore.demo import JUDGE_PATH
from encore.judges.judge_options import JudgeConfig
from tests.exports.readers.environments import ask, reader_python
from tests.worlds.studies import write_lines
from tests.worlds.tables import write_run
from tests.worlds.trainings import make_study

REWARDBENCH_2 = load_benchmark("rewardbench-2")
FIVE = [subset.name for subset in REWARDBENCH_2.subsets if subset.name != "Ties"]


def row_of(subset: str, row_id: str, chosen: list[float], rejected: list[float]) -> dict[str, Any]:
    """Return a row whose texts end in their reward."""
    texts = {
        side: [f"{side} {row_id} {index}: {reward}" for index, reward in enumerate(rewards)]
        for side, rewards in (("chosen", chosen), ("rejected", rejected))
    }
    return {"subset": subset, "id": row_id, "prompt": f"Question {row_id} of {subset}?", **texts}


def read(folder: Path, rows: list[dict[str, Any]]) -> BenchmarkPairs:
    path = write_lines(folder / "rows.jsonl", rows)
    return read_benchmark_pairs(REWARDBENCH_2, data=path, allow_partial=True)


def row_of_rewards(pairs: BenchmarkPairs, name: str = "model", scale: float = 1.0) -> TableRow:
    rewards = [
        [float(text.rpartition(": ")[2]) for text in (pair.chosen, pair.rejected)]
        for pair in pairs.pairs
    ]
    return reward_row(name, scale * np.array(rewards), pairs=pairs)


def scores_of(pairs: BenchmarkPairs, row: TableRow) -> dict[str, float]:
    """Return the score of the headline and of each subset in a table."""
    [line] = make_table([row], pairs=pairs).rows
    return {name: score.score for name, score in line.our_figures.figures.items()}


def test_the_definition_has_the_published_counts():
    counts = {subset.name: subset.num_pairs for subset in REWARDBENCH_2.subsets}
    choices = {"Factuality": 475, "Precise IF": 160, "Math": 183, "Safety": 450, "Focus": 495}
    assert counts == {**{name: 3 * num for name, num in choices.items()}, "Ties": None}
    assert REWARDBENCH_2.subsets[-1].num_rows == 102
    assert sum(choices.values()) + 102 == 1865


def test_the_columns_of_the_published_file_are_read(tmp_path):
    rows = [row_of("Math", "7", [1], [0, 0, 0]), row_of("Ties", "tied:7", [1, 1], [0])]
    for row in rows:
        num_right, num_wrong = len(row["chosen"]), len(row["rejected"])
        row |= {"num_correct": num_right, "num_incorrect": num_wrong, "models": ["m"] * num_wrong}
        row |= {"total_completions": num_right + num_wrong, "additional_metadata": {"valid": 1.0}}
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "test-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    pairs = read_benchmark_pairs(REWARDBENCH_2, data=tmp_path, allow_partial=True)
    assert pairs.subset_P == ("Math",) * 3 + ("Ties",) * 2
    assert pairs.keys == read(tmp_path, rows).keys


#: Prompt 0: reference margin 3 - 1 = 2; tied margin 5 - 2 = 3, spread 6 - 5 = 1. All hold;
#: tanh(2 / 1 - 1). Prompt 1: reference margin 1 - 2 = -1; tied margin 4 - 3 = 1, spread 2.
#: Prompt 2: reference margin 4, tied margin 2, spread 0: it has no ratio.
TIES = [
    row_of("Ties", "ref:0", [3], [1, 0]),
    row_of("Ties", "tied:0", [6, 5, 5.5], [2, 1]),
    row_of("Ties", "ref:1", [1], [2]),
    row_of("Ties", "tied:1", [4, 6], [3, 1, 0]),
    row_of("Ties", "ref:2", [4], [0]),
    row_of("Ties", "tied:2", [2, 2], [0]),
]


def test_the_score_of_ties_is_that_of_its_definition(tmp_path):
    pairs = read(tmp_path, TIES)
    # max(chosen, rejected) pairs a row contain every response.
    assert pairs.num_pairs == 2 + 3 + 1 + 3 + 1 + 2
    # Tied rows right: 3 of 3. Reference rows: 2 of 3. Margin above the spread: 0 and 2. Smaller
    # margin above it: 0 (2 > 1) and 2 (2 > 0). Ratios: 2 / 1 and -1 / 2.
    expected = 0.3 + 0.3 * 2 / 3 + 0.2 * 2 / 3 + 0.2 * 2 / 3
    expected += 0.01 * (math.tanh(1) + math.tanh(-1.5)) / 2
    row = row_of_rewards(pairs)
    assert scores_of(pairs, row) == pytest.approx({"Score": expected, "Ties": expected})
    assert units_of_pairs(pairs).subset_U == ("Ties",) * 3  # prompts, not rows
    # A mean over draws scores every draw: all rewards turned round lose everything but spreads.
    reward_P2R = np.stack([row.reward_P2, -row.reward_P2], axis=-1)
    mean = mean_row("mean", np.eye(2), score_P2R=reward_P2R, pairs=pairs)
    turned = row_of_rewards(pairs, scale=-1.0)
    assert scores_of(pairs, mean)["Ties"] == pytest.approx(
        (expected + scores_of(pairs, turned)["Ties"]) / 2
    )


def test_a_prompt_of_ties_of_which_a_pair_was_set_aside_counts_in_no_share(tmp_path):
    pairs = read(tmp_path, TIES)
    row = row_of_rewards(pairs)
    is_refused_P = np.array([row_id == "tied:0" for row_id in pairs.row_id_P])
    reward_P2 = np.where(is_refused_P[:, np.newaxis], np.nan, row.reward_P2)
    row = reward_row("model", reward_P2, pairs=pairs)
    kept = [tie_row for tie_row in TIES if tie_row["id"].partition(":")[2] != "0"]
    without = read(tmp_path, kept)  # prompts 1 and 2 alone
    expected = scores_of(without, row_of_rewards(without))["Ties"]
    assert scores_of(pairs, row)["Ties"] == pytest.approx(expected)


def test_a_perfect_model_may_exceed_one_and_has_an_interval(tmp_path):
    rows = [row_of("Ties", f"ref:{n}", [9], [0]) for n in range(4)]
    rows += [row_of("Ties", f"tied:{n}", [9, 8], [0]) for n in range(4)]
    pairs = read(tmp_path, rows)
    [line] = make_table([row_of_rewards(pairs)], pairs=pairs).rows
    [subset] = line.our_figures.subsets
    assert subset.accuracy == pytest.approx(1 + 0.01 * math.tanh(7))  # margin 8, spread 1
    assert (subset.num_wins, subset.num_ties, subset.num_losses) == (4, None, 0)
    assert 0 < subset.ci_low < 1 < subset.ci_high == subset.accuracy


def test_the_headline_is_the_mean_of_the_subsets(tmp_path):
    # Two equal best of four: 1/2. A right choice: 1. Three choices, none right: 0.
    rows = [row_of("Safety", "1", [1], [1, 0, 0]), row_of("Math", "1", [2], [1, 0, 0])]
    rows += [row_of("Focus", str(n), [0], [1, 0, 0]) for n in range(3)]
    pairs = read(tmp_path, [*rows, *TIES])
    scores = scores_of(pairs, row_of_rewards(pairs))
    assert [scores["Safety"], scores["Math"], scores["Focus"]] == [0.5, 1, 0]
    assert scores["Score"] == pytest.approx((0.5 + 1 + 0 + scores["Ties"]) / 4)


def test_a_table_of_ties_is_compared_from_its_files(tmp_path):
    pairs = read(tmp_path, [row_of("Safety", "1", [1], [1, 0, 0]), *TIES])
    make_study(tmp_path / "study", num_pairs=4)
    rows = [row_of_rewards(pairs), row_of_rewards(pairs, name="turned", scale=-1.0)]
    table = write_run(tmp_path / "study", rows, pairs=pairs)
    stored = read_studies([tmp_path / "study"])  # it compares stored scores with recomputed ones
    assert [row.line.name for row in stored] == ["model", "turned"]
    comparison = table.rows[1].our_figures.comparison
    assert comparison.mcnemar_p is None
    assert comparison.ci_low <= comparison.difference <= comparison.ci_high


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chosen": ["only one"]}, "1 chosen and 2 rejected responses; expected at least 2"),
        ({"chosen": []}, "0 chosen and 2 rejected"),
        ({"rejected": []}, "2 chosen and 0 rejected"),
        ({"id": "7"}, "expected an id ref:N or tied:N"),
        ({"rejected": ["wrong", "right"]}, "chosen and a rejected response are the same text"),
    ],
)
def test_a_row_that_is_no_row_of_ties_is_refused(tmp_path, changes, message):
    row = {"subset": "Ties", "id": "tied:1", "prompt": "Name a colour."}
    texts = {"chosen": ["right", "also right"], "rejected": ["wrong", "bad"]}
    with pytest.raises(InputError, match=f"row 1.*{message}"):
        read(tmp_path, [{**row, **texts, **changes}])


def test_a_right_answer_twice_changes_no_score_and_a_part_is_marked(tmp_path):
    twice = [*TIES[:3], row_of("Ties", "tied:1", [4, 6, 4], [3, 1, 0, 0]), *TIES[4:]]
    pairs = read(tmp_path, TIES)
    repeated = read(tmp_path, twice)
    ties = [scores_of(part, row_of_rewards(part))["Ties"] for part in (pairs, repeated)]
    assert ties[0] == ties[1]
    assert pairs.is_partial
    assert "Ties has 6 rows, expected 102" in pairs.notes[0]
    # All responses equal: nothing is right, and no ratio exists.
    assert scores_of(pairs, row_of_rewards(pairs, scale=0.0))["Ties"] == 0


def test_a_judge_of_pairs_is_refused_before_it_judges(tmp_path):
    write_lines(tmp_path / "rows.jsonl", TIES)
    pairs = PairsConfig(benchmark="rewardbench-2", data=tmp_path / "rows.jsonl", allow_partial=True)
    config = JudgeBenchmarkConfig(
        judge=JudgeConfig(model=str(JUDGE_PATH)), out=tmp_path / "judged", pairs=pairs
    )
    with pytest.raises(InputError, match=r"Ties is scored from a reward.*--by rating"):
        judge_benchmark(config)
    pairs = read(tmp_path, TIES)
    without_rewards = TableRow(
        name="judge", ties="half", credit_P=np.ones(12), metadata=row_of_rewards(pairs).metadata
    )
    with pytest.raises(InputError, match="needs the reward of every response"):
        make_table([without_rewards], pairs=pairs)


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_every_score_is_that_of_the_rewardbench_package(tmp_path):
    """On made-up rows whose rewards are small whole numbers, so that most rows have ties."""
    rng = np.random.default_rng(0)
    rows, request = [], {name: [] for name in (*FIVE, "Ties")}
    shapes = [(name, f"{n}", 1, 3) for name in FIVE for n in range(40)]
    shapes += [("Ties", f"ref:{n}", 1, int(rng.integers(1, 6))) for n in range(1, 40)]
    shapes += [
        ("Ties", f"tied:{n}", int(rng.integers(2, 9)), int(rng.integers(1, 6))) for n in range(39)
    ]
    for subset, row_id, num_chosen, num_rejected in shapes:
        lift = 3 if subset == "Ties" else 1  # else no prompt has every right answer above
        chosen = (lift + rng.integers(0, 3, num_chosen)).tolist()
        rejected = rng.integers(0, 4, num_rejected).tolist()
        rows.append(row_of(subset, row_id, chosen, rejected))
        scored = {"id": row_id, "scores": chosen + rejected, "num_correct": num_chosen}
        request[subset].append(scored)
    pairs = read(tmp_path, rows)
    ours = scores_of(pairs, row_of_rewards(pairs))
    theirs = ask(reader_python("rewardbench"), "rewardbench_scoring.py", request, folder=tmp_path)
    assert ours == pytest.approx({**theirs, "Score": sum(theirs.values()) / 6}, abs=1e-12)
    assert all(0.1 < score < 0.9 for score in theirs.values())
