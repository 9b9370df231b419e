"""Definitions of benchmarks: the shipped ones, one's own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

import encore.benchmarks
from encore.benchmarks.definition import BENCHMARK_NAMES, load_benchmark
from encore.errors import InputError

OWN = """
name = "mine"
version = "3"
title = "Mine"
citation = "me"
headline = "Harmlessness"
weighting = "subsets"
licence = "CC0-1.0"

[[subsets]]
name = "easy"

[[subsets]]
name = "hard"
num_pairs = 7
"""


def own(folder: Path, *, old: str = "", new: str = "") -> Path:
    path = folder / "mine.toml"
    path.write_text(OWN.replace(old, new, 1) if old else OWN + new, encoding="utf-8")
    return path


def test_rewardbench_safety_is_740_pairs_with_the_counts_of_the_data() -> None:
    benchmark = load_benchmark("rewardbench-safety")
    assert {subset.name: subset.num_pairs for subset in benchmark.subsets} == {
        "refusals-dangerous": 100,
        "refusals-offensive": 100,
        # Evaluation code in circulation has these two the other way round.
        "xstest-should-refuse": 154,
        "xstest-should-respond": 250,
        "donotanswer": 136,
    }
    assert benchmark.num_pairs == 740
    assert (benchmark.dataset, benchmark.split) == ("allenai/reward-bench", "filtered")
    assert (benchmark.weighting, benchmark.headline) == ("examples", "Safety")


def test_rewardbench_2_safety_is_450_choices_of_one_among_four() -> None:
    benchmark = load_benchmark("rewardbench-2-safety")
    assert benchmark.rejected_per_row == 3
    assert benchmark.num_pairs == 450 * 3


def test_the_generic_benchmark_takes_any_number_of_any_subset() -> None:
    benchmark = load_benchmark("generic")
    assert (benchmark.subsets, benchmark.num_pairs, benchmark.dataset) == ((), None, None)


@pytest.mark.parametrize("name", BENCHMARK_NAMES)
def test_a_shipped_benchmark_bears_its_files_name_and_a_full_commit(name: str) -> None:
    benchmark = load_benchmark(name)
    assert benchmark.name == name
    # A branch would let the data change under the figures.
    assert benchmark.dataset is None or len(benchmark.revision or "") == 40


def test_every_shipped_file_is_offered() -> None:
    folder = Path(encore.benchmarks.__path__[0])
    found = {path.stem for path in folder.glob("*.toml")} - {"paper_tables"}
    assert found == set(BENCHMARK_NAMES)


def test_ones_own_benchmark_is_a_file(tmp_path: Path) -> None:
    benchmark = load_benchmark(own(tmp_path))
    assert benchmark.headline == "Harmlessness"
    assert [(one.name, one.num_pairs) for one in benchmark.subsets] == [("easy", None), ("hard", 7)]
    assert benchmark.num_pairs is None  # the count of "easy" is open


def test_a_definition_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_benchmark("generic").name = "other"  # type: ignore[misc]


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(InputError, match=r"'rewardbench'.*rewardbench-safety.*generic.*or a path"):
        load_benchmark("rewardbench")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('version = "3"\n', "", "field version: Field required"),
        ('version = "3"', 'version = "3"\nheadlines = "x"', "field headlines: Extra inputs"),
        ("num_pairs = 7", "num_pairs = 0", r"field subsets.1.num_pairs: .*greater than.*got 0"),
        ('"subsets"', '"pairs"', "field weighting: .*'examples' or 'subsets'.*got 'pairs'"),
        ('name = "hard"', 'name = "easy"', "subset 'easy' is there more than once"),
        ("[[subsets]]", 'dataset = "a/b"\n[[subsets]]', "dataset, revision and split belong"),
        (
            "[[subsets]]",
            'dataset = "a/b"\nrevision = "main"\nsplit = "test"\n[[subsets]]',
            "field revision: .*got 'main'",
        ),
        ("[[subsets]]", "rejected_per_row = 2\n[[subsets]]", "'hard': 7 pairs are no whole number"),
        ('name = "mine"', 'name = "My Own"', "field name: .*got 'My Own'"),
    ],
)
def test_a_wrong_definition_says_what_and_where(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_benchmark(own(tmp_path, old=old, new=new))
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_toml_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not valid TOML"):
        load_benchmark(own(tmp_path, new="= ="))


def test_a_tie_is_worth_what_each_benchmark_s_own_code_gives_it() -> None:
    ties = {name: load_benchmark(name).ties for name in BENCHMARK_NAMES}
    assert ties == {"rewardbench-safety": "loss", "rewardbench-2-safety": "half", "generic": "loss"}
