"""Rating: every rating lands in its row, a run key covers all it depends on, nulls are counted."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore import rating_runs, runs
from encore.config import JudgeConfig, RatingConfig
from encore.data.ingestion import ingest
from encore.data.pairs import data_digest, data_digest_of, read_pairs, records_of
from encore.data.records import RESPONSES
from encore.data.rules import load_rule_set
from encore.data.study import Study, open_study
from encore.errors import EncoreError, InputError
from encore.rating import rating_run
from encore.rating.prompts import render_conversation, render_rating_prompt
from encore.rating.rating_run import RatingRun, open_run, rate_run
from encore.rating_runs import RatingManifest, run_status
from encore.schemas import RATINGS
from tests.rating_shards import write_shard
from tests.scripted_judge import ScriptedJudge, hashed_score

NUM_PAIRS = 25


def write_source(folder: Path, *, num_pairs: int = NUM_PAIRS, length: int = 1) -> Path:
    path = folder / "pairs.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for index in range(num_pairs):
            record = {
                "prompt": f"Question {index}? " + "please " * length,
                "chosen": f"Answer {index}.",
                "rejected": f"No {index}.",
            }
            file.write(json.dumps(record) + "\n")
    return path


@pytest.fixture
def study(tmp_path: Path) -> Study:
    ingest([f"mine={write_source(tmp_path)}"], out=tmp_path / "study")
    return open_study(tmp_path / "study")


def config(**changes: object) -> RatingConfig:
    return RatingConfig(judge=JudgeConfig(model="scripted"), **{"shard_size": 10, **changes})


def opened(study: Study, judge: ScriptedJudge, **changes: object) -> RatingRun:
    return open_run(study, config(**changes), judge=judge)


def ratings(run: RatingRun) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in run_status(run.run_dir).paths])


def rating_of(prompt: str) -> str:
    """What the scripted judge says to a rating prompt as the chat template frames it."""
    return hashed_score(f"{prompt}")


def test_every_rating_belongs_to_its_pair_response_and_rule(study):
    judge = ScriptedJudge()
    run = opened(study, judge)
    rate_run(run)
    pairs = {pair.pair_id: pair for pair in records_of(read_pairs(study))}
    rules = {rule.rule_id: rule for rule in load_rule_set("encore-10").rules}
    rows = ratings(run).to_pylist()
    assert len(rows) == NUM_PAIRS * 2 * 10
    for row in rows:
        pair = pairs[row["pair_id"]]
        prompt = render_rating_prompt(
            render_conversation(pair.prompt, pair.response_text(row["response"])),
            rating_rule=rules[row["rule_id"]].rating_rule,
        )
        assert row["raw_reply"] == rating_of(prompt)
        assert row["rating"] == float(row["raw_reply"])
        assert row["source"] == "mine"
        assert row["run_key"] == run.manifest.run_key


def test_ratings_and_nulls_add_up_and_every_null_has_a_reason(study):
    replies = {0: "0.5", 1: "", 2: "8/10", 3: "-1", 4: "0.8 since it is polite and kind"}
    judge = ScriptedJudge(script=lambda prompt: replies[len(prompt) % 5])
    run = opened(study, judge)
    report = rate_run(run)
    table = ratings(run)
    assert table.num_rows == NUM_PAIRS * 2 * 10
    nulls = [row for row in table.to_pylist() if row["rating"] is None]
    assert nulls
    assert all(row["null_reason"] for row in nulls)
    assert sum(report.tally("null_reasons").values()) == len(nulls)
    assert set(report.tally("null_reasons")) <= {
        "empty_reply",
        "not_a_single_number",
        "out_of_range",
        "reply_cut_off",
    }
    rated = [row for row in table.to_pylist() if row["rating"] is not None]
    assert {row["rating"] for row in rated} == {0.5}
    assert all(row["null_reason"] is None for row in rated)


def test_a_reply_that_the_token_limit_cuts_is_null_even_if_it_begins_with_a_number(study):
    judge = ScriptedJudge(script=lambda _: "0.75 and then some more")
    run = opened(study, judge, max_reply_tokens=4)  # 4 tokens: exactly "0.75"
    assert rate_run(run).tally("null_reasons") == {"reply_cut_off": NUM_PAIRS * 20}


def test_a_second_call_reuses_every_shard_and_asks_nothing(study):
    judge = ScriptedJudge()
    first = rate_run(opened(study, judge))
    asked = judge.num_asked
    second = rate_run(opened(study, judge))
    assert (first.summary, second.summary) == (
        "3 rated, 0 reused, 0 failed",
        "0 rated, 3 reused, 0 failed",
    )
    assert judge.num_asked == asked == NUM_PAIRS * 20


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class SlowJudge(ScriptedJudge):
    """An engine that takes an hour to start; each of its prompts about one pair takes a minute."""

    clock: Clock
    slow_text: str
    is_started: bool = False

    def reply(self, prompts, *, max_reply_tokens, on_progress):
        on_progress(0)
        if not self.is_started:
            self.clock.now += 3600
            self.is_started = True
        return super().reply(prompts, max_reply_tokens=max_reply_tokens, on_progress=on_progress)


def test_only_generation_counts_against_the_time_limit_and_other_shards_complete(
    study, monkeypatch
):
    """F16: nothing here depends on how fast the machine is."""
    clock = Clock()
    monkeypatch.setattr(rating_run, "time", clock)
    first = min(records_of(read_pairs(study)), key=lambda pair: pair.pair_id)
    slow_text = render_conversation(first.prompt, first.chosen)

    def script(prompt: str) -> str:
        clock.now += 60 if slow_text in prompt else 0.001
        return hashed_score(prompt)

    judge = SlowJudge(script=script)
    judge.clock, judge.slow_text = clock, slow_text
    run = opened(study, judge)
    report = rate_run(run, shard_timeout_seconds=30)
    assert report.summary == "2 rated, 0 reused, 1 failed"
    state = run_status(run.run_dir).shards[0]
    assert "passed its limit of 30 s after 1 of 200 replies" in state.detail
    mended = rate_run(opened(study, ScriptedJudge()), shard_timeout_seconds=30)
    assert mended.summary == "1 rated, 2 reused, 0 failed"


def test_two_workers_on_one_study_rate_each_shard_once(study):
    judges = [
        ScriptedJudge(script=lambda prompt: (time.sleep(0.0005), hashed_score(prompt))[1])
        for _ in range(2)
    ]
    opened_runs = [opened(study, judge, shard_size=5) for judge in judges]
    reports = []
    threads = [
        threading.Thread(target=lambda run=run: reports.append(rate_run(run)))
        for run in opened_runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(judge.num_asked for judge in judges) == NUM_PAIRS * 20
    assert sum(report.count("rated") for report in reports) == 5
    assert all(report.count("rated") + report.count("reused") == 5 for report in reports)
    assert run_status(opened_runs[0].run_dir).is_complete


INGREDIENTS = {
    "rules": {"rules": "encore-20"},
    "shard_size": {"shard_size": 9},
    "limit": {"limit": 5},
    "overlong": {"overlong": "truncate-left"},
    "max_reply_tokens": {"max_reply_tokens": 17},
}
JUDGES = {
    "name": {"name": "other"},
    "revision": {"revision": "2"},
    "max_model_len": {"max_model_len": 99_999},
}
CODE = {
    "template": ("encore.rating.prompts.RATING_TEMPLATE", "{rule} {QA} Score:"),
    "speakers": (
        "encore.rating.prompts._SPEAKER",
        {"system": "System", "user": "User", "assistant": "Assistant"},
    ),
    "parser": ("encore.rating.rating_run.PARSER_VERSION", 2),
}


@pytest.mark.parametrize("ingredient", [*INGREDIENTS, *JUDGES, *CODE, "pairs"])
def test_every_ingredient_changes_the_run_key(study, tmp_path, monkeypatch, ingredient):
    before = opened(study, ScriptedJudge()).manifest.run_key
    assert opened(study, ScriptedJudge()).manifest.run_key == before
    if ingredient in CODE:
        monkeypatch.setattr(*CODE[ingredient])
    if ingredient == "pairs":
        ingest([f"mine={write_source(tmp_path, length=2)}"], out=study.path, replace=True)
    judge = ScriptedJudge(**JUDGES.get(ingredient, {}))
    assert opened(study, judge, **INGREDIENTS.get(ingredient, {})).manifest.run_key != before


def test_the_identity_names_everything_that_a_rating_depends_on(study):
    identity = opened(study, ScriptedJudge()).manifest.identity
    assert set(identity) == {
        *("format", "judge", "prompt_sha256", "rules_sha256", "decoding", "data_sha256", "plan")
    }
    assert set(identity["judge"]) == {
        *("backend", "name", "revision", "dtype", "chat_template_sha256", "frozen_date"),
        *("max_model_len", "engine_args"),
    }
    assert identity["plan"] == {
        "order": "pair_id",
        "shard_size": 10,
        "num_pairs": NUM_PAIRS,
        "overlong": "set-aside",
    }
    assert set(identity["decoding"]) == {"temperature", "max_reply_tokens", "parser"}


def test_another_run_stands_beside_the_old_one(study):
    for changes in ({}, {"limit": 5}):
        rate_run(opened(study, ScriptedJudge(), **changes), only=[0])
    assert len(rating_runs.list_runs(study.ratings_dir)) == 2


def test_the_same_run_has_the_same_key_wherever_the_study_lies(tmp_path):
    keys = set()
    for place in ("one", "two/deeper"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        ingest([f"mine={write_source(folder)}"], out=folder / "study")
        keys.add(opened(open_study(folder / "study"), ScriptedJudge()).manifest.run_key)
    assert len(keys) == 1


def test_a_pilot_rates_the_first_pairs_by_content_hash(study):
    run = opened(study, ScriptedJudge(), limit=7, shard_size=5)
    rate_run(run)
    all_ids = sorted(pair.pair_id for pair in records_of(read_pairs(study)))
    assert sorted(set(ratings(run)["pair_id"].to_pylist())) == all_ids[:7]


def test_an_overlong_prompt_keeps_a_null_row_and_is_never_asked(tmp_path):
    ingest([f"mine={write_source(tmp_path, num_pairs=3)}"], out=tmp_path / "study")
    study = open_study(tmp_path / "study")
    run = opened(study, ScriptedJudge(max_model_len=200))  # shorter than the template alone
    report = rate_run(run)
    assert report.tally("null_reasons") == {"prompt_too_long": 60}
    assert set(ratings(run)["raw_reply"].to_pylist()) == {None}


def test_truncation_cuts_the_oldest_text_and_is_counted(tmp_path):
    ingest([f"mine={write_source(tmp_path, num_pairs=3, length=100)}"], out=tmp_path / "study")
    study = open_study(tmp_path / "study")
    seen: list[str] = []
    judge = ScriptedJudge(script=lambda prompt: (seen.append(prompt), "0.5")[1], max_model_len=1300)
    run = opened(study, judge, overlong="truncate-left")
    report = rate_run(run)
    assert report.computed("num_truncated") == 60
    assert report.tally("null_reasons") == {}
    for prompt in seen:
        assert len(prompt.encode()) + 4 <= 1300 - 16  # four special tokens frame the message
        assert "Question" not in prompt
        assert prompt.startswith("You are a helpful assistant.")
        assert prompt.endswith("Score:")
        assert "Assistant: " in prompt
    assert min(ratings(run)["num_truncated_tokens"].to_pylist()) > 0


@pytest.mark.parametrize(("spare", "reason"), [(0, None), (-1, "prompt_too_long")])
def test_a_prompt_that_just_fits_is_asked(tmp_path, spare, reason):
    ingest([f"mine={write_source(tmp_path, num_pairs=1)}"], out=tmp_path / "study")
    study = open_study(tmp_path / "study")
    [pair] = records_of(read_pairs(study))
    prompts = [
        render_rating_prompt(
            render_conversation(pair.prompt, pair.response_text(response)),
            rating_rule=rule.rating_rule,
        )
        for response in RESPONSES
        for rule in load_rule_set("encore-10").rules
    ]
    lengths = [len(ids) for ids in ScriptedJudge().tokenizer.encode(prompts)]
    run = opened(study, ScriptedJudge(max_model_len=max(lengths) + 16 + spare))
    reasons = rate_run(run).tally("null_reasons")
    assert reasons == ({} if reason is None else {reason: lengths.count(max(lengths))})


def test_cut_tokens_are_counted_exactly(tmp_path):
    """Cut and full prompt differ by exactly the tokens that the row says."""
    ingest([f"mine={write_source(tmp_path, num_pairs=1, length=100)}"], out=tmp_path / "study")
    study = open_study(tmp_path / "study")
    [pair] = records_of(read_pairs(study))
    asked: list[str] = []
    judge = ScriptedJudge(
        script=lambda prompt: (asked.append(prompt), "0.5")[1], max_model_len=1300
    )
    run = opened(study, judge, overlong="truncate-left")
    rate_run(run)
    rule = load_rule_set("encore-10").rules[0]
    full = render_rating_prompt(
        render_conversation(pair.prompt, pair.chosen), rating_rule=rule.rating_rule
    )
    row = ratings(run).to_pylist()[0]
    assert row["rule_id"] == rule.rule_id
    assert row["num_truncated_tokens"] == len(full.encode()) - len(asked[0].encode())


def test_opening_a_run_writes_nothing(study):
    assert not opened(study, ScriptedJudge()).run_dir.exists()


def test_pairs_replaced_while_the_judge_opens_are_another_run(study, tmp_path):
    """The key is that of the pairs that are rated, not of whatever lies there a minute later."""
    before = opened(study, ScriptedJudge()).manifest.run_key
    other = tmp_path / "other"
    other.mkdir()

    class ReplacesPairs(ScriptedJudge):
        @property
        def identity(self):
            source = write_source(other, num_pairs=NUM_PAIRS, length=2)
            ingest([f"mine={source}"], out=study.path, replace=True)
            return super().identity

    assert opened(study, ReplacesPairs()).manifest.run_key == before
    assert opened(study, ScriptedJudge()).manifest.run_key != before


def test_the_data_digest_of_a_table_is_that_of_its_study(study):
    assert data_digest_of(read_pairs(study)) == data_digest(study)


def test_a_context_without_room_for_a_prompt_is_refused(study):
    with pytest.raises(InputError, match="leaves no room"):
        opened(study, ScriptedJudge(max_model_len=16))


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, permissions do not hold; a read-only file system refuses every new file."""

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)


def test_a_read_only_study_is_refused_before_the_judge_is_loaded(study, monkeypatch):
    """F6: it was refused 78 s later, after the engine's start."""
    read_only(monkeypatch)
    monkeypatch.setattr(rating_run, "open_judge", lambda _: pytest.fail("judge loaded"))
    with pytest.raises(EncoreError, match=r"cannot be written .Read-only file system."):
        open_run(study, config())


def test_a_complete_run_is_reused_where_nothing_may_be_written(study, monkeypatch):
    judge = ScriptedJudge()
    rate_run(opened(study, judge))
    read_only(monkeypatch)
    monkeypatch.setattr(judge, "start", lambda: pytest.fail("started"), raising=False)
    assert rate_run(opened(study, judge)).summary == "0 rated, 3 reused, 0 failed"
    with pytest.raises(EncoreError, match="cannot be written"):
        rate_run(opened(study, judge, limit=5))  # another run, before its engine starts


@pytest.mark.parametrize("value", [float("nan"), 7.5, -0.1])
def test_a_shard_with_a_rating_that_is_none_is_damaged_whatever_its_digest(study, value):
    """W6: a consistent forgery passed `status`."""
    run = opened(study, ScriptedJudge())
    rate_run(run)
    [first, *_] = run_status(run.run_dir).shards
    table = pq.read_table(first.path)
    forged = [value, *table["rating"].to_pylist()[1:]]
    place = table.schema.get_field_index("rating")
    table = table.set_column(place, RATINGS.field("rating"), pa.array(forged, pa.float64()))
    first.path.unlink()
    shard = run.manifest.shards[0]
    with pytest.raises(EncoreError, match="expected a number in"):
        write_shard(run.run_dir, run.manifest, shard, table)
    status = run_status(run.run_dir)
    assert status.shards[0].state == "damaged"
    assert f"a rating of {value}" in status.shards[0].detail
    assert len(status.paths) == 2
    assert rate_run(opened(study, ScriptedJudge())).summary == "1 rated, 2 reused, 0 failed"
    assert run_status(run.run_dir).is_complete


def test_rules_and_folder_of_a_run_file_must_fit_its_key(study):
    run = opened(study, ScriptedJudge(), limit=1)
    rate_run(run)
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


def test_a_rating_costs_at_most_1_6_bytes_without_the_raw_reply(study):
    """1,000 pairs with hashed ids, ten rules, eight levels: the shard size that is the default."""
    identity = {**opened(study, ScriptedJudge()).manifest.identity}
    identity["plan"] = {**identity["plan"], "num_pairs": 1000, "shard_size": 1000}
    rules = [dataclasses.asdict(rule) for rule in load_rule_set("encore-10").rules]
    manifest = RatingManifest(
        run_key=runs.run_key_of(identity), identity=identity, rule_set="x", rules=rules, versions={}
    )
    rng = random.Random(0)
    levels = [None, 0.0, 0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1.0]
    weights = [1, *[2.5] * 8]
    keys = [
        (hashlib.sha256(str(pair).encode()).hexdigest()[:32], response, rule_id)
        for pair in range(1000)
        for response in RESPONSES
        for rule_id in manifest.rule_ids
    ]
    ratings = rng.choices(levels, weights, k=len(keys))
    columns = {
        "pair_id": [key[0] for key in keys],
        "source": ["hh"] * len(keys),
        "response": [key[1] for key in keys],
        "rule_id": [key[2] for key in keys],
        "rating": ratings,
        "null_reason": [None if rating is not None else "empty_reply" for rating in ratings],
        "num_truncated_tokens": [0] * len(keys),
        "raw_reply": [str(rating) for rating in ratings],
        "judge": [manifest.judge] * len(keys),
        "run_key": [manifest.run_key] * len(keys),
    }
    table = pa.table(columns, schema=RATINGS)
    path = write_shard(study.path / "run", manifest, manifest.shards[0], table).path
    row_group = pq.read_metadata(path).row_group(0)
    columns = [row_group.column(index) for index in range(row_group.num_columns)]
    [raw_reply] = [column for column in columns if column.path_in_schema == "raw_reply"]
    num_bytes = path.stat().st_size - raw_reply.total_compressed_size
    assert num_bytes / row_group.num_rows <= 1.6


def test_a_study_without_pairs_says_what_to_do(tmp_path):
    (tmp_path / "study.json").write_text('{"encore_study": 1}')
    with pytest.raises(InputError, match="encore ingest"):
        opened(open_study(tmp_path), ScriptedJudge())
