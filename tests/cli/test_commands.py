"""Every command: results on stdout, the rest on stderr, one clear line and a code on bad input."""

from __future__ import annotations

import json

import pytest

import encore as package
from encore.cli.app import COMMANDS
from encore.data.pairs import read_pairs
from encore.data.study import open_study
from encore.demo import JUDGE_NAME, judge_path
from encore.model_files import folder_digest
from tests.cli.conftest import NUM_PAIRS, rate_arguments
from tests.scripted_judge import ScriptedJudge
from tests.test_rating import write_source

NUM_RATINGS = NUM_PAIRS * 2 * 10


def the_error(finished) -> str:
    """The single line that says what is wrong."""
    lines = [line for line in finished.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, finished.err
    assert "Traceback" not in finished.err
    return lines[0]


def test_help_names_every_command_and_each_says_what_it_does(encore):
    finished = encore("--help")
    assert finished.code == 0
    assert all(command in finished.out for command in COMMANDS)
    for command in COMMANDS:
        finished = encore(command, "--help")
        assert finished.code == 0
        assert len(finished.out) > 400
    assert encore("--version").out == f"encore {package.__version__}\n"
    assert encore("status", "--no-such-option").code == 2


def test_from_pairs_to_weights(encore, rated):
    """Pairs × 2 responses × rules = ratings + nulls, and weights lie on the simplex."""
    status = json.loads(encore("status", rated, "--json").out)["runs"][0]
    assert status["is_complete"]
    assert (status["num_shards"], status["done"]) == (2, 2)
    assert status["num_ratings"] + status["num_nulls"] == NUM_RATINGS
    analysis = json.loads(encore("analyze", rated, "--json").out)
    assert sum(rule["num_ratings"] + rule["num_unparsed"] for rule in analysis["rules"]) == (
        NUM_RATINGS
    )
    weights = json.loads(encore("weights", rated, "--json").out)
    assert weights["rule_ids"] == [rule["rule_id"] for rule in analysis["rules"]]
    assert sum(weights["weights"]) == pytest.approx(1)


def test_rating_again_rates_nothing_and_says_so(encore, rated, judge_folder):
    finished = encore(*rate_arguments(rated, judge_folder), "--json")
    result = json.loads(finished.out)
    assert (result["rated"], result["reused"], result["failed"]) == (0, 2, {})
    assert "0 rated, 2 reused, 0 failed" in finished.err


def test_an_incomplete_run_exits_3_everywhere_and_names_the_shard(encore, rated):
    [shard] = (rated / "ratings").glob("*/shard-00001.*parquet")
    shard.unlink()
    finished = encore("status", rated)
    assert finished.code == 3
    assert "1 done, 1 missing, 0 damaged, 0 failed" in finished.out
    # A4: the command that continues.
    assert f"encore rate {rated} --judge FOLDER/tiny --backend transformers" in finished.err
    for command in ("analyze", "weights"):
        finished = encore(command, rated, "--json")
        assert finished.code == 3
        assert json.loads(finished.out)
        assert "1 of 2 shards" in finished.err


def test_a_single_shard_can_be_rated_by_number(encore, study, judge_folder):
    finished = encore(*rate_arguments(study, judge_folder), "--shard", 1, "--json")
    assert finished.code == 0, finished.err
    assert json.loads(finished.out)["rated"] == 1
    assert encore("status", study).code == 3


def test_show_prints_text_prompt_replies_and_ratings(encore, rated, tmp_path):
    pair_id = read_pairs(open_study(rated))["pair_id"][0].as_py()
    shown = encore("show", pair_id[:8], "--study", rated)
    assert shown.code == 0, shown.err
    for part in ("Question", "Answer", "Criterion for evaluation:", "rejection-of-"):
        assert part in shown.out
    [run] = json.loads(encore("show", pair_id, "--study", rated, "--json").out)["runs"]
    assert len(run["ratings"]) == 20
    assert all(rating["prompt"].endswith("Score:") for rating in run["ratings"])
    # Markup in a conversation is printed as it is.
    text = "[bold]not bold[/bold] [/x] [red]"
    source = tmp_path / "odd.jsonl"
    source.write_text(json.dumps({"prompt": text, "chosen": "a [b]", "rejected": "c"}) + "\n")
    assert encore("ingest", source, "--out", tmp_path / "odd").code == 0
    pair_id = read_pairs(open_study(tmp_path / "odd"))["pair_id"][0].as_py()
    shown = encore("show", pair_id, "--study", tmp_path / "odd")
    assert text in shown.out
    assert "a [b]" in shown.out


def test_an_overlong_prompt_is_reported_and_keeps_its_row(encore, study, judge_folder):
    arguments = [*rate_arguments(study, judge_folder), "--max-model-len", 64, "--json"]
    finished = encore(*arguments)
    assert finished.code == 0
    assert json.loads(finished.out)["null_reasons"] == {"prompt_too_long": NUM_RATINGS}
    assert f"{NUM_RATINGS} ratings are null: prompt_too_long" in finished.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rate", "no-such-study", "--judge", "x"), "no such directory"),
        (("status", "no-such-study"), "no such directory"),
        (("show", "0000", "--study", "no-such-study"), "no such directory"),
        (("analyze", "no-such-study"), "no-such-study"),
        (("ingest", "no-such-source", "--out", "s"), "no-such-source"),
    ],
)
def test_a_place_that_is_not_there_is_one_line(encore, arguments, said):
    finished = encore(*arguments)
    assert finished.code == 1
    assert said in the_error(finished)


def test_bad_rating_options_are_one_line_and_leave_no_run(encore, study, judge_folder, tmp_path):
    no_weights = tmp_path / "no-weights"
    no_weights.mkdir()
    (no_weights / "config.json").write_text("{}")
    twice = tmp_path / "twice.toml"
    rule = '[[rules]]\ntitle = "T"\ndescription = "d"\npreference_rule = "p"\nrating_rule = "r"\n'
    twice.write_text('name = "twice"\n' + rule * 2)
    light = ["--backend", "transformers"]
    cases: list[tuple[list[object], str]] = [
        (["--judge", no_weights], "no *.safetensors weights"),
        (["--judge", tmp_path / "nowhere"], "no such folder"),
        (["--judge", judge_folder, *light, "--rules", "encore-11"], "encore-10, encore-20"),
        (["--judge", judge_folder, *light, "--rules", twice], "rules 0 and 1"),
        (["--judge", judge_folder, *light, "--max-model-len", 9999], "max_model_len 9999"),
        (["--judge", judge_folder, "--engine-arg", "trust_remote_code=true"], "trust_remote_code"),
        (["--judge", judge_folder, "--engine-arg", "oops"], "NAME=VALUE"),
    ]
    for options, said in cases:
        finished = encore("rate", study, *options)
        assert finished.code == 1, options
        assert said in the_error(finished)
        assert not (study / "ratings").exists()


def test_several_runs_are_listed_until_one_is_chosen(encore, rated, judge_folder):
    assert encore(*rate_arguments(rated, judge_folder), "--limit", 2).code == 0
    finished = encore("analyze", rated)
    assert finished.code == 1
    keys = sorted(path.name for path in (rated / "ratings").iterdir())
    assert all(key in the_error(finished) for key in keys)
    assert encore("analyze", rated, "--run", keys[0]).code == 0
    assert encore("status", rated).code == 0


def test_synthetic_pairs_are_said_to_be_synthetic(encore, tmp_path, rated, judge_folder):
    study = tmp_path / "synthetic"
    source = write_source(tmp_path, num_pairs=NUM_PAIRS)
    assert encore("ingest", f"synthetic-pairs={source}", "--out", study).code == 0
    assert encore(*rate_arguments(study, judge_folder)).code == 0
    for command in ("analyze", "weights", "theory"):
        for folder, is_synthetic in ((study, True), (rated, False)):
            finished = encore(command, folder, "--json")
            assert json.loads(finished.out)
            said = "warning: synthetic: source synthetic-pairs" in finished.err
            assert said == is_synthetic == ("synthetic" in finished.err)


def test_the_demos_judge_is_not_called_judge_judge(encore, study, monkeypatch):
    """A5: its folder is called judge."""
    revision = f"sha256:{folder_digest(judge_path())}"
    judge = ScriptedJudge(name="judge", revision=revision)
    monkeypatch.setattr("encore.rating.rating_run.open_judge", lambda _: judge)
    said = encore("rate", study, "--judge", "scripted").err
    assert f": {JUDGE_NAME}, 10 rules" in said
    assert "judge judge" not in said
