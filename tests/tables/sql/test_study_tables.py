"""The tables of a study have all valid data of its files, and no invalid data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from encore.benchmarks.benchmark_table import read_table, table_folders
from encore.core.errors import EncoreError
from encore.data.rating_runs import list_runs
from encore.data.study import open_study
from encore.model.open_model import open_reward_model
from encore.scoring.head_scores import read_head_scores
from encore.tables.study_tables import study_tables, table_docs
from tests.tables.sql.studies import NUM_PAIRS, NUM_RULES, SHARD_SIZE, ask, ask_records
from tests.worlds.refusals import assert_refused
from tests.worlds.scorings import make_model, score
from tests.worlds.studies import create_study, flip_bit, shard_path
from tests.worlds.tables import benchmark_pairs, every_row, write_run

ALL_PAIRS = sum(NUM_PAIRS.values())
NUM_RATINGS = ALL_PAIRS * 2 * NUM_RULES
#: Heads whose names would be trouble in SQL.
HEADS = ("it's kind {}", 'a "quoted" head')
TABLE_KEYS = ("a" * 16, "b" * 16)


@pytest.fixture(scope="module")
def full(one_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a rated study with scores of a synthetic model of two heads and two benchmark tables."""
    folder = tmp_path_factory.mktemp("full")
    study = Path(shutil.copytree(one_run, folder / "study"))
    model = make_model(folder / "model", head_ids=HEADS, synthetic=["judge of run 12"])
    score(study, open_reward_model(model), shard_size=SHARD_SIZE)
    pairs = benchmark_pairs()
    write_run(study, every_row(pairs), pairs=pairs, key=TABLE_KEYS[0])
    rows = every_row(pairs, seed=1)
    write_run(study, rows, pairs=pairs, key=TABLE_KEYS[1], synthetic=["all of it"])
    return study


@pytest.fixture
def copied(full: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(full, tmp_path / "copied"))


def test_tables_have_the_content_of_the_files(full):
    counts = "select (select count(*) from pairs), (select count(*) from ratings)"
    assert ask(full, counts) == [(ALL_PAIRS, NUM_RATINGS)]
    shards = ask_records(full, "from shards order by shard")
    assert [row["num_pairs"] for row in shards] == [SHARD_SIZE, SHARD_SIZE, ALL_PAIRS % SHARD_SIZE]
    assert sum(row["num_ratings"] + row["num_nulls"] for row in shards) == NUM_RATINGS
    assert all(len(row["sha256"]) == 64 for row in shards)
    assert ask(full, "select place from rules order by place") == [(n,) for n in range(NUM_RULES)]
    [record] = ask_records(full, "from set_aside")
    assert (record["source"], record["record"], bool(record["reason"])) == ("pku", 3, True)
    sources = {row["source"]: row for row in ask_records(full, "from sources")}
    assert {name: row["num_kept"] for name, row in sources.items()} == NUM_PAIRS
    assert sources["pku"]["num_set_aside"] == 1
    assert json.loads(sources["hh"]["origins"])[0]["name"] == "study-hh.jsonl"
    [run] = ask_records(full, "from runs")
    identity = json.loads(run["identity"])
    assert (run["judge"], run["judge_backend"]) == ("one", "scripted")
    assert run["rules_sha256"] == identity["rules_sha256"]
    assert (run["num_shards"], run["num_done"], run["is_complete"]) == (3, 3, True)


# --- invalid files --------------------------------------------------------------------------------


def test_a_damaged_shard_is_listed_and_not_read(copied):
    [run_dir] = list_runs(copied / "ratings")
    flip_bit(shard_path(run_dir, 1))
    # Files that only look like shards are not read either.
    shutil.copy(shard_path(run_dir, 0), run_dir / "shard-00099.parquet")
    [scores] = (copied / "scores").iterdir()
    shard_path(scores, 0).write_bytes(b"damaged")
    states = ask(copied, "select state, num_ratings, sha256 from shards order by shard")
    assert [state for state, *_ in states] == ["done", "damaged", "done"]
    assert states[1][1:] == (None, None)
    num_rows = 2 * (ALL_PAIRS - SHARD_SIZE)
    assert ask(copied, "select count(*) from ratings") == [(num_rows * NUM_RULES,)]
    assert ask(copied, "select count(*) from head_scores") == [(num_rows * len(HEADS),)]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("pairs/hh.parquet", "changed", "changed since it was ingested"),
        ("pairs/pku.set-aside.jsonl", '{"source": "pku"}\n', "line 1 is not a record"),
        ("ratings/*/run.json", "{}", r"run\.json is damaged"),
        ("scores/*/score.json", "{}", r"score\.json is damaged"),
        (f"benchmarks/{TABLE_KEYS[0]}/table.json", "{}", r"table\.json: no table of a benchmark"),
    ],
)
def test_a_damaged_file_is_named(copied, file, content, message):
    [path] = copied.glob(file)
    path.write_text(content)
    with pytest.raises(EncoreError, match=message):
        study_tables(open_study(copied))


def test_half_a_surrogate_pair_in_an_excerpt_becomes_an_escape(copied):
    path = copied / "pairs" / "pku.set-aside.jsonl"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"excerpt": "\ud83d"}) + "\n")
    assert ask(copied, "select excerpt from set_aside") == [("\\ud83d",)]


# --- which run ------------------------------------------------------------------------------------


def test_ratings_are_those_of_the_chosen_run(two_runs):
    study = open_study(two_runs)
    undecided = study_tables(study)
    assert "ratings" not in undecided.by_name
    assert ask(two_runs, "select count(*) from all_ratings") == [(2 * NUM_RATINGS,)]
    assert_refused(r"2 of its runs match; choose .*judge one.*judge two", undecided.require_run)
    for choice in ({"run": "zzz"}, {"judge": "three"}, {"run": ""}):
        assert_refused(r"(none|2) of its runs match.*judge one", study_tables, study, **choice)
    assert ask(two_runs, "select distinct judge from ratings", judge="two") == [("two",)]
    key = study_tables(study, judge="two").require_run().manifest.run_key
    assert study_tables(study, run=key[:10]).require_run().manifest.run_key == key


@pytest.mark.services
def test_an_empty_study_has_empty_tables(tmp_path):
    empty = create_study(tmp_path / "empty").path
    for name in table_docs():
        assert ask(empty, f"from {name}") == []
    assert_refused("no ratings yet; run `encore rate", study_tables(open_study(empty)).require_run)


# --- head scores ----------------------------------------------------------------------------------


def test_every_score_is_a_row(full):
    scores = read_head_scores(full)
    keys = list(zip(scores.source_P, scores.pair_id_P, strict=True))
    expected = {
        (*key, response, head_id): scores.score_P2R[row, side, head]
        for row, key in enumerate(keys)
        for side, response in enumerate(("chosen", "rejected"))
        for head, head_id in enumerate(HEADS)
    }
    rows = ask(full, "select source, pair_id, response, head_id, score from head_scores")
    assert {tuple(key): value for *key, value in rows} == expected
    assert len(rows) == len(expected)
    assert ask(full, "select distinct model, subset from head_scores") == [("model", None)]


# --- benchmark tables -----------------------------------------------------------------------------


def test_benchmark_rows_have_the_figures_of_the_tables(full):
    sql = """
        select table_key, row, kind, tau, score, ci_low, ci_high, difference, mcnemar_p,
            is_synthetic
        from benchmark_rows
        order by table_key, place
    """
    expected: list[tuple[Any, ...]] = []
    for folder in table_folders(full):
        for row in read_table(folder).rows_with_figures:
            figures, headline = row.our_figures, row.our_figures.headline
            comparison = figures.comparison  # None for the reference
            expected.append(
                (
                    *(folder.name, row.name, row.kind, figures.params.get("tau")),
                    *(headline.score, headline.ci_low, headline.ci_high),
                    *(comparison and comparison.difference, comparison and comparison.mcnemar_p),
                    folder.name == TABLE_KEYS[1],
                )
            )
    assert ask(full, sql) == expected
    reference = "select distinct row, reference from benchmark_rows where difference is null"
    assert ask(full, reference) == [("uniform", "uniform")]


def test_scores_of_rows_are_the_means_of_their_own_pairs(full):
    sql = """
        select count(*), max(abs(score - mean_credit)) < 1e-9
        from benchmark_rows
        join (
            select table_key, row, avg(credit) as mean_credit, count(*) as num_pairs
            from benchmark_pairs
            group by all
        ) using (table_key, row)
        where num_pairs = num_units
    """
    # No row lacks its pairs, and none has the pairs of both tables: their numbers are equal.
    [(num_rows, is_equal)] = ask(full, sql)
    assert (num_rows,) == ask(full, "select count(*) from benchmark_rows")[0]
    assert is_equal
