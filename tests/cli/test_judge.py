"""`encore judge`: a table with intervals, notes on the judge, clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.judging.scripted import (
    Opinion,
    index_in,
    is_chosen_first,
    make_pair,
    verdict_of,
)
from tests.golden.command_line import encore
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import write_lines

NUM_PAIRS = 10


@pytest.fixture
def arguments(tmp_path: Path) -> list[object]:
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
    data = write_lines(tmp_path / "rows.jsonl", rows)
    benchmark = ["--benchmark", "generic", "--data", data, "--out", tmp_path / "judged"]
    return [*benchmark, "--judge", "scripted", "--shard-size", 4]


#: Opinions on the ten pairs. 0 to 4 are judged rightly in both orders; 5 and 6 follow the first
#: place, 7 the second; 8 is wrong in both orders; of 9 see `reply_to`.
OPINIONS: list[Opinion] = [*["right"] * 5, "A", "A", "B", "wrong"]


def reply_to(prompt: str) -> str:
    """Return the judge's reply. Pair 9 gets a verdict only if its chosen answer is first."""
    if index_in(prompt) == 9:
        return "[[A]]" if is_chosen_first(prompt) else "I cannot say."
    return verdict_of(OPINIONS[index_in(prompt)], prompt)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedJudge:
    """Return a judge that replaces the engine."""
    replacement = ScriptedJudge(reply_to)
    opener = "encore.benchmarks.judging.run_judge.open_judge"
    monkeypatch.setattr(opener, lambda *_: replacement)
    return replacement


def test_a_judging_prints_tables_warnings_and_the_folder_of_replies(arguments, scripted):
    result = encore("judge", *arguments, "--protocol", "verdict-only")
    assert result.code == 0, result.err
    stdout = " ".join(result.out.split())
    # Even pairs 0, 2, 4 right, 6 at one half, 8 wrong; odd 1, 3 right, 5, 7 at one half, 9 at 3/4.
    for line in ("even 5 70.0%", "odd 5 75.0%", "Accuracy 10 72.5%"):
        assert line in stdout
    assert "19 verdicts in 20 replies; both orders agree on 66.7% of 9 pairs" in stdout
    assert "57.9% of the verdicts name the answer shown first" in stdout
    assert "ties and missing verdicts count one half" in stdout
    for message in (
        "with one order per pair, as in RewardBench: Accuracy",
        "ties: 3 of 10 pairs count one half",
        "note: judge scripted: 1 of 20 verdicts are missing: neither",
        "next: encore benchmark STUDY --results",
    ):
        assert message in result.err
    assert scripted.num_asked == 20
    assert encore("judge", *arguments, "--protocol", "verdict-only").out == result.out
    assert scripted.num_asked == 20
