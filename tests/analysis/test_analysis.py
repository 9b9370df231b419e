"""`encore analyze`: its JSON, its order, its notes, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from encore.analysis.analyze import analyze
from encore.cli.app import app
from encore.data.rules.load import rules_digest
from encore.errors import InputError
from encore.schemas import RATINGS
from encore.shards import RunManifest, digest_path, run_key_of, shard_path, write_run, write_shard
from tests.ratings_files import random_table, ratings_table

RULES = ("zeta", "alpha", "mid")  # not in alphabetical order: the rule set's order is kept
SHARD_SIZE = 4


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def add_run(study: Path, *, num_pairs: int = 10, judge: str = "tiny", seed: int = 0) -> Path:
    """A finished run of three rules: random ratings, written as shards."""
    texts = ("title", "description", "preference_rule", "rating_rule")
    rules = [{"rule_id": rule_id, **dict.fromkeys(texts, "x")} for rule_id in RULES]
    identity = {
        "judge": {"name": judge},
        "seed": seed,
        "rules_sha256": rules_digest(rules),
        "plan": {"num_pairs": num_pairs, "shard_size": SHARD_SIZE},
    }
    manifest = RunManifest(
        run_key=run_key_of(identity),
        identity=identity,
        rule_set="mine",
        rules=rules,
        versions={},
    )
    run_dir = study / "ratings" / manifest.run_key
    write_run(run_dir, manifest)
    (study / "study.json").write_text('{"encore_study": 1}\n')
    rng = np.random.default_rng(seed)
    for shard in manifest.shards:
        keys = [
            (f"{pair:032x}", response, rule_id)
            for pair in range(shard.start, shard.stop)
            for response in ("chosen", "rejected")
            for rule_id in RULES
        ]
        pair_ids, responses, rule_ids = zip(*keys, strict=True)
        n = len(keys)
        columns = {
            "pair_id": pair_ids,
            "source": ["hh"] * n,
            "response": responses,
            "rule_id": rule_ids,
            "rating": rng.integers(0, 11, size=n) / 10,
            "null_reason": [None] * n,
            "num_truncated_tokens": [0] * n,
            "raw_reply": [None] * n,
            "judge": [judge] * n,
            "run_key": [manifest.run_key] * n,
        }
        table = pa.table(columns, schema=RATINGS)
        write_shard(run_dir, shard, table, footer={"run_key": manifest.run_key})
    return run_dir


# --- studies --------------------------------------------------------------------------------------


def test_a_study_gives_the_rules_in_their_set_s_order(tmp_path: Path) -> None:
    run_dir = add_run(tmp_path)
    for path in (tmp_path, tmp_path / "ratings", run_dir):
        result = invoke("analyze", path, "--json")
        assert result.exit_code == 0, result.stderr
        rules = json.loads(result.stdout)["rules"]
        assert [rule["rule_id"] for rule in rules] == list(RULES)
        assert {rule["num_ratings"] for rule in rules} == {20}


def test_rules_of_other_files_are_sorted(tmp_path: Path) -> None:
    pq.write_table(pq.read_table(shard_path(add_run(tmp_path), 0)), tmp_path / "copy.parquet")
    assert [r.rule_id for r in analyze(tmp_path / "copy.parquet").rules] == sorted(RULES)


@pytest.mark.parametrize("command", ["analyze", "weights"])
def test_an_incomplete_study_gives_its_figures_a_warning_and_code_3(
    tmp_path: Path, command: str
) -> None:
    run_dir = add_run(tmp_path)
    shard_path(run_dir, 0).unlink()
    result = invoke(command, tmp_path, "--json")
    assert result.exit_code == 3
    json.loads(result.stdout)
    assert "1 of 3 shards are missing" in result.stderr
    assert "encore rate" in result.stderr


def test_a_damaged_shard_is_never_read(tmp_path: Path) -> None:
    run_dir = add_run(tmp_path)
    path = shard_path(run_dir, 1)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    stray = pq.read_table(shard_path(run_dir, 0)).set_column(3, "rule_id", [["stray"] * 24])
    pq.write_table(stray, run_dir / "shard-00007.parquet")  # not of the plan
    analysis = analyze(tmp_path)
    assert analysis.num_missing_shards == 1
    assert not analysis.is_complete
    # Shards 0 and 2 hold 4 and 2 pairs.
    assert [(r.rule_id, r.num_pairs) for r in analysis.rules] == [(rule, 6) for rule in RULES]


def test_a_study_without_a_finished_shard_is_an_error(tmp_path: Path) -> None:
    run_dir = add_run(tmp_path)
    for index in range(3):
        digest_path(run_dir, index).unlink()
    with pytest.raises(InputError, match="no finished shard"):
        analyze(tmp_path)


def test_a_study_without_ratings_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"encore_study": 1}\n')
    with pytest.raises(InputError, match="run `encore rate"):
        analyze(tmp_path)


def test_several_runs_of_a_study_must_be_chosen_from(tmp_path: Path) -> None:
    first = add_run(tmp_path, judge="tiny", seed=0)
    second = add_run(tmp_path, judge="big", seed=1)
    with pytest.raises(InputError) as caught:
        analyze(tmp_path)
    for part in (first.name, second.name, "tiny", "big", "--run", "--judge"):
        assert part in str(caught.value)
    assert analyze(tmp_path, run=first.name[:5]) == analyze(first)
    assert analyze(tmp_path, judge="big") == analyze(second)
    with pytest.raises(InputError, match="none of its runs match"):
        analyze(tmp_path, run=first.name, judge="big")


# --- figures --------------------------------------------------------------------------------------


def test_by_source_gives_each_source_and_then_all(tmp_path: Path) -> None:
    table = random_table(np.random.default_rng(1), max_rows=2000)
    pq.write_table(table, tmp_path / "r.parquet")
    found = json.loads(invoke("analyze", tmp_path, "--by-source", "--json").stdout)
    sources = [*sorted(set(table["source"].to_pylist())), "all"]
    assert list(dict.fromkeys(rule["source"] for rule in found["rules"])) == sources
    assert list(dict.fromkeys(row["source"] for row in found["correlation"])) == sources
    pooled = json.loads(invoke("analyze", tmp_path, "--json").stdout)
    assert pooled["rules"] == [r for r in found["rules"] if r["source"] == "all"]
    assert pooled["correlation"] == [r for r in found["correlation"] if r["source"] == "all"]


def test_a_source_called_all_would_be_ambiguous() -> None:
    table = ratings_table([("p", "all", "chosen", "r", 0.5)])
    assert analyze(table).rules[0].source == "all"
    with pytest.raises(InputError, match='source is called "all"'):
        analyze(table, by_source=True)


def test_a_single_rating_is_enough_for_a_row() -> None:
    (rule,) = analyze(ratings_table([("p", "s", "chosen", "r", 0.5)])).rules
    assert (rule.num_pairs, rule.num_pairs_total, rule.coverage) == (0, 1, 0.0)
    assert rule.tie_rate is None
    assert rule.accuracy.half is None
    assert rule.entropy_nats == 0.0


def test_all_tied_has_no_untied_accuracy() -> None:
    rows = [("p", "s", response, "r", 0.5) for response in ("chosen", "rejected")]
    (rule,) = analyze(ratings_table(rows)).rules
    accuracy = rule.accuracy
    assert (accuracy.half, accuracy.strict, accuracy.untied, accuracy.inclusive) == (
        0.5,
        0,
        None,
        1,
    )
    assert rule.tie_rate == 1.0


def test_order_of_rows_and_number_of_threads_change_not_one_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = random_table(np.random.default_rng(2), max_rows=20_000)
    expected = analyze(table, by_source=True)
    for threads in ("1", "2"):
        monkeypatch.setenv("ENCORE_DUCKDB_THREADS", threads)
        shuffled = table.take(np.random.default_rng(int(threads)).permutation(table.num_rows))
        assert analyze(shuffled, by_source=True) == expected


def test_notes_say_what_limits_the_figures() -> None:
    rows = [(f"p{i}", "s", r, "constant", 0.5) for i in range(4) for r in ("chosen", "rejected")]
    rows += [(f"p{i}", "s", r, "half", i / 4) for i in range(2) for r in ("chosen", "rejected")]
    rows += [(f"p{i}", "s", "chosen", "nulls", None) for i in range(4)]
    notes = "\n".join(analyze(ratings_table(rows)).notes)
    assert "rule constant is constant: entropy 0" in notes
    assert "rule nulls has no rating (4 nulls)" in notes
    assert (
        "2 of 3 rules rated only some pairs fully, the least nulls: both responses of 0 of 4"
        in (notes)
    )


def test_kernel_densities_of_unequal_numbers_carry_a_note() -> None:
    def rows(rule: str, n: int) -> list[tuple[str, str, str, str, float | None]]:
        return [(f"p{i}", "s", "chosen", rule, (i % 3) / 2) for i in range(n)]

    assert "between 9 and 12 ratings" in " ".join(
        analyze(ratings_table(rows("a", 9) + rows("b", 12))).notes
    )
    assert "KDE" not in " ".join(analyze(ratings_table(rows("a", 12) + rows("b", 12))).notes)


def test_ratings_that_hardly_repeat_carry_a_note() -> None:
    def notes(num_levels: int) -> str:
        rows = [(f"p{i}", "s", "chosen", "r", (i % num_levels) / 200) for i in range(200)]
        return " ".join(analyze(ratings_table(rows)).notes)

    assert "200 levels for 200 ratings" in notes(200)
    assert "levels for" not in notes(100)


# --- the command ----------------------------------------------------------------------------------


def test_the_tables_show_every_rule_and_policy(tmp_path: Path) -> None:
    add_run(tmp_path)
    result = invoke("analyze", tmp_path, "--by-source")
    assert result.exit_code == 0, result.stderr
    for text in (*RULES, "half", "untied", "strict*", ">=*", "cover", "null band", "hh"):
        assert text in result.stdout
    for text in ("M-M", "top", "±", "biased by ties", "Verdict (discrete entropy)"):
        assert text in result.stdout


def test_the_tables_fit_eighty_columns(tmp_path: Path) -> None:
    long_ids = [f"avoidance-of-toxic-and-harmful-language-{k}" for k in range(10)]
    rng = np.random.default_rng(5)
    rows = [
        (f"p{i}", source, response, rule_id, float(rng.integers(0, 11)) / 10)
        for source in ("hh", "pku")
        for i in range(100)
        for rule_id in long_ids
        for response in ("chosen", "rejected")
    ]
    pq.write_table(ratings_table(rows), tmp_path / "r.parquet")
    result = invoke("analyze", tmp_path, "--by-source")
    assert "The paper's correlations" in result.stdout
    lines = result.stdout.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert sum(line.count("±") == 4 for line in lines) == 3 * len(long_ids)  # a rule on one line


def test_json_holds_the_contract_and_what_stands_beside_it(tmp_path: Path) -> None:
    add_run(tmp_path)
    found = json.loads(invoke("analyze", tmp_path, "--by-source", "--json").stdout)
    assert list(found) == [
        *("rules", "correlation", "intervals", "verdicts", "paper", "notes", "draws")
    ]
    places = [(rule["source"], rule["rule_id"]) for rule in found["rules"]]
    assert [(row["source"], row["rule_id"]) for row in found["intervals"]] == places
    assert {"entropy_miller_madow_nats", "top_level", "top_level_share"} <= set(found["rules"][0])
    assert set(found["verdicts"][0]) == {"source", "entropy", "verdict", "reason"}
    assert {row["our_value"] for row in found["paper"]} == {None}  # three rules are not ten
    assert found["draws"]["bootstrap"] == {"number": 2000, "seed": 0}
    assert any("pairs are few" in note for note in found["notes"])


def test_how_many_ratings_are_enough_comes_on_top(tmp_path: Path) -> None:
    add_run(tmp_path, num_pairs=120)
    plain = json.loads(invoke("analyze", tmp_path, "--json").stdout)
    found = json.loads(invoke("analyze", tmp_path, "--convergence", "--json").stdout)
    assert found.pop("convergence")["points"]
    assert found == plain
    shown = invoke("analyze", tmp_path, "--convergence").stdout
    assert "samples of whole pairs" in shown


def test_a_repeated_rating_comes_on_top(tmp_path: Path) -> None:
    first = add_run(tmp_path / "first", num_pairs=20, seed=0)
    again = add_run(tmp_path / "again", num_pairs=20, seed=1)
    found = json.loads(invoke("analyze", first, "--retest", again, "--json").stdout)
    assert found["retest"]["num_responses"] == 40
    assert "rules" in found
    assert "Two ratings of 40 responses" in invoke("analyze", first, "--retest", again).stdout


def test_the_repeated_rating_may_be_another_run_of_the_study(tmp_path: Path) -> None:
    first = add_run(tmp_path, num_pairs=20, seed=0)
    again = add_run(tmp_path, num_pairs=20, seed=1)
    arguments = ("--run", first.name, "--retest", tmp_path, "--retest-run", again.name, "--json")
    found = json.loads(invoke("analyze", tmp_path, *arguments).stdout)
    assert found["retest"]["num_responses"] == 40
    alone = invoke("analyze", tmp_path, "--run", first.name, "--retest-run", again.name)
    assert alone.exit_code == 2
    assert "--retest PATH" in alone.stderr


def test_bad_input_is_an_error_of_one_line(tmp_path: Path) -> None:
    result = invoke("analyze", tmp_path / "nowhere")
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 1
    assert result.stdout == ""
