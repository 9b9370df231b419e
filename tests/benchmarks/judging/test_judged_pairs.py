"""Verdicts on pairs: both orders asked, finished shards reused, one judge at a time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from encore import run_work, runs
from encore.benchmarks.judging.judged_pairs import JudgedPairs, JudgingManifest, judge_pairs
from encore.benchmarks.pairs import BenchmarkPairs
from encore.errors import InputError, StudyIncompleteError
from tests.benchmarks.judging.scripted import (
    index_in,
    judge_of_opinions,
    judge_saying,
    make_benchmark,
    make_pair,
    verdict_of,
)
from tests.scripted_judge import ScriptedJudge

OPINIONS = ["right", "wrong", "A", "B", "right"]
PAIRS = make_benchmark(5, subsets=2)


def judged(out: Path, judge: ScriptedJudge, pairs: BenchmarkPairs = PAIRS, **more) -> JudgedPairs:
    return judge_pairs(pairs, judge=judge, out=out, **{"shard_size": 2, **more})


def test_both_orders_are_asked_and_kept_with_the_judges_words(tmp_path):
    judge = judge_of_opinions(OPINIONS)
    found = judged(tmp_path, judge)
    assert found.verdict_P2.tolist() == [[1, 1], [-1, -1], [1, -1], [-1, 1], [1, 1]]
    assert (judge.num_asked, found.null_reasons) == (10, {})
    rows = [
        row
        for path in runs.run_status(found.folder, JudgingManifest).paths
        for row in pq.read_table(path).to_pylist()
    ]
    assert len(rows) == 10
    first = rows[0]
    assert (first["order"], first["criterion"], first["raw_reply"]) == (
        "chosen-first",
        "overall",
        "[[A]]",
    )
    assert {row["run_key"] for row in rows} == {found.manifest.key}


def test_the_same_judging_again_asks_nothing_and_starts_no_engine(tmp_path):
    first = judged(tmp_path, judge_of_opinions(OPINIONS))
    other = judge_of_opinions(["wrong"] * 5)
    again = judged(tmp_path, other)
    assert other.num_asked == 0
    assert again.verdict_P2.tolist() == first.verdict_P2.tolist()
    turned = dataclasses.replace(
        PAIRS,
        pairs=PAIRS.pairs[::-1],
        subset_P=PAIRS.subset_P[::-1],
        row_id_P=PAIRS.row_id_P[::-1],
    )
    # The same pairs in a file of another order are the same judging.
    assert judged(tmp_path, other, turned).verdict_P2.tolist() == first.verdict_P2.tolist()[::-1]
    assert other.num_asked == 0


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": "verdict-only"},
        {"max_reply_tokens": 99},
        {"shard_size": 3},
        {"judge": ScriptedJudge(name="other")},
        {"judge": ScriptedJudge(revision="2")},
        {"pairs": make_benchmark(4)},
    ],
)
def test_whatever_changes_a_verdict_changes_the_key(tmp_path, change):
    keys = {
        judged(tmp_path, **{"judge": ScriptedJudge(), **given}).manifest.key
        for given in ({}, change)
    }
    assert len(keys) == 2


def test_a_failed_shard_stops_no_other_and_is_judged_by_the_next_call(tmp_path):
    def fail(prompt: str) -> str:
        if index_in(prompt) == 0:
            raise RuntimeError("engine trouble")
        return verdict_of("right", prompt)

    with pytest.raises(StudyIncompleteError, match=r"1 of 3 shards failed .*engine trouble"):
        judged(tmp_path, judge_saying(fail))
    judge = judge_saying(lambda prompt: verdict_of("right", prompt))
    assert (judged(tmp_path, judge).verdict_P2 == 1).all()
    assert judge.num_asked == 4  # two pairs of one shard


def test_every_shard_is_judged_under_its_lock(tmp_path, monkeypatch):
    """Without the lock two processes would both pay for every shard."""
    locked: list[int] = []
    lock = run_work.shard_lock

    def counted(run_dir: Path, index: int):
        locked.append(index)
        return lock(run_dir, index)

    monkeypatch.setattr(run_work, "shard_lock", counted)
    judged(tmp_path, judge_of_opinions(OPINIONS))
    assert sorted(locked) == [0, 1, 2]


def test_a_manifest_of_an_earlier_version_is_read(tmp_path):
    found = judged(tmp_path, judge_of_opinions(OPINIONS))
    path = found.folder / "judging.json"
    content = json.loads(path.read_text())
    content["key"] = content.pop("judging_key")
    del content["synthetic"]
    path.write_text(json.dumps(content))
    other = ScriptedJudge()
    assert judged(tmp_path, other).manifest.key == found.manifest.key
    assert other.num_asked == 0


def test_a_prompt_beyond_the_context_is_not_asked_and_has_a_reason(tmp_path):
    pairs = dataclasses.replace(
        PAIRS, pairs=(make_pair(0, chosen="long " * 1000), *PAIRS.pairs[1:])
    )
    judge = judge_of_opinions(OPINIONS)
    judge.max_model_len = 5000
    found = judged(tmp_path, judge, pairs, protocol="verdict-only")
    assert found.null_reasons == {"prompt_too_long": 2}
    assert found.verdict_P2[0].tolist() == [0, 0]
    assert judge.num_asked == 8


def test_what_cannot_be_judged_is_refused(tmp_path):
    with pytest.raises(InputError, match="no pairs to judge"):
        judged(tmp_path, ScriptedJudge(), make_benchmark(0))
    with pytest.raises(InputError, match="leave no room for a prompt in the judge's context of 99"):
        judged(tmp_path, ScriptedJudge(max_model_len=99))
