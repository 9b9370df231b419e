"""Rating: every rating lands in its row, a run key covers all it depends on, nulls are counted."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.core.errors import EncoreError, InputError
from encore.core.reporting import Reporter
from encore.data import rating_runs
from encore.data.pairs import read_pairs, records_of
from encore.data.rating_runs import null_reasons, run_status
from encore.data.records import RESPONSES
from encore.data.rule_sets import load_rule_set, rule_file
from encore.data.schemas import RATINGS
from encore.data.study import Study, open_study
from encore.judges.judge_options import JudgeConfig
from encore.rating import rating_run, shard_rating
from encore.rating.prompts import RatingPrompt, render_conversation
from encore.rating.rating_options import DEFAULT_SCALES, RatingConfig
from encore.rating.rating_run import RatingRun, open_run
from encore.runs.worker import RunReport, work_through
from tests.rating.conftest import NUM_PAIRS
from tests.run_identities import differing_parts
from tests.worlds.judges import ScriptedJudge, hashed_score
from tests.worlds.studies import (
    create_study,
    numbered_pairs,
    study_of,
    without_run_options,
    write_shard,
)

RULES = load_rule_set("encore-10").rules


def config(**changes: object) -> RatingConfig:
    return RatingConfig(judge=JudgeConfig(model="scripted"), **{"shard_size": 10, **changes})


def opened(study: Study, judge: ScriptedJudge | None = None, **changes: object) -> RatingRun:
    options, how = without_run_options(changes)
    return open_run(study, config(**options), how, judge=judge or ScriptedJudge())


def rate(study: Study, judge: ScriptedJudge | None = None, **changes: object) -> RunReport:
    return work_through(opened(study, judge, **changes).job())


def ratings(run: RatingRun) -> list[dict[str, Any]]:
    return pa.concat_tables(map(pq.read_table, run_status(run.run_dir).paths)).to_pylist()


def test_every_rating_belongs_to_its_pair_response_and_rule(study):
    run = opened(study)
    assert not run.run_dir.exists()  # opening it writes nothing
    work_through(run.job())
    rows = {(row["pair_id"], row["response"], row["rule_id"]): row for row in ratings(run)}
    assert len(rows) == NUM_PAIRS * 2 * 10
    for pair in records_of(read_pairs(study)):
        for response, rule in product(RESPONSES, RULES):
            row = rows[pair.pair_id, response, rule.rule_id]
            conversation = render_conversation(pair.prompt, pair.response_text(response))
            prompt = "".join(RatingPrompt().parts(conversation, rating_rule=rule.rating_rule))
            assert row["raw_reply"] == hashed_score(prompt)
            assert row["rating"] == float(row["raw_reply"])
            assert (row["source"], row["run_key"]) == ("mine", run.manifest.run_key)


def test_ratings_and_nulls_add_up_and_every_null_has_a_reason(study):
    # At most 4 tokens, one a byte: of the last reply exactly "0.75", which is null all the same.
    replies = {0: "0.5", 1: "", 2: "8/1", 3: "-1", 4: "0.75 and then some more"}
    judge = ScriptedJudge(script=lambda prompt: replies[len(prompt) % 5])
    run = opened(study, judge, max_reply_tokens=4, allow_nulls=True)
    report = work_through(run.job())
    rows = ratings(run)
    assert len(rows) == NUM_PAIRS * 2 * 10
    nulls = {"empty_reply", "not_a_single_number", "out_of_range", "reply_cut_off"}
    assert {row["null_reason"] for row in rows if row["rating"] is None} == nulls
    num_nulls_by_reason = Counter(row["null_reason"] for row in rows if row["null_reason"])
    assert report.counts_by("null_reasons") == dict(sorted(num_nulls_by_reason.items()))
    assert null_reasons(run_status(run.run_dir)) == num_nulls_by_reason
    assert report.total("num_ratings") + report.total("num_nulls") == len(rows)


def test_a_second_call_reuses_every_shard_and_neither_starts_nor_asks_a_judge(study, monkeypatch):
    began: list[tuple[str, int | None]] = []

    def started(_: Reporter, title: str, *, total: int | None = None, done: int = 0) -> None:
        began.append((title.partition(" (")[0], total))

    monkeypatch.setattr(Reporter, "started", started)
    judge = ScriptedJudge()
    for summary in ("3 rated, 0 reused, 0 failed", "0 rated, 3 reused, 0 failed"):
        assert rate(study, judge).summary == summary
        assert judge.num_asked == NUM_PAIRS * 20
    # The bar of ratings begins when the engine has started, and is not shown at 0 until then.
    rating = ("rating", NUM_PAIRS * 20)
    assert began == [("opening the judge", None), rating, rating]


def test_only_generation_counts_against_the_time_limit_and_other_shards_complete(
    study, monkeypatch
):
    now = 0.0  # of a fake clock, so that the machine's speed does not matter
    monkeypatch.setattr(shard_rating, "time", SimpleNamespace(monotonic=lambda: now))
    first = min(records_of(read_pairs(study)), key=lambda pair: pair.pair_id)
    slow_text = render_conversation(first.prompt, first.chosen)

    class SlowJudge(ScriptedJudge):
        """Judge whose engine takes an hour to start, and whose server is away for an hour later."""

        def reply(self, prompts, **options):
            nonlocal now
            options["on_progress"](0)
            now += 3600 * (self.num_asked == 0)
            return super().reply(prompts, **options)

    def script(prompt: str) -> str:
        nonlocal now
        now += 60 if slow_text in prompt else 0.001
        if judge.num_asked == 210:  # in the second shard
            now += 3600
            judge.wait_seconds += 3600
        return hashed_score(prompt)

    judge = SlowJudge(script, is_on_cpu=True)  # one shard at a time
    run = opened(study, judge, shard_timeout_seconds=30)
    report = work_through(run.job())
    assert report.summary == "2 rated, 0 reused, 1 failed"
    assert judge.wait_seconds == 3600
    state = run_status(run.run_dir).shards[0]
    assert "passed its limit of 30 s after 1 of 200 replies" in state.detail
    assert rate(study).summary == "1 rated, 2 reused, 0 failed"


def test_a_server_that_never_replies_uses_a_shards_time_up(study, monkeypatch):
    now = 0.0
    monkeypatch.setattr(shard_rating, "time", SimpleNamespace(monotonic=lambda: now))

    class SilentJudge(ScriptedJudge):
        """Judge on a server: it reports each tenth of a second that nothing has come."""

        def reply(self, prompts, **options):
            nonlocal now
            for _ in range(1000):
                options["on_progress"](0)
                now += 0.1
            return super().reply(prompts, **options)

    run = opened(study, SilentJudge(is_on_cpu=True, is_remote=True), shard_timeout_seconds=30)
    assert work_through(run.job()).summary == "0 rated, 0 reused, 3 failed"
    details = [shard.detail for shard in run_status(run.run_dir).shards]
    assert any("passed its limit of 30 s after 0 of" in detail for detail in details)


@pytest.mark.services
def test_no_call_is_made_twice_when_pairs_are_added(study, tmp_path):
    rate(study, limit=7)
    # 25 of the added pairs are in the study under another label.
    study = open_study(study_of(numbered_pairs(NUM_PAIRS + 5), study.path, label="more"))
    judge = ScriptedJudge()
    run = opened(study, judge)
    report = work_through(run.job())
    # Of the rows, 14 are of the seven rated pairs, each under two labels.
    num_new = 20 * (run.pairs.num_rows - 14)
    assert judge.num_asked == report.total("num_calls") == num_new
    assert report.computed("num_known") == 20 * 14
    rows = ratings(run)
    assert {row["run_key"] for row in rows} == {run.manifest.run_key}
    for path in study.ratings_dir.iterdir():
        path.rename(tmp_path / path.name)
    rate(study)
    assert ratings(run) == rows


@pytest.mark.services
def test_ratings_of_another_rule_text_layout_or_decoding_are_not_taken_over(study, tmp_path):
    rate(study)
    rules = tmp_path / "mine.toml"
    text = rule_file("encore-10").read_text(encoding="utf-8")
    for rule in RULES[4:]:
        text = text.replace(rule.rating_rule, f"{rule.rating_rule}!")
    rules.write_text(text, encoding="utf-8")
    for changes, num_asked in (
        ({"rules": str(rules)}, NUM_PAIRS * 2 * 6),
        ({"layout": "conversation-first"}, NUM_PAIRS * 20),
        ({"max_reply_tokens": 17}, NUM_PAIRS * 20),
    ):
        assert rate(study, **changes).total("num_calls") == num_asked


SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant"}
CHOICE: dict[str, object] = {"decode": "choice"}
EXPECTED: dict[str, object] = {"decode": "expected"}
#: By the parts of the identity that change: a config before, and the options that change in it.
CONFIGS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "rules_sha256": ({}, {"rules": "encore-20"}),
    "plan.shard_size": ({}, {"shard_size": 9}),
    "plan.num_pairs": ({}, {"limit": 5}),
    "config.overlong": ({}, {"overlong": "truncate-left"}),
    "config.max_reply_tokens": ({}, {"max_reply_tokens": 17}),
    "config.strip_thinking": ({}, {"strip_thinking": "think"}),
    "config.think_tokens": ({}, {"think_tokens": 100}),
    "config.layout prompt_sha256": ({}, {"layout": "conversation-first"}),
    "config.decode": ({}, CHOICE),
    "config.scale": (CHOICE, {"scale": ",".join(DEFAULT_SCALES["choice"])}),
    "prompt_sha256 config.scale": (CHOICE, {"scale": "0.0,0.5,1.0"}),
    "config.decode prompt_sha256": ({}, EXPECTED),
    "config.min_label_mass": (EXPECTED, {"min_label_mass": 0.9}),
    "config.scale prompt_sha256": (EXPECTED, {"scale": "0,1,2,3"}),
}
CODE: dict[str, list[tuple[str, object]]] = {
    "prompt_sha256": [("prompts._CRITERION", "{rule}"), ("prompts._SPEAKER", SPEAKERS)],
    "parser": [("rating_identity.PARSER_VERSION", 2)],
    "plan.order": [("rating_identity._PLAN_ORDER", "source, pair_id")],
}


def identity_in(study: Study, judge: ScriptedJudge | None = None, **changes: object) -> Any:
    return opened(study, judge, **changes).manifest.identity


def test_every_ingredient_changes_the_run_key(study, tmp_path):
    # Each change alone: a change of two parts would hide that one of them is not in the key.
    first = identity_in(study)
    for parts, (before, change) in CONFIGS.items():
        changed = identity_in(study, **before | change)
        assert differing_parts(identity_in(study, **before), changed) == set(parts.split())
    assert first["judge"] == dataclasses.asdict(ScriptedJudge().identity)
    for part, patches in CODE.items():
        for name, value in patches:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(f"encore.rating.{name}", value)
                assert differing_parts(first, identity_in(study)) == {part}
    other_texts = study_of(numbered_pairs(NUM_PAIRS, num_extra_words=1), tmp_path / "other")
    assert differing_parts(first, identity_in(open_study(other_texts))) == {"data_sha256"}


@pytest.fixture
def one_pair(tmp_path: Path) -> Study:
    """Return a study of one pair whose prompt is long."""
    return open_study(study_of(numbered_pairs(1, num_extra_words=100), tmp_path / "one"))


def prompts_of(study: Study) -> list[str]:
    """Return the uncut rating prompts of a study's only pair, in the order of its rows."""
    [pair] = records_of(read_pairs(study))
    return [
        "".join(
            RatingPrompt().parts(
                render_conversation(pair.prompt, pair.response_text(response)),
                rating_rule=rule.rating_rule,
            )
        )
        for response, rule in product(RESPONSES, RULES)
    ]


@pytest.mark.parametrize("spare", [0, -1])
def test_a_prompt_that_just_fits_is_asked_and_a_longer_one_keeps_a_null_row(one_pair, spare):
    lengths = [len(ids) for ids in ScriptedJudge().tokenizer.encode(prompts_of(one_pair))]
    judge = ScriptedJudge(max_model_len=max(lengths) + 16 + spare)
    run = opened(one_pair, judge)
    num_longest = 0 if spare == 0 else lengths.count(max(lengths))
    expected = {"prompt_too_long": num_longest} if num_longest else {}
    assert run.rater.prompts.num_too_long(run.pairs) == num_longest  # before the judge is loaded
    assert work_through(run.job()).counts_by("null_reasons") == expected
    assert judge.num_asked == 20 - num_longest
    assert [row["raw_reply"] for row in ratings(run)].count(None) == num_longest


def test_truncation_cuts_the_oldest_text_and_counts_it_exactly(one_pair):
    judge = ScriptedJudge(max_model_len=1300)
    run = opened(one_pair, judge, overlong="truncate-left")
    report = work_through(run.job())
    assert (report.computed("num_truncated"), report.counts_by("null_reasons")) == (20, {})
    rows = zip(prompts_of(one_pair), judge.asked, ratings(run), strict=True)
    for uncut, cut, row in rows:  # one token a byte
        assert row["num_truncated_tokens"] == len(uncut.encode()) - len(cut.encode()) > 0
        assert len(cut.encode()) + 4 <= 1300 - 16  # four special tokens frame the message
        assert cut.startswith("You are a helpful assistant.")
        assert cut.endswith("Score:")
        assert "Assistant: " in cut
        assert "Question" not in cut
    # Where not even the template fits, nothing is asked.
    report = rate(one_pair, ScriptedJudge(max_model_len=200), overlong="truncate-left")
    assert report.counts_by("null_reasons") == {"prompt_too_long": 20}


def test_the_key_is_that_of_the_rated_pairs_if_others_replace_them_while_the_judge_opens(study):
    before = opened(study).manifest.run_key

    class ReplacesPairs(ScriptedJudge):
        @property
        def identity(self):
            rows = numbered_pairs(NUM_PAIRS, num_extra_words=1)
            study_of(rows, study.path, replace=True)
            return super().identity

    assert opened(study, ReplacesPairs()).manifest.run_key == before
    assert opened(open_study(study.path)).manifest.run_key != before


def test_a_study_without_pairs_and_a_context_without_room_are_refused(study, tmp_path):
    with pytest.raises(InputError, match="leaves no room"):
        opened(study, ScriptedJudge(max_model_len=16))
    with pytest.raises(InputError, match="encore ingest"):
        opened(create_study(tmp_path / "empty"))


def make_read_only(patch: pytest.MonkeyPatch) -> None:
    """Refuse every new file as a read-only file system does; permissions do not hold for root."""
    refusal = Mock(side_effect=OSError(30, "Read-only file system"))
    patch.setattr("tempfile.TemporaryFile", refusal)


def test_where_nothing_may_be_written_a_complete_run_is_reused_and_others_refused_early(
    study, monkeypatch
):
    judge = ScriptedJudge()
    with pytest.MonkeyPatch.context() as patch:
        make_read_only(patch)
        # The refusal comes before the judge is loaded, which takes minutes.
        patch.setattr(rating_run, "open_judge", lambda *_: pytest.fail("judge loaded"))
        with pytest.raises(EncoreError, match=r"cannot be written .Read-only file system."):
            open_run(study, config())
    rate(study, judge)
    make_read_only(monkeypatch)
    monkeypatch.setattr(judge, "start", lambda: pytest.fail("started"), raising=False)
    assert rate(study, judge).summary == "0 rated, 3 reused, 0 failed"
    with pytest.raises(EncoreError, match="cannot be written"):
        rate(study, judge, limit=5)  # another run


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("rating", float("nan"), "a rating of nan, expected a number in"),
        ("rating", 7.5, "a rating of 7.5, expected a number in"),
        ("response", "both", "a response 'both', not chosen or rejected"),
        ("rule_id", None, "its column pair_id may have nulls"),
    ],
)
def test_a_shard_that_breaks_the_contract_is_damaged_whatever_its_digest(
    study, column, value, problem
):
    run = opened(study)
    work_through(run.job())
    [first, *_] = run_status(run.run_dir).shards
    rows = pq.read_table(first.path).to_pylist()
    rows[0][column] = value
    schema = pa.schema([field.with_nullable(field.nullable or value is None) for field in RATINGS])
    table = pa.Table.from_pylist(rows, schema=schema)
    first.path.unlink()
    shard = run.manifest.shards[0]
    with pytest.raises(EncoreError, match=problem):
        write_shard(run.run_dir, run.manifest, shard, table)
    status = run_status(run.run_dir)
    assert status.shards[0].state == "damaged"
    assert problem in status.shards[0].detail
    assert rate(study).summary == "1 rated, 2 reused, 0 failed"


def test_rules_and_folder_of_a_run_file_must_fit_its_key(study):
    run = opened(study, limit=1)
    work_through(run.job())
    path = run.run_dir / rating_runs.RUN_FILE
    content = json.loads(path.read_text())
    content["rules"][0]["rating_rule"] = "other"
    path.write_text(json.dumps(content))
    with pytest.raises(EncoreError, match="rules are not those of its identity"):
        run_status(run.run_dir)
    path.write_text(run.manifest.model_dump_json())
    copy = run.run_dir.rename(run.run_dir.parent / "0123456789abcdef")
    with pytest.raises(EncoreError, match=f"belongs to run {run.manifest.run_key}"):
        run_status(copy)


@pytest.mark.services
def test_a_rating_costs_at_most_1_6_bytes_without_the_raw_reply(tmp_path):
    # A shard of the default size: 1,000 pairs under ten rules, on eight levels, 1 in 21 is null.
    replies = [*[""] * 2, *[f"{tenths / 10}" for tenths in (0, 1, 2, 5, 7, 8, 9, 10)] * 5]
    rng = random.Random(0)
    judge = ScriptedJudge(lambda _prompt: rng.choice(replies), reads_texts=True, is_on_cpu=True)
    study = open_study(study_of(numbered_pairs(1000), tmp_path / "study"))
    rate(study, judge, shard_size=1000)
    [path] = study.ratings_dir.glob("*/*.parquet")
    replies = pq.read_metadata(path).row_group(0).column(RATINGS.get_field_index("raw_reply"))
    assert replies.path_in_schema == "raw_reply"
    assert (path.stat().st_size - replies.total_compressed_size) / 20_000 <= 1.6
