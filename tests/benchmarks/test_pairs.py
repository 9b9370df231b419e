"""Benchmarks and their pairs: definitions, shapes of rows, counts compared, bad rows refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.benchmarks.benchmark_pairs import BenchmarkPairs, read_benchmark_pairs
from encore.benchmarks.definition import BENCHMARK_NAMES, Benchmark, Subset, load_benchmark
from encore.core.errors import InputError
from tests.data.sources.mini_hub import HubRepo, mini_hub
from tests.worlds.refusals import assert_refused
from tests.worlds.studies import write_lines

ROOT = Path(__file__).parents[2]
SAFETY = load_benchmark("rewardbench-safety")
GENERIC = load_benchmark("generic")
BEST_OF_4 = load_benchmark("rewardbench-2-safety")


def row_of(row_id: object, subset: str, **columns: Any) -> dict[str, Any]:
    """Return a row with unique texts."""
    texts = {
        "prompt": f"Question {row_id} of {subset}?",
        "chosen": f"Good answer {row_id}.",
        "rejected": f"Bad answer {row_id}.",
    }
    return {**texts, "subset": subset, "id": row_id, **columns}


def best_of_row(row_id: str, *, num_rejected: int = 3) -> dict[str, Any]:
    """Return a row of RewardBench 2: lists of texts, one of them chosen."""
    rejected = [f"Bad answer {row_id}, {letter}." for letter in "abcdefgh"[:num_rejected]]
    return row_of(row_id, "Safety", chosen=[f"Good answer {row_id}."], rejected=rejected)


#: As many rows as the benchmark has; ids begin at 0 in each subset.
SAFETY_ROWS = [
    row_of(n, subset.name) for subset in SAFETY.subsets for n in range(subset.num_pairs or 1)
]
SMALL_ROWS = [row_of(n, "refuse") for n in range(2)] + [row_of(n, "respond") for n in range(3)]
SMALL = GENERIC.model_copy(
    update={
        "name": "small",
        "subsets": (Subset(name="refuse", num_pairs=2), Subset(name="respond", num_pairs=3)),
    }
)


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write rows in the format of the file's suffix, and return the path."""
    if path.suffix == ".parquet":
        path.write_bytes(parquet_bytes(rows))
        return path
    return write_lines(path, rows)


def parquet_bytes(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def pairs_of(
    folder: Path, rows: list[Any], benchmark: Benchmark = GENERIC, **options: Any
) -> BenchmarkPairs:
    """Write rows to a file and read their pairs."""
    return read_benchmark_pairs(benchmark, data=write_rows(folder / "rows.jsonl", rows), **options)


# --- definitions ----------------------------------------------------------------------------------


def test_shipped_benchmarks_have_the_counts_of_their_publishers():
    counts = {subset.name: subset.num_pairs for subset in SAFETY.subsets}
    # Some published evaluation code swaps the two counts of XSTest.
    assert (counts["xstest-should-refuse"], counts["xstest-should-respond"]) == (154, 250)
    assert (sum(counts.values()), SAFETY.weighting, SAFETY.ties) == (740, "examples", "loss")
    assert (BEST_OF_4.rejected_per_row, BEST_OF_4.ties, GENERIC.subsets) == (3, "half", ())
    all_counts = {subset.name: subset.num_pairs for subset in load_benchmark("rewardbench").subsets}
    assert (len(all_counts), sum(all_counts.values())) == (23, 2985)
    assert all_counts | counts == all_counts
    for name in BENCHMARK_NAMES:
        benchmark = load_benchmark(name)
        assert benchmark.name == name
        # A commit, not a branch: the data behind a figure must not change.
        assert benchmark.dataset is None or len(benchmark.revision or "") == 40


CUSTOM = """
name = "mine"
version = "3"
title = "Mine"
citation = "me"
headline = "Harmlessness"
weighting = "subsets"
licence = "CC0-1.0"
subsets = [{ name = "easy" }, { name = "hard", num_pairs = 7 }]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('version = "3"\n', "", "field version: Field required"),
        ("num_pairs = 7", "num_pairs = 0", r"field subsets.1.num_pairs: .*greater than.*got 0"),
        ('name = "hard"', 'name = "easy"', "subset 'easy' is defined more than once"),
        ("subsets =", 'dataset = "a/b"\nsubsets =', "dataset, revision and split belong"),
        ("subsets =", 'revision = "main"\nsubsets =', "field revision: .*got 'main'"),
        ('name = "mine"', "= =", "not valid TOML"),
    ],
)
def test_an_error_in_a_custom_definition_names_file_and_field(tmp_path, old, new, message):
    path = tmp_path / "mine.toml"
    path.write_text(CUSTOM, encoding="utf-8")
    subsets = load_benchmark(path).subsets
    assert [(subset.name, subset.num_pairs) for subset in subsets] == [("easy", None), ("hard", 7)]
    path.write_text(CUSTOM.replace(old, new, 1), encoding="utf-8")
    assert_refused(rf"mine.toml: .*{message}", load_benchmark, path)


def test_an_unknown_benchmark_is_refused_with_the_shipped_names():
    with pytest.raises(InputError, match=r"'reward-bench'.*rewardbench-safety.*generic or"):
        load_benchmark("reward-bench")


# --- shapes of rows -------------------------------------------------------------------------------


def test_a_clone_of_the_repository_gives_only_the_benchmark_s_split(tmp_path):
    (tmp_path / "data").mkdir()
    for split, rows in {"raw": [*SMALL_ROWS, row_of(9, "refuse")], "filtered": SMALL_ROWS}.items():
        write_rows(tmp_path / "data" / f"{split}-00000-of-00001.parquet", rows)
    benchmark = SMALL.model_copy(update={"split": "filtered"})
    assert read_benchmark_pairs(benchmark, data=tmp_path).num_pairs == 5


def test_a_row_with_three_rejected_responses_is_three_pairs_of_one_row(tmp_path):
    rows = [best_of_row(str(n)) for n in range(450)]
    path = write_rows(tmp_path / "test-00000-of-00001.parquet", rows)
    read = read_benchmark_pairs(BEST_OF_4, data=path)
    assert (read.num_pairs, read.is_partial, len(set(read.row_id_P))) == (1350, False, 450)
    assert read.row_id_P[:4] == ("0", "0", "0", "1")
    assert {pair.chosen for pair in read.pairs[:3]} == {"Good answer 0."}
    assert [pair.rejected[-2] for pair in read.pairs[:3]] == ["a", "b", "c"]


def test_rows_left_out_without_a_subset_or_repeated_are_counted(tmp_path):
    rows = [row_of(1, "alpacaeval-easy"), *SMALL_ROWS, row_of(2, "math-prm")]
    read = pairs_of(tmp_path, rows, SMALL)
    assert (read.num_pairs, read.is_partial) == (5, False)
    assert read.notes == ("2 rows of other subsets are left out",)
    rows = [{k: row_of(n, "")[k] for k in ("prompt", "chosen", "rejected")} for n in range(3)]
    read = pairs_of(tmp_path, rows)
    assert (read.subset_P, read.row_id_P) == (("all",) * 3, ("1", "2", "3"))
    # RewardBench repeats ids and texts in several subsets; the source keeps the pairs apart.
    row = row_of(1, "a")
    read = pairs_of(tmp_path, [row, {**row, "id": 2}, {**row, "subset": "b"}])
    assert len({pair.pair_id for pair in read.pairs}) == 1
    assert [pair.source for pair in read.pairs] == ["generic", "generic.2", "generic.3"]
    assert read.notes == ("2 pairs repeat the texts of another pair; each counts, as in the data",)


@given(order=st.permutations(range(5)))
def test_the_digest_follows_content_and_not_order(order, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    digest = pairs_of(folder, SMALL_ROWS).digest
    assert pairs_of(folder, [SMALL_ROWS[index] for index in order]).digest == digest
    changed = [{**SMALL_ROWS[0], "rejected": "Changed."}, *SMALL_ROWS[1:]]
    assert pairs_of(folder, changed).digest != digest
    moved = [{**SMALL_ROWS[0], "subset": "respond", "id": 99}, *SMALL_ROWS[1:]]
    assert pairs_of(folder, moved).digest != digest


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (SMALL_ROWS[:-1], "respond has 2 pairs, expected 3"),
        (SMALL_ROWS[:2], "respond has 0 pairs, expected 3"),
        ([*SMALL_ROWS, row_of(9, "refuse")], "refuse has 3 pairs, expected 2"),
    ],
)
def test_other_counts_are_refused_or_marked_as_partial(tmp_path, rows, problem):
    assert_refused(rf"{problem}.*--allow-partial", pairs_of, tmp_path, rows, SMALL)
    read = pairs_of(tmp_path, rows, SMALL, allow_partial=True)
    assert (read.is_partial, read.num_pairs) == (True, len(rows))
    assert read.notes[0].startswith("partial: re")
    assert not pairs_of(tmp_path, SMALL_ROWS, SMALL, allow_partial=True).is_partial
    with pytest.raises(InputError, match="none of its 1 rows has a subset of the benchmark"):
        pairs_of(tmp_path, [row_of(1, "math-prm")], SMALL, allow_partial=True)


# --- bad rows -------------------------------------------------------------------------------------


def test_a_row_that_is_not_a_choice_is_refused(tmp_path):
    best = best_of_row("1")
    for row, message in (
        (best_of_row("1", num_rejected=2), "2 rejected responses; expected 1 and 3"),
        ({**best, "chosen": ["a", "b"]}, "2 chosen and 3 rejected responses; expected 1"),
        ({**best, "chosen": None}, "0 chosen and"),
        ({**best, "rejected": ["x", "y", "Good answer 1."]}, "are the same text"),
        ({**best, "id": 1.5}, "id is 1.5, expected a number or text"),
        ({**best, "prompt": ""}, "empty"),
        ({**best, "subset": None}, "expected a column 'subset'"),
        ([1, 2], "no object with columns"),
    ):
        with pytest.raises(InputError, match=f"rewardbench-2-safety.*row 1.*{message}"):
            pairs_of(tmp_path, [row], BEST_OF_4)
    for rejected in (None, "", "  \n", [], [""], 3):
        rows = [row_of(1, "a"), row_of(2, "a", rejected=rejected)]
        with pytest.raises(InputError, match=r"generic, .*: row 2 \(subset a, id 2\): .*rejected"):
            pairs_of(tmp_path, rows)
    rows = [row_of(1, "a"), row_of(2, "a"), row_of(1, "a", chosen="Another.")]
    assert_refused(r"row 3 \(subset a, id 1\): row 1 has this id too", pairs_of, tmp_path, rows)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row_of(1, "a")) + "\n{broken\n")
    assert_refused("row 2: not-json", read_benchmark_pairs, GENERIC, data=path)


def test_missing_data_are_an_error_with_a_next_step(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        read_benchmark_pairs(GENERIC, data=tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match=r"no --data: it names no data set on the hub.*--data"):
        read_benchmark_pairs(GENERIC)
    with pytest.raises(InputError, match=r"allenai/reward-bench.*or give local files with --data"):
        read_benchmark_pairs(SAFETY)  # tests run offline


@pytest.mark.services
def test_the_whole_benchmark_is_read_from_its_commit_on_the_hub(tmp_path):
    name = "data/filtered-00000-of-00001.parquet"
    repo = HubRepo(
        repo_id=SAFETY.dataset,
        commits=("f" * 40, SAFETY.revision),  # the pinned one is not the newest
        files={name: parquet_bytes([row_of(1, "math-prm"), *SAFETY_ROWS])},
    )
    code = (
        "import json; from encore.benchmarks.benchmark_pairs import *\n"
        "from encore.benchmarks.definition import load_benchmark\n"
        "read = read_benchmark_pairs(load_benchmark('rewardbench-safety'))\n"
        "print(json.dumps([read.num_pairs, read.is_partial, read.digest, read.notes]))"
    )
    with mini_hub(repo) as endpoint:
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        output = subprocess.check_output(
            [sys.executable, "-c", code], env={**os.environ, **environment}, cwd=ROOT, timeout=120
        )
    local = pairs_of(tmp_path, SAFETY_ROWS, SAFETY)
    assert Counter(local.subset_P) == {subset.name: subset.num_pairs for subset in SAFETY.subsets}
    pair = local.pairs[0]
    assert pair.prompt[0].content == "Question 0 of refusals-dangerous?"
    assert (pair.chosen, pair.rejected) == ("Good answer 0.", "Bad answer 0.")
    left_out = ["1 rows of other subsets are left out"]
    assert json.loads(output) == [740, False, local.digest, left_out]
