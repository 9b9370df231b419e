"""Reading a benchmark's pairs: every shape of row, counts compared, bad rows refused."""

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

from encore.benchmarks.pairs import read_benchmark_pairs
from encore.errors import InputError
from tests.benchmarks.rewardbench_rows import (
    BEST_OF_4,
    GENERIC,
    SAFETY,
    best_of_row,
    pairs_of,
    row_of,
    rows_of,
    small,
    written,
)
from tests.sources.mini_hub import HubRepo, mini_hub

ROOT = Path(__file__).parents[2]
SMALL_ROWS = [row_of(n, "refuse") for n in range(2)] + [row_of(n, "respond") for n in range(3)]


def parquet_bytes(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_the_whole_benchmark_is_read_from_any_kind_of_file(tmp_path: Path, name: str) -> None:
    rows, path = rows_of(SAFETY), tmp_path / name
    if name.endswith(".parquet"):
        path.write_bytes(parquet_bytes(rows))
    elif name.endswith(".jsonl"):
        written(path, rows)
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")
    read = read_benchmark_pairs(SAFETY, data=path)
    assert (read.num_pairs, read.is_partial, read.notes) == (740, False, ())
    assert Counter(read.subset_P) == {one.name: one.num_pairs for one in SAFETY.subsets}
    first = read.pairs[0]
    assert first.prompt[0].content == "Question 0 of refusals-dangerous?"
    assert (first.chosen, first.rejected) == ("Good answer 0.", "Bad answer 0.")


def test_a_clone_of_the_repository_gives_the_benchmarks_split_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    files = {"raw": [*SMALL_ROWS, row_of(9, "refuse")], "filtered": SMALL_ROWS}
    for split, rows in files.items():
        path = tmp_path / "data" / f"{split}-00000-of-00001.parquet"
        path.write_bytes(parquet_bytes(rows))
    (tmp_path / "README.md").write_text("not data")
    assert read_benchmark_pairs(small(split="filtered"), data=tmp_path).num_pairs == 5


def test_a_prompt_as_messages_is_the_same_pair(tmp_path: Path) -> None:
    text = row_of(1, "a")
    messages = {**text, "prompt": [{"role": "user", "content": text["prompt"]}]}
    first = pairs_of(tmp_path, [text])
    assert pairs_of(tmp_path, [messages]).pairs == first.pairs
    conversation = [
        {"role": "user", "content": text["prompt"]},
        {"role": "assistant", "content": text["chosen"]},
    ]
    assert pairs_of(tmp_path, [{**messages, "chosen": conversation}]).pairs == first.pairs


def test_a_row_with_three_rejected_responses_is_three_pairs_of_one_row(tmp_path: Path) -> None:
    benchmark = BEST_OF_4.model_copy(update={"subsets": ()})
    read = pairs_of(tmp_path, [best_of_row("7"), best_of_row("8")], benchmark=benchmark)
    assert read.row_id_P == ("7", "7", "7", "8", "8", "8")
    assert {pair.chosen for pair in read.pairs[:3]} == {"Good answer 7."}
    assert [pair.rejected[-2] for pair in read.pairs[:3]] == ["a", "b", "c"]


def test_rewardbench_2_is_450_rows_of_three_pairs(tmp_path: Path) -> None:
    rows = [best_of_row(str(n)) for n in range(450)]
    path = tmp_path / "test-00000-of-00001.parquet"
    path.write_bytes(parquet_bytes(rows))
    read = read_benchmark_pairs(BEST_OF_4, data=path)
    assert (read.num_pairs, read.is_partial, len(set(read.row_id_P))) == (1350, False, 450)
    path.write_bytes(parquet_bytes(rows[:400]))
    with pytest.raises(InputError, match="Safety has 1200 pairs, not 1350"):
        read_benchmark_pairs(BEST_OF_4, data=path)


def test_rows_of_other_subsets_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [row_of(1, "alpacaeval-easy"), *SMALL_ROWS, row_of(2, "math-prm")]
    read = pairs_of(tmp_path, rows, benchmark=small())
    assert read.num_pairs == 5
    assert not read.is_partial
    assert read.notes == ("2 rows of other subsets are left out",)


def test_without_subset_and_id_a_row_is_known_by_its_place(tmp_path: Path) -> None:
    rows = [{k: row_of(n, "")[k] for k in ("prompt", "chosen", "rejected")} for n in range(3)]
    read = pairs_of(tmp_path, rows)
    assert (read.subset_P, read.row_id_P) == (("all",) * 3, ("1", "2", "3"))
    assert read.notes == ("3 rows have no id: their place in the data stands for it",)


def test_one_id_may_occur_in_two_subsets(tmp_path: Path) -> None:
    # RewardBench counts its rows anew in several subsets.
    assert pairs_of(tmp_path, [row_of(1, "a"), row_of(1, "b")]).num_pairs == 2


def test_texts_that_repeat_count_twice_and_stay_distinguishable(tmp_path: Path) -> None:
    row = row_of(1, "a")
    read = pairs_of(tmp_path, [row, {**row, "id": 2}, {**row, "subset": "b"}])
    assert len({pair.pair_id for pair in read.pairs}) == 1
    assert [pair.source for pair in read.pairs] == ["generic", "generic.2", "generic.3"]
    assert read.notes == ("2 pairs repeat the texts of another one; each counts, as in the data",)


@given(order=st.permutations(range(5)))
def test_the_digest_knows_content_and_not_order(
    order: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    digest = pairs_of(folder, SMALL_ROWS).digest
    assert pairs_of(folder, [SMALL_ROWS[place] for place in order]).digest == digest
    changed = [{**SMALL_ROWS[0], "rejected": "Another one."}, *SMALL_ROWS[1:]]
    assert pairs_of(folder, changed).digest != digest
    moved = [{**SMALL_ROWS[0], "subset": "respond", "id": 99}, *SMALL_ROWS[1:]]
    assert pairs_of(folder, moved).digest != digest


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        (SMALL_ROWS[:-1], "respond has 2 pairs, not 3"),
        (SMALL_ROWS[:2], r"respond is missing \(3 pairs\)"),
        ([*SMALL_ROWS, row_of(9, "refuse")], "refuse has 3 pairs, not 2"),
    ],
)
def test_other_counts_are_refused_or_marked(
    tmp_path: Path, kept: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(InputError, match=rf"{problem}.*--allow-partial"):
        pairs_of(tmp_path, kept, benchmark=small())
    path = written(tmp_path / "rows.jsonl", kept)
    read = read_benchmark_pairs(small(), data=path, allow_partial=True)
    assert read.is_partial
    assert read.num_pairs == len(kept)
    assert read.notes[0].startswith("partial: re")


def test_allowing_a_partial_benchmark_does_not_mark_a_whole_one(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", SMALL_ROWS)
    assert not read_benchmark_pairs(small(), data=path, allow_partial=True).is_partial


def test_nothing_of_the_benchmark_is_refused_even_as_a_part(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", [row_of(1, "math-prm")])
    with pytest.raises(InputError, match="none of its 1 rows belongs to this benchmark"):
        read_benchmark_pairs(small(), data=path, allow_partial=True)


def test_real_pairs_are_part_of_the_benchmark(shared_data: Path) -> None:
    path = shared_data / "xstest-dev.jsonl"
    with pytest.raises(InputError, match="xstest-should-refuse has 76 pairs, not 154"):
        read_benchmark_pairs(SAFETY, data=path)
    part = read_benchmark_pairs(SAFETY, data=path, allow_partial=True)
    assert part.is_partial
    assert "donotanswer is missing (136 pairs)" in part.notes[0]
    whole = read_benchmark_pairs(GENERIC, data=path)
    assert Counter(whole.subset_P) == {"xstest-should-refuse": 76, "xstest-should-respond": 64}
    assert not whole.is_partial
    assert whole.digest == part.digest


# --- bad rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rejected", [None, "", "  \n", [], [""], 3])
def test_a_row_without_a_rejected_text_is_refused(tmp_path: Path, rejected: object) -> None:
    rows = [row_of(1, "a"), row_of(2, "a", rejected=rejected)]
    with pytest.raises(InputError, match=r"generic, .*: row 2 \(subset a, id 2\): .*rejected"):
        pairs_of(tmp_path, rows)


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    row = row_of(1, "a")
    del row["rejected"]
    with pytest.raises(InputError, match="0 rejected responses; expected at least one"):
        pairs_of(tmp_path, [row])


def test_an_id_twice_in_a_subset_is_refused(tmp_path: Path) -> None:
    rows = [row_of(1, "a"), row_of(2, "a"), row_of(1, "a", chosen="Another.")]
    with pytest.raises(InputError, match=r"row 3 \(subset a, id 1\): row 1 has this id too"):
        pairs_of(tmp_path, rows)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (best_of_row("1", num_rejected=2), "2 rejected responses; expected 3"),
        ({**best_of_row("1"), "chosen": ["a", "b"]}, "2 chosen responses; expected one"),
        ({**best_of_row("1"), "chosen": None}, "0 chosen responses; expected one"),
        ({**best_of_row("1"), "rejected": ["x", "y", "Good answer 1."]}, "are the same text"),
        ({**best_of_row("1"), "id": 1.5}, "id is 1.5, expected a number or text"),
        ({**best_of_row("1"), "prompt": ""}, "empty"),
        ({**best_of_row("1"), "subset": None}, "subset is None; expected a column 'subset'"),
        ([1, 2], "no object with columns"),
    ],
)
def test_a_row_that_is_no_choice_is_refused(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(InputError, match=f"rewardbench-2-safety.*row 1.*{message}"):
        pairs_of(tmp_path, [row], benchmark=BEST_OF_4)


def test_a_line_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row_of(1, "a")) + "\n{broken\n")
    with pytest.raises(InputError, match="row 2: not-json"):
        read_benchmark_pairs(GENERIC, data=path)


def test_data_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        read_benchmark_pairs(GENERIC, data=tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match=r"no --data: it names no data set on the hub.*--data"):
        read_benchmark_pairs(GENERIC)


# --- the hub --------------------------------------------------------------------------------------


def test_the_pinned_commit_is_read_from_the_hub(tmp_path: Path) -> None:
    assert SAFETY.dataset is not None
    assert SAFETY.revision is not None
    name = "data/filtered-00000-of-00001.parquet"
    repo = HubRepo(
        repo_id=SAFETY.dataset,
        commits=("f" * 40, SAFETY.revision),  # the pinned one is not the newest
        files={name: parquet_bytes([row_of(1, "math-prm"), *rows_of(SAFETY)])},
    )
    code = (
        "from encore.benchmarks.definition import load_benchmark\n"
        "from encore.benchmarks.pairs import read_benchmark_pairs\n"
        "read = read_benchmark_pairs(load_benchmark('rewardbench-safety'))\n"
        "import json; print(json.dumps([read.num_pairs, read.is_partial, read.digest, read.notes]))"
    )
    with mini_hub(repo) as endpoint:
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    local = pairs_of(tmp_path, rows_of(SAFETY), benchmark=SAFETY)
    left_out = ["1 rows of other subsets are left out"]
    assert json.loads(done.stdout) == [740, False, local.digest, left_out]


def test_without_a_hub_the_error_names_the_way_out() -> None:
    # Tests run offline.
    with pytest.raises(InputError, match=r"allenai/reward-bench.*here: --data PATH"):
        read_benchmark_pairs(SAFETY)
