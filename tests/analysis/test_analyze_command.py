"""`encore analyze`: studies and runs, its JSON, its tables at 80 columns, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from encore.analysis.analyze import analyze
from encore.errors import InputError
from encore.files import file_sha256
from encore.runs import shard_path
from encore.warehouse import open_ratings
from tests.analysis.rating_runs import RULES, add_run
from tests.golden.command_line import encore
from tests.ratings_files import random_table, ratings_table

# --- runs of a study ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "ratings", "run"])
def test_a_study_gives_the_rules_in_their_set_s_order(tmp_path: Path, place: str) -> None:
    run_dir = add_run(tmp_path)
    rules = encore("analyze", run_dir if place == "run" else tmp_path / place, "--json").json
    assert [rule["rule_id"] for rule in rules["rules"]] == list(RULES)
    assert {rule["num_ratings"] for rule in rules["rules"]} == {20}


def test_what_is_missing_or_damaged_or_no_shard_of_the_plan_is_never_read(tmp_path: Path) -> None:
    run_dir = add_run(tmp_path)
    stray = pq.read_table(shard_path(run_dir, 0)).set_column(3, "rule_id", [["stray"] * 24])
    pq.write_table(stray, run_dir / "shard-00007.parquet")
    content = bytearray(shard_path(run_dir, 1).read_bytes())
    content[len(content) // 2] ^= 1
    shard_path(run_dir, 1).write_bytes(bytes(content))
    finished = encore("analyze", tmp_path, "--json")
    assert finished.code == 3
    # Shards 0 and 2 hold 4 and 2 pairs.
    rules = json.loads(finished.out)["rules"]
    assert [(rule["rule_id"], rule["num_pairs"]) for rule in rules] == [(rule, 6) for rule in RULES]
    assert "1 of 3 shards missing" in finished.err
    for index in range(3):
        shard_path(run_dir, index).unlink()
    with pytest.raises(InputError, match="no finished shard"):
        analyze(tmp_path)
    run_dir.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="run `encore rate"):
        analyze(tmp_path)


@pytest.mark.parametrize("rating", [7.5, float("nan")])
def test_a_shard_with_forged_ratings_and_a_matching_digest_is_refused(
    tmp_path: Path, rating: float
) -> None:
    """W6: a digest that fits says nothing about the values."""
    path = shard_path(add_run(tmp_path), 1)
    table = pq.read_table(path)
    ratings = [rating, *table["rating"].to_pylist()[1:]]
    place = table.schema.get_field_index("rating")
    forged = table.set_column(place, table.schema.field("rating"), [ratings])
    forged = forged.replace_schema_metadata(pq.read_metadata(path).metadata)
    pq.write_table(forged, path, store_schema=False)
    path.rename(path.with_name(f"shard-00001.{file_sha256(path)[:32]}.parquet"))
    finished = encore("analyze", tmp_path)
    assert finished.code == 3
    assert "1 of 3 shards missing" in finished.err


def test_of_several_runs_one_must_be_chosen_and_another_can_be_compared(tmp_path: Path) -> None:
    first = add_run(tmp_path, num_pairs=20, judge="tiny", seed=0)
    second = add_run(tmp_path, num_pairs=20, judge="big", seed=1)
    with pytest.raises(InputError) as caught:
        analyze(tmp_path)
    for part in (first.name, second.name, "tiny", "big", "--run", "--judge"):
        assert part in str(caught.value)
    assert analyze(open_ratings(tmp_path, run=first.name[:5])) == analyze(first)
    assert analyze(open_ratings(tmp_path, judge="big")) == analyze(second)
    with pytest.raises(InputError, match="none of its runs match"):
        open_ratings(tmp_path, run=first.name, judge="big")
    found = [
        encore("analyze", tmp_path, "--run", first.name, "--compare", other, "--json").json
        for other in (second.name[:6], "big", second)
    ]
    assert found[0] == found[1] == found[2]
    comparison = found[0]["comparison"]
    assert comparison["num_pairs"] == 20
    assert [row["rule_id"] for row in comparison["rules"]] == list(RULES)
    shown = encore("analyze", tmp_path, "--run", first.name, "--compare", "big").out
    assert "20 pairs in both" in shown


# --- sources and tables ---------------------------------------------------------------------------


def test_by_source_gives_each_source_and_then_all() -> None:
    table = random_table(np.random.default_rng(1), max_rows=2000)
    found = analyze(table, by_source=True)
    sources = [*sorted(set(table["source"].to_pylist())), "all"]
    assert list(dict.fromkeys(rule.source for rule in found.rules)) == sources
    pooled = analyze(table)
    assert pooled.rules == tuple(rule for rule in found.rules if rule.source == "all")
    assert pooled.correlation == tuple(row for row in found.correlation if row.source == "all")
    ambiguous = ratings_table([("p", "all", "chosen", "r", 0.5)])
    with pytest.raises(InputError, match='source is called "all"'):
        analyze(ambiguous, by_source=True)


def long_names(folder: Path, *, sources: tuple[str, ...]) -> Path:
    rng = np.random.default_rng(5)
    rows = [
        (f"p{i}", source, response, f"avoidance-of-toxic-and-harmful-language-{k}", x / 10)
        for source in sources
        for i in range(100)
        for k in range(10)
        for response, x in zip(("chosen", "rejected"), rng.integers(0, 11, size=2), strict=True)
    ]
    pq.write_table(ratings_table(rows), folder / "r.parquet")
    return folder / "r.parquet"


def test_no_rule_name_is_broken_over_lines_at_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A1: rules are numbered, and a legend has their names."""
    monkeypatch.setattr("encore.terminal.out.width", 80)
    path = long_names(tmp_path, sources=("hh", "pku"))
    for arguments in (("analyze", path, "--by-source"), ("weights", path), ("theory", path)):
        shown = encore(*arguments).out
        for k in range(10):
            assert f"{k + 1:>2} avoidance-of-toxic-and-harmful-language-{k}" in shown


def test_one_source_is_shown_once(tmp_path: Path) -> None:
    """A6: not for it and for all, in tables and in notes."""
    finished = encore("analyze", long_names(tmp_path, sources=("hh",)), "--by-source")
    assert finished.out.count("Entropy of ratings in nats") == 1
    notes = [line for line in finished.err.splitlines() if line.startswith("note:")]
    assert len(notes) == len(set(notes))
    assert not any("source hh:" in note for note in notes)
    assert "How many ratings are enough?" in finished.out
    for text in ("half", "untied", "strict*", ">=*", "cover", "null band", "M-M", "top", "Verdict"):
        assert text in finished.out
