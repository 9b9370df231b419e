"""`encore analyze`: runs of a study, JSON, tables at 80 columns, exit codes."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.analysis.analyze import analyze
from encore.core.errors import InputError
from encore.core.files import file_sha256
from encore.data.rating_runs import list_runs, read_run
from encore.data.study import open_study
from encore.warehouse import open_ratings
from tests.golden.command_line import encore
from tests.tables.sql.studies import make_pairs, rate_study
from tests.worlds.ratings import ratings_table, table_of
from tests.worlds.refusals import assert_refused
from tests.worlds.studies import flip_bit

pytestmark = pytest.mark.services

Change = Callable[[pa.Table], pa.Table]

# --- runs of a study ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study of 12 pairs in three shards, rated by judges "one" and "two"."""
    study = make_pairs(tmp_path_factory.mktemp("rated"))
    for judge in ("one", "two"):
        rate_study(study, judge=judge)
    return study


@pytest.fixture
def study(rated: Path, tmp_path: Path) -> Path:
    """Return a copy of `rated` with only the run of judge "one"."""
    shutil.copytree(rated, tmp_path / "study")
    shutil.rmtree(open_ratings(tmp_path / "study", judge="two").run_dir)
    return tmp_path / "study"


@pytest.mark.parametrize("subfolder", ["", "ratings", "run"])
def test_rules_of_a_study_are_in_the_order_of_the_rule_set(study, subfolder):
    (run_dir,) = list_runs(study / "ratings")
    folder = run_dir if subfolder == "run" else study / subfolder
    rules = encore("analyze", folder, "--json").json["rules"]
    assert [rule["rule_id"] for rule in rules] == list(read_run(run_dir).rule_ids)
    assert {rule["num_ratings"] + rule["num_unparsed"] for rule in rules} == {24}


def test_shards_missing_damaged_or_beyond_the_plan_are_never_read(study):
    (run_dir,) = list_runs(study / "ratings")
    shards = sorted(run_dir.glob("shard-*.parquet"))
    table = pq.read_table(shards[0])
    unplanned = table.set_column(3, "rule_id", [["unplanned"] * table.num_rows])
    pq.write_table(unplanned, run_dir / "shard-00007.parquet")
    flip_bit(shards[1])
    finished = encore("analyze", study, "--json")
    assert finished.code == 3
    # Shards 0 and 2 hold 5 and 2 pairs.
    rules = json.loads(finished.out)["rules"]
    assert {rule["num_ratings"] + rule["num_unparsed"] for rule in rules} == {14}
    assert "1 of 3 shards missing" in finished.err
    for shard in shards:
        shard.unlink()
    assert_refused("no finished shard", analyze, study)
    run_dir.rename(study / "elsewhere")
    assert_refused("run `encore rate", analyze, study)


def with_first(column: str, value: object) -> Change:
    """Return a change that puts a value into the first row of a column."""

    def change(table: pa.Table) -> pa.Table:
        values = pa.array([value, *table[column].to_pylist()[1:]], table[column].type)
        return table.set_column(table.column_names.index(column), column, values)

    return change


def rule_by_rule(table: pa.Table) -> pa.Table:
    return table.sort_by("rule_id")


def with_float32_ratings(table: pa.Table) -> pa.Table:
    ratings = table["rating"].cast(pa.float32())
    return table.set_column(table.column_names.index("rating"), "rating", ratings)


#: Changes of the second of three shards, and how many ratings of each of ten rules remain.
#: Twelve pairs have 24; without the shard of 5 pairs 14.
FORGERIES: dict[str, tuple[tuple[Change, ...], list[int]]] = {
    "rating above 1": ((with_first("rating", 7.5),), [14] * 10),
    "NaN": ((with_first("rating", float("nan")),), [14] * 10),
    "unknown response": ((with_first("response", "both"),), [14] * 10),
    "columns may have nulls": ((), [14] * 10),
    "null id": ((with_first("pair_id", None),), [14] * 10),
    "other order": ((rule_by_rule,), [24] * 10),
    "other order, rating above 1": ((with_first("rating", 7.5), rule_by_rule), [14] * 10),
    "other type": ((with_float32_ratings,), [24] * 10),
    "unknown rule": ((with_first("rule_id", "unplanned"),), [23, *[24] * 9, 1]),
}


def forge(path: Path, *changes: Change, may_have_nulls: bool = False) -> None:
    """Change the rows of a shard, and give it the digest of its new bytes.

    Args:
        path: File of the shard.
        changes: Changes of its rows.
        may_have_nulls: True declares that each column may have nulls, as no shard does.
    """
    schema = pq.ParquetFile(path).schema_arrow
    table = functools.reduce(lambda table, change: change(table), changes, pq.read_table(path))
    fields = [
        pa.field(name, column.type, nullable=may_have_nulls or is_nullable or column.null_count > 0)
        for name, is_nullable, column in zip(
            schema.names, [field.nullable for field in schema], table.columns, strict=True
        )
    ]
    forged = table.cast(pa.schema(fields, metadata=pq.read_metadata(path).metadata))
    pq.write_table(forged, path)
    path.rename(path.with_name(f"{path.name[:11]}.{file_sha256(path)[:32]}.parquet"))


def assert_read_as_if_checked_first(study: Path, nums_left: list[int]) -> None:
    analysis = analyze(study)
    assert analysis == analyze(open_ratings(study))
    assert [rule.num_ratings + rule.num_unparsed for rule in analysis.rules] == nums_left


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_shard_with_a_matching_digest_is_read_as_if_values_were_checked_first(study, name):
    """A digest that matches says nothing about the values."""
    changes, nums_left = FORGERIES[name]
    path = sorted(study.glob("ratings/*/shard-00001.*parquet"))[0]
    forge(path, *changes, may_have_nulls=name == "columns may have nulls")
    assert_read_as_if_checked_first(study, nums_left)
    finished = encore("analyze", study)
    assert finished.code == (3 if nums_left == [14] * 10 else 0)
    assert ("1 of 3 shards missing" in finished.err) == (finished.code == 3)


def test_a_forged_shard_behind_rows_in_another_order_is_left_out(study):
    """The third shard has 2 pairs."""
    _, second, third = sorted(study.glob("ratings/*/shard-*.parquet"))
    forge(second, rule_by_rule)
    forge(third, with_first("rating", 7.5))
    assert_read_as_if_checked_first(study, [20] * 10)


def test_one_of_several_runs_must_be_chosen_and_a_second_can_be_compared(rated):
    first, second = (open_ratings(rated, judge=judge).run_dir for judge in ("one", "two"))
    with pytest.raises(InputError) as caught:
        analyze(rated)
    for part in (first.name, second.name, "one", "two", "--run", "--judge-name"):
        assert part in str(caught.value)
    study = open_study(rated)
    chosen = open_ratings(study, run=first.name[:8])
    assert chosen.study is study  # not opened again
    assert open_ratings(first).study == study
    assert analyze(chosen) == analyze(first)
    assert_refused("none of its runs match", open_ratings, rated, run=first.name, judge="two")
    results = [
        encore("analyze", rated, "--run", first.name, "--compare", second_run, "--json").json
        for second_run in (second.name[:8], "two", second)
    ]
    assert results[0] == results[1] == results[2]
    comparison = results[0]["comparison"]
    assert comparison["num_pairs"] == 12
    assert [row["rule_id"] for row in comparison["rules"]] == list(read_run(first).rule_ids)
    table = encore("analyze", rated, "--run", first.name, "--compare", "two").out
    assert "12 pairs in both" in table


def test_a_pilot_beside_a_larger_run_is_left_out_and_named(rated, tmp_path, caplog):
    """Of 12 and 4 pairs the 12 are read, although the run of 4 is the later one."""
    shutil.copytree(rated, tmp_path / "study")
    small, large = (
        open_ratings(tmp_path / "study", judge=judge).run_dir for judge in ("one", "two")
    )
    for path in sorted(small.glob("shard-*"))[1:]:
        path.unlink()
    finished = encore("analyze", tmp_path / "study", "--json")
    assert finished.json == encore("analyze", large, "--json").json
    [line] = caplog.messages
    assert f"of 2 runs, {large.name} (judge two, 12 of 12 pairs, 20" in line
    assert "--run KEY" in line
    statement = ("sql", tmp_path / "study", "select distinct judge from ratings")
    assert encore(*statement, "--json").json == [{"judge": "two"}]
    for key in ("", small.name):
        assert open_ratings(tmp_path / "study", run=key or None).run_dir == (
            small if key else large
        )


# --- sources and tables ---------------------------------------------------------------------------


def test_a_source_named_all_is_refused_by_source():
    ambiguous = ratings_table([("p", "all", "chosen", "r", 0.5)])
    assert_refused('source is called "all"', analyze, ambiguous, by_source=True)


def ratings_with_long_names(folder: Path, *, sources: tuple[str, ...]) -> Path:
    """Write ratings of 100 pairs of each source under ten rules."""
    rating_2PR = np.random.default_rng(5).integers(0, 11, size=(2, 100 * len(sources), 10)) / 10
    rule_ids = [f"avoidance-of-toxic-and-harmful-language-{k}" for k in range(10)]
    pq.write_table(
        table_of(*rating_2PR, rule_ids=rule_ids, source=sources * 100), folder / "r.parquet"
    )
    return folder / "r.parquet"


def test_no_rule_name_is_broken_over_lines_at_80_columns(tmp_path, monkeypatch):
    """Tables number the rules, and a legend gives their names.

    Only the verdicts of `encore analyze` have the names themselves, broken at hyphens.
    """
    monkeypatch.setattr("encore.core.terminal.out._width", 80)
    path = ratings_with_long_names(tmp_path, sources=("hh", "pku"))
    for arguments in (
        ("analyze", path, "--by-source", "--details"),
        ("weights", path),
        ("paper", path),
    ):
        output = encore(*arguments).out
        output = output[output.find("Entropy of ratings") :] if "analyze" in arguments else output
        # One minus sign, the same in tables and in sentences.
        assert not re.search(r"(?<![\w.)-])-\d", output)
        for k in range(10):
            assert f"{k + 1:>2} avoidance-of-toxic-and-harmful-language-{k}" in output
        num_whole_names = output.count("avoidance-of-toxic-and-harmful-language-")
        assert output.count("avoidance-") == output.count("harmful-") == num_whole_names


def test_the_answer_alone_is_shown_unless_details_are_asked_for(tmp_path):
    finished = encore("analyze", ratings_with_long_names(tmp_path, sources=("hh", "pku")))
    assert "\nAll sources: 200 pairs" in finished.out
    assert "--details" in finished.out
    for text in ("Entropy of ratings", "Accuracy in %", "null band  ", "Shares of the ratings"):
        assert text not in finished.out
    assert finished.out.count("The paper's claim") == 1
    assert "How many ratings" not in finished.out


def test_one_source_is_shown_once(tmp_path):
    """With one source, the figures of all sources would repeat it, in tables and in notes."""
    ratings = ratings_with_long_names(tmp_path, sources=("hh",))
    finished = encore("analyze", ratings, "--by-source", "--details")
    assert finished.out.count("Entropy of ratings in nats") == 1
    notes = [line for line in finished.err.splitlines() if line.startswith("note:")]
    assert len(notes) == len(set(notes))
    assert not any("source hh:" in note for note in notes)
    assert "How many ratings are enough?" in finished.out
    labels = ("half", "untied", "strict*", ">=*", "cover", "null band", "M-M", "The paper's claim")
    assert [label for label in labels if label not in finished.out] == []
