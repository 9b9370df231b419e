"""Every command: results on stdout, the rest on stderr, one clear line and a code on bad input."""

from __future__ import annotations

import json

from encore.core.model_files import folder_digest
from encore.data.pairs import read_pairs
from encore.data.study import open_study
from encore.demo import JUDGE_NAME, JUDGE_PATH
from tests.cli.conftest import NUM_PAIRS
from tests.rating.test_rating_run import write_source
from tests.worlds.judges import ScriptedJudge


def the_error(finished) -> str:
    """The single line that says what is wrong."""
    lines = [line for line in finished.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, finished.err
    assert "Traceback" not in finished.err
    return lines[0]


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


def test_show_prints_markup_in_a_conversation_as_it_is(encore, tmp_path):
    text = "[bold]not bold[/bold] [/x] [red]"
    source = tmp_path / "odd.jsonl"
    source.write_text(json.dumps({"prompt": text, "chosen": "a [b]", "rejected": "c"}) + "\n")
    assert encore("ingest", source, "--out", tmp_path / "odd").code == 0
    pair_id = read_pairs(open_study(tmp_path / "odd"))["pair_id"][0].as_py()
    shown = encore("show", pair_id, "--study", tmp_path / "odd")
    assert text in shown.out
    assert "a [b]" in shown.out


def test_synthetic_pairs_are_said_to_be_synthetic(encore, tmp_path, rated, judge_folder):
    study = tmp_path / "synthetic"
    source = write_source(tmp_path, num_pairs=NUM_PAIRS)
    assert encore("ingest", f"synthetic-pairs={source}", "--out", study).code == 0
    backend = ("--backend", "transformers", "--shard-size", 4)
    assert encore("rate", study, "--judge", judge_folder, *backend).code == 0
    for command in ("analyze", "weights", "theory"):
        for folder, is_synthetic in ((study, True), (rated, False)):
            finished = encore(command, folder, "--json")
            assert json.loads(finished.out)
            said = "warning: synthetic: source synthetic-pairs" in finished.err
            assert said == is_synthetic == ("synthetic" in finished.err)


def test_the_demos_judge_is_not_called_judge_judge(encore, study, monkeypatch):
    """The folder of the demo's judge is named judge, and messages begin with the word judge."""
    revision = f"sha256:{folder_digest(JUDGE_PATH)}"
    judge = ScriptedJudge(name="judge", revision=revision)
    monkeypatch.setattr("encore.rating.rating_run.open_judge", lambda _: judge)
    said = encore("rate", study, "--judge", "scripted").err
    assert f": {JUDGE_NAME}, 10 rules" in said
    shown = encore("status", study).out
    assert f"  {JUDGE_NAME}  rules encore-10" in shown
    assert "judge judge" not in said + shown
