"""Several commands agree on exit codes, on synthetic data and on names."""

from __future__ import annotations

import json
import math

import pytest

from encore.core.model_files import folder_digest
from encore.data.pairs import read_pairs
from encore.data.study import open_study
from encore.demo import JUDGE_NAME, JUDGE_PATH
from encore.runs.worker import shard_lock
from tests.cli.conftest import NUM_PAIRS
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import numbered_pairs, rate_study, study_of


def test_an_incomplete_run_exits_3_everywhere_and_names_the_shard(encore, rated):
    [shard] = (rated / "ratings").glob("*/shard-00001.*parquet")
    shard.unlink()
    finished = encore("status", rated)
    assert finished.code == 3
    assert "1 done, 1 missing, 0 damaged, 0 failed" in finished.out
    assert "1 shard not done; `encore rate` with the options" in finished.err
    for command in ("analyze", "weights"):
        finished = encore(command, rated, "--json")
        assert finished.code == 3
        assert json.loads(finished.out)
        assert "1 of 2 shards" in finished.err


def test_runs_that_hold_nothing_are_removed_and_no_others(encore, study):
    """Four runs: one with a shard, one with replies, one with a process that works on it."""
    finished, replied, busy, empty = (
        rate_study(study, ScriptedJudge(name=name)).run_dir for name in "abcd"
    )
    for run_dir in (replied, busy, empty):
        for path in run_dir.glob("shard-*"):
            path.unlink()
    (replied / "replies-00000.jsonl").write_text("{}\n{}\n")
    with shard_lock(busy, 0):
        removed = encore("status", study, "--remove-empty", "--json")
    assert f"1 run removed that held nothing: {empty.name}" in removed.err
    runs = {run["run_key"] for run in json.loads(removed.out)["runs"]}
    assert runs == {finished.name, replied.name, busy.name}
    listed = encore("status", study, "--run", replied.name).out
    assert "0 ratings, 0 nulls\n  kept: 2 replies of an unfinished shard\n" in listed


def test_the_probability_of_the_labels_is_told(encore, study, monkeypatch):
    judge = ScriptedJudge(label_logprobs=(math.log(0.007),) * 10)
    monkeypatch.setattr("encore.rating.rating_run.open_judge", lambda *_: judge)
    options = ("--judge", "scripted", "--decode", "expected", "--min-label-mass", 0.001)
    share = "7 % of the judge's probability is on the labels"
    assert share in encore("rate", study, *options).err
    assert share in encore("status", study).out
    first_lines = " ".join(encore("analyze", study).out.split("All sources")[0].split())
    assert first_lines.startswith(
        "The judge's ratings have at most 1 of 10 labels under one rule; on"
    )
    assert f"coin under none of 10 rules. {share}" in first_lines
    pair_id = read_pairs(open_study(study))["pair_id"][0].as_py()
    assert "7 % of its probability on labels" in encore("show", study, pair_id).out


def test_show_prints_markup_in_a_conversation_as_it_is(encore, tmp_path):
    text = "[bold]not bold[/bold] [/x] [red]"
    row = {"prompt": text, "chosen": "a [b]", "rejected": "c"}
    study = study_of([row], tmp_path / "study")
    pair_id = read_pairs(open_study(study))["pair_id"][0].as_py()
    finished = encore("show", study, pair_id)
    assert text in finished.out
    assert "a [b]" in finished.out


@pytest.mark.parametrize("label", ["mine", "synthetic-pairs"])
def test_commands_warn_of_synthetic_pairs_alone(encore, tmp_path, label):
    study = study_of(numbered_pairs(NUM_PAIRS), tmp_path / "study", label=label)
    rate_study(study)
    warning = f"warning: synthetic: source {label}" if label != "mine" else ""
    for command in ("analyze", "weights", "paper"):
        finished = encore(command, study, "--json")
        assert finished.json
        assert warning in finished.err
        assert ("synthetic" in finished.err) == bool(warning)


def test_the_demos_judge_is_not_called_judge_judge(encore, study, monkeypatch):
    """The folder of the demo's judge is named judge, and messages begin with the word judge."""
    revision = f"sha256:{folder_digest(JUDGE_PATH)}"
    judge = ScriptedJudge(name="judge", revision=revision)
    monkeypatch.setattr("encore.rating.rating_run.open_judge", lambda *_: judge)
    rating_messages = encore("rate", study, "--judge", "scripted").err
    assert f": {JUDGE_NAME}, 10 rules" in rating_messages
    status_table = encore("status", study).out
    assert f"  {JUDGE_NAME}  rules encore-10" in status_table
    plan_table = encore("plan", "rate", study, "--judge", "scripted").out
    assert plan_table.startswith(f"{JUDGE_NAME}: ")
    assert "judge judge" not in rating_messages + status_table + plan_table
