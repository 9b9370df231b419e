"""Verdicts on pairs: prompt and reply, both orders asked, finished shards reused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.judging import pairwise_protocol
from encore.benchmarks.judging.judged_pairs import JudgingManifest
from encore.benchmarks.judging.pairwise_protocol import (
    HOW_TO_ANSWER,
    parse_verdict,
    prompt_digest,
    render_comparison,
)
from encore.benchmarks.judging.verdict_summary import single_order_credits, summarize, verdict_notes
from encore.core.errors import InputError, StudyIncompleteError
from encore.judges.base import Reply
from encore.runs.shard_files import run_status
from tests.benchmarks.judging.scripted import (
    PAIRS,
    VERDICTS,
    benchmark_of,
    index_in,
    judge_of_opinions,
    judged,
    make_benchmark,
    make_pair,
    opposed_judge,
    verdict_of,
)
from tests.run_identities import differing_parts
from tests.worlds.judges import ScriptedJudge
from tests.worlds.tables import turned

# --- prompt and reply -----------------------------------------------------------------------------


def test_the_order_swaps_the_answers_and_changes_no_other_text():
    pair = make_pair(3, chosen="{answer_b}", rejected="{how_to_answer}")
    first, second = (
        render_comparison(pair, is_chosen_first=is_chosen_first, protocol="verdict-only")
        for is_chosen_first in (True, False)
    )
    assert first.index("Good 3. {answer_b}") < first.index("Bad 3. {how_to_answer}")
    swapped = first.replace(pair.chosen, "X").replace(pair.rejected, pair.chosen)
    assert swapped.replace("X", pair.rejected) == second
    assert not any(label in first.casefold() for label in ("chosen", "rejected"))
    # As in judgings that exist: another digest would judge everything again.
    digests = {name: prompt_digest(name)[:12] for name in HOW_TO_ANSWER}
    assert digests == {"explained": "9cf0a0e68549", "verdict-only": "52939f018f6b"}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("[[A]]", ("A", None)),
        ("Both are fine, so [[B]]. Yes, [[B]]!", ("B", None)),
        ("[[A]] or [[B]]", (None, "two_verdicts")),
        ("[[a]]", (None, "no_verdict")),
        (" \n", (None, "empty_reply")),
    ],
)
def test_a_verdict_is_one_letter_in_double_brackets(text, verdict):
    assert parse_verdict(Reply(text=text, is_complete=True)) == verdict
    assert parse_verdict(Reply(text=text, is_complete=False)) == (None, "reply_cut_off")


def test_a_judge_that_follows_the_position_gets_a_note_and_one_order_is_a_seeded_draw():
    always = np.array([[1.0, 0.0]] * 1000)
    for verdict_P2, share in ((always, "100.0%"), (np.vstack([always[:39], [[1, 1]]]), "98.8%")):
        [note] = verdict_notes(summarize(verdict_P2), {}, bounds="")
        assert note.startswith(f"{share} of the verdicts are A: the judge follows the position")
    credit_P = single_order_credits(always, seed=1)
    assert 0.45 < credit_P.mean() < 0.55
    assert credit_P.tolist() == single_order_credits(always, seed=1).tolist()


# --- the run --------------------------------------------------------------------------------------


def test_both_orders_are_asked_and_the_replies_are_stored(tmp_path):
    judge = judge_of_opinions()
    manifest, verdict_P2, null_reasons = judged(tmp_path, judge)
    assert verdict_P2.tolist() == VERDICTS
    assert (judge.num_asked, null_reasons) == (10, {})
    paths = run_status(tmp_path / manifest.key, JudgingManifest).paths
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert len(rows) == 10
    names = ("order", "raw_reply", "run_key")
    assert [rows[0][name] for name in names] == ["chosen-first", "[[A]]", manifest.key]


def test_the_same_pairs_in_any_order_are_judged_once(tmp_path):
    judged(tmp_path, judge_of_opinions())
    second_judge = opposed_judge()
    assert judged(tmp_path, second_judge).verdict_P2.tolist() == VERDICTS
    assert judged(tmp_path, second_judge, turned(PAIRS)).verdict_P2.tolist() == VERDICTS[::-1]
    assert second_judge.num_asked == 0


#: By the part of the identity that changes. The length of replies follows the protocol, if it is
#: not given.
CHANGES: dict[str, dict[str, Any]] = {
    "config.protocol prompt_sha256": {"protocol": "verdict-only"},
    "config.max_reply_tokens": {"max_reply_tokens": 99},
    "plan.shard_size": {"shard_size": 3},
    "judge.name": {"judge": ScriptedJudge(name="other")},
    "judge.revision": {"judge": ScriptedJudge(revision="2")},
    "judge.max_model_len": {"judge": ScriptedJudge(max_model_len=99_999)},
    "judge.engine_args judge.engine_args.quantization": {
        "judge": ScriptedJudge(engine_args={"quantization": "fp8"})
    },
    # As many pairs, of other texts; and other pairs of the same digest.
    "data_sha256": {"pairs": benchmark_of([make_pair(index) for index in range(1, 6)])},
    "plan.num_pairs": {"pairs": dataclasses.replace(make_benchmark(4), digest=PAIRS.digest)},
}


def identity_of_judging(tmp_path: Path, **change: Any) -> dict[str, Any]:
    settings = {"judge": ScriptedJudge(), "max_reply_tokens": 98, **change}
    return judged(tmp_path, settings.pop("judge"), **settings).manifest.identity


def test_every_ingredient_of_a_verdict_changes_the_key(tmp_path, monkeypatch):
    first = identity_of_judging(tmp_path)
    for parts, change in CHANGES.items():
        changed = identity_of_judging(tmp_path, **change)
        assert differing_parts(first, changed) == set(parts.split())
    monkeypatch.setattr(pairwise_protocol, "VERDICT_PARSER_VERSION", 2)
    assert differing_parts(first, identity_of_judging(tmp_path)) == {"parser"}
    monkeypatch.undo()
    changed_prompts = {"explained": "Reply with [[A]] or [[B]]."}
    monkeypatch.setattr(pairwise_protocol, "HOW_TO_ANSWER", changed_prompts)
    assert differing_parts(first, identity_of_judging(tmp_path)) == {"prompt_sha256"}


def test_a_failed_shard_is_judged_by_the_next_call(tmp_path):
    def fail(prompt: str) -> str:
        if index_in(prompt) == 0:
            raise RuntimeError("engine trouble")
        return verdict_of("right", prompt)

    with pytest.raises(StudyIncompleteError, match=r"1 of 3 shards failed .*engine trouble"):
        judged(tmp_path, ScriptedJudge(fail))
    judge = judge_of_opinions(["right"] * 5)
    assert (judged(tmp_path, judge).verdict_P2 == 1).all()
    assert judge.num_asked == 4  # two pairs of one shard


def test_a_prompt_longer_than_the_context_is_not_asked(tmp_path):
    long = (make_pair(0, chosen="long " * 1000), *PAIRS.pairs[1:])
    judge = judge_of_opinions()
    judge.max_model_len = 5000
    pairs = dataclasses.replace(PAIRS, pairs=long)
    _, verdict_P2, null_reasons = judged(tmp_path, judge, pairs, protocol="verdict-only")
    assert (null_reasons, judge.num_asked) == ({"prompt_too_long": 2}, 8)
    assert np.isnan(verdict_P2[0]).all()
    with pytest.raises(InputError, match="leave no room for a prompt in the judge's context of 99"):
        judged(tmp_path, ScriptedJudge(max_model_len=99))
