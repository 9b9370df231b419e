"""Tables of ratings from elsewhere: every format, other scales, other names, wide tables."""

from __future__ import annotations

import bz2
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import encore
from encore.core.errors import InputError
from encore.warehouse import open_ratings, open_warehouse, read_pairs_of
from tests.golden.command_line import encore as run_command
from tests.worlds.refusals import assert_refused
from tests.worlds.studies import rules_of, write_rating_run

pytestmark = pytest.mark.services

RULES = ("harm", "kind")


def likert_frame(num_pairs: int = 40) -> pd.DataFrame:
    """Return ratings of 1 to 5: under `harm` the chosen response is one higher in 3 of 4 pairs."""
    rows = []
    for number in range(num_pairs):
        low = 1 + number % 4
        for rule in RULES:
            chosen_is_higher = number % 4 < 3 if rule == "harm" else number % 2
            values = (low + 1, low) if chosen_is_higher else (low, low + 1)
            for response, value in zip(("chosen", "rejected"), values, strict=True):
                rows.append((f"p{number:02}", "mine", response, rule, float(value)))
    return pd.DataFrame(rows, columns=["pair_id", "source", "response", "rule_id", "rating"])


LIKERT = likert_frame()
UNIT = LIKERT.assign(rating=(LIKERT["rating"] - 1) / 4)


def wide(frame: pd.DataFrame, **columns: Sequence[object]) -> pd.DataFrame:
    table = frame.pivot(index=["pair_id", "response"], columns="rule_id", values="rating")
    return table.reset_index().assign(**columns)


def written(folder: Path, name: str) -> Path:
    """Write the ratings in [0, 1] in the format of a name."""
    path = folder / name
    lines = UNIT.to_json(orient="records", lines=True).encode()
    records = json.loads(UNIT.to_json(orient="records"))
    table = pa.Table.from_pandas(UNIT, preserve_index=False)
    contents = {
        "r.jsonl": lines,
        "r.ndjson": lines,
        "r.json": json.dumps({"data": records}, indent=1).encode(),
        "pretty.json": b"\n".join(json.dumps(row, indent=1).encode() for row in records),
        "array.jsonl": json.dumps(records).encode(),
        "r.jsonl.zst": bytes(pa.compress(lines, "zstd", asbytes=True)),
        "r.jsonl.xz": lzma.compress(lines),
        "r.tsv": UNIT.to_csv(index=False, sep="\t").encode(),
        "r.csv": UNIT.to_csv(index=False, sep="\t").encode("utf-16"),
        "r.csv.bz2": bz2.compress(UNIT.to_csv(index=False).encode()),
        "r.csv.zst": bytes(pa.compress(UNIT.to_csv(index=False).encode(), "zstd", asbytes=True)),
    }
    if name in contents:
        path.write_bytes(contents[name])
    elif name == "r.feather":
        UNIT.to_feather(path)
    elif name == "r.arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:  # a Parquet file of any name
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("r.jsonl", "r.ndjson", "r.json", "pretty.json", "array.jsonl", "r.jsonl.zst"),
        *("r.jsonl.xz", "r.tsv", "r.csv", "r.csv.bz2", "r.csv.zst", "r.feather", "r.arrow"),
        *("r.parquet", "ratings"),
    ],
)
def test_every_format_of_a_table_gives_the_same_ratings(tmp_path, name):
    pairs, expected = (
        read_pairs_of(open_ratings(ratings)) for ratings in (written(tmp_path, name), UNIT)
    )
    assert pairs.rule_ids == expected.rule_ids == RULES
    assert np.array_equal(pairs.rating_2PR, expected.rating_2PR)


def test_what_is_no_table_of_ratings_is_named(tmp_path):
    (tmp_path / "r.xlsx").write_bytes(b"PK\x03\x04 a sheet")
    (tmp_path / "r.txt").write_text("pair_id\n")
    (tmp_path / "r.jsonl").write_text('{"pair_id": "p"}\n{"pair_id": \n')
    for name, problem in (
        ("r.xlsx", "an Excel workbook; unpack it, or save its sheet as CSV"),
        ("r.txt", "expected a table of ratings that ends in .csv, .jsonl"),
        ("r.jsonl", "line 2: not-json"),
        ("", "no Parquet file there; .*it has r.jsonl: give one file"),
    ):
        assert_refused(problem, open_ratings, tmp_path / name)


# --- scales ---------------------------------------------------------------------------------------


def test_ratings_on_another_scale_name_the_range_and_the_option(tmp_path):
    LIKERT.to_csv(tmp_path / "r.csv", index=False)
    result = run_command("analyze", str(tmp_path / "r.csv"))
    assert result.code == 1
    # Of each 4 pairs the lower values are 1, 2, 3, 4, each under two rules; only the 1s are in
    # [0, 1]: 10 pairs × 2 rules = 20 of 160.
    assert "140 of 160 ratings are not in [0, 1]" in result.err
    assert "ratings run from 1 to 5" in result.err
    assert "--scale 1,5" in result.err
    assert "leave out" not in result.err


@pytest.mark.parametrize(
    ("low", "high", "option"),
    [(0, 10, "0,10"), (0, 100, "0,100"), (-1, 1, "-1,1"), (0.5, 9.5, "0,10"), (1, 3, "1,3")],
)
def test_the_proposed_scale_is_the_range_in_whole_numbers(low, high, option):
    frame = UNIT.assign(rating=low + UNIT["rating"] * (high - low))
    ends = option.replace(",", ", ")
    assert_refused(rf"scale=\({ends}\)", encore.analyze, frame)
    analysis = encore.analyze(frame, scale=option)
    assert analysis.ratings.scale == tuple(map(float, option.split(",")))


def test_ratings_that_rounding_put_outside_are_not_on_another_scale():
    frame = UNIT.assign(rating=UNIT["rating"] * 1.0000001)
    with pytest.raises(InputError, match="round them") as caught:
        encore.analyze(frame)
    assert "--scale" not in str(caught.value)


@pytest.mark.parametrize("form", ["frame", "csv", "parquet", "wide"])
def test_a_named_scale_is_mapped_to_the_unit_interval(tmp_path, form):
    ratings: Any = {
        "frame": LIKERT,
        "csv": tmp_path / "r.csv",
        "parquet": tmp_path / "r.parquet",
        "wide": wide(LIKERT),
    }[form]
    LIKERT.to_csv(tmp_path / "r.csv", index=False)
    LIKERT.to_parquet(tmp_path / "r.parquet")
    opened = open_ratings(ratings, scale=(1, 5))
    # 1, 2, 3, 4, 5 are 0, 1/4, 1/2, 3/4, 1, which are exact in binary.
    assert sorted(np.unique(read_pairs_of(opened).rating_2PR)) == [0, 0.25, 0.5, 0.75, 1]
    document = encore.analyze(ratings, scale=(1, 5)).as_dict()
    assert document["scale"] == [1, 5]
    assert "ratings of the scale 1 to 5 were mapped to 0 to 1" in document["notes"]
    vector = encore.weights(ratings, scale="1,5")
    assert vector.as_dict()["provenance"]["scale"] == (1, 5)
    assert vector.weights == pytest.approx(encore.weights(UNIT).weights)
    assert "scale" not in encore.weights(UNIT).as_dict()["provenance"]


def test_a_rating_outside_the_named_scale_is_refused_with_its_own_value():
    assert_refused(
        r"20 of 160 ratings are not in \[1, 4\], e\.g\. .*rating 5\.0; ratings run from 1 to 5",
        *(encore.analyze, LIKERT),
        scale=(1, 4),
    )


@pytest.mark.parametrize("scale", ["5", "5,1", "1,x", "1,5,9", "1,inf", (1, 1)])
def test_a_scale_is_two_numbers(scale):
    assert_refused("expected its two ends as LOW,HIGH", encore.analyze, LIKERT, scale=scale)


def test_a_study_has_no_other_scale_and_a_table_compared_with_it_has_its_own(tmp_path):
    table = pa.Table.from_pandas(UNIT, preserve_index=False)
    table = table.sort_by([("pair_id", "ascending"), ("response", "ascending")])
    write_rating_run(tmp_path / "study", table, rules=rules_of(RULES))
    study, second = str(tmp_path / "study"), str(tmp_path / "r.csv")
    LIKERT.to_csv(second, index=False)
    assert_refused("are for tables from elsewhere", open_ratings, study, scale=(1, 5))
    call = ("analyze", study, "--compare", second, "--json")
    assert "--scale 1,5" in run_command(*call).err
    result = run_command(*call, "--scale", "1,5")
    assert result.code == 0, result.err
    # The same ratings on two scales: no pair differs.
    rules = json.loads(result.out)["comparison"]["rules"]
    assert [rule["agreement"]["value"] for rule in rules] == [1, 1]


# --- names ----------------------------------------------------------------------------------------


def test_columns_of_other_names_are_named_with_how_to_rename_them():
    for new, column in (("score", "rating"), ("criterion", "rule_id"), ("id", "pair_id")):
        renamed = UNIT.rename(columns={column: new})
        assert_refused(f"rename {new} to {column} .pandas: frame.rename", encore.analyze, renamed)
    both = UNIT.rename(columns={"rule_id": "rule", "rating": "score"})
    assert_refused("rename rule to rule_id, score to rating", encore.analyze, both)


def test_a_table_without_a_source_is_of_one_source(tmp_path):
    frame = UNIT.drop(columns="source")
    frame.to_parquet(tmp_path / "r.parquet")
    expected = [
        rule.untied for rule in encore.analyze(UNIT.assign(source="table")).answers[-1].rows
    ]
    for ratings in (frame, tmp_path / "r.parquet"):
        assert [rule.untied for rule in encore.analyze(ratings).answers[-1].rows] == expected


def test_a_file_without_the_source_that_the_others_have_is_refused(tmp_path):
    UNIT[:40].to_parquet(tmp_path / "a.parquet")
    UNIT[40:].drop(columns="source").to_parquet(tmp_path / "b.parquet")
    assert_refused("source None", encore.analyze, tmp_path)


def test_other_names_of_responses_are_counted_with_the_way_on():
    letters = UNIT.assign(response=UNIT["response"].map({"chosen": "A", "rejected": "B"}))
    assert_refused(
        "found 'A' in 80, 'B' in 80; write \"chosen\" for the response that people preferred",
        *(encore.analyze, letters),
    )


# --- wide tables ----------------------------------------------------------------------------------


def confidence(frame: pd.DataFrame) -> list[float]:
    """Return a value for each row of a wide table that both responses of a pair share."""
    return [int(pair_id[1:]) % 3 / 4 for pair_id in wide(frame)["pair_id"]]


def test_a_column_that_is_the_same_within_every_pair_is_refused_by_name(tmp_path):
    frame = wide(UNIT, annotator_confidence=confidence(UNIT))
    frame.to_csv(tmp_path / "w.csv", index=False)
    result = run_command("analyze", str(tmp_path / "w.csv"))
    assert result.code == 1
    assert "column annotator_confidence has the same value for both responses" in result.err
    assert "--rule-columns harm,kind" in result.err
    named = run_command("analyze", str(tmp_path / "w.csv"), "--rule-columns", "harm,kind", "--json")
    assert named.code == 0, named.err
    # Named columns may be anything, also one that does not tell the responses of a pair apart.
    assert encore.analyze(frame, rule_columns=["annotator_confidence"]).rules[0].tie_rate == 1
    answers = [row["rule_id"] for row in json.loads(named.out)["answer"]]
    assert sorted(answers) == ["harm", "kind"]


def test_a_rule_that_is_constant_or_differs_in_one_pair_is_kept():
    values = confidence(UNIT)
    differs = [1.0, *values[1:]]
    rules = encore.analyze(wide(UNIT, always=[0.5] * len(values), nearly=differs)).rules
    assert {rule.rule_id for rule in rules} == {*RULES, "always", "nearly"}


def test_a_column_of_texts_or_of_other_numbers_is_named_with_the_way_to_leave_it_out(tmp_path):
    numbers = [*range(80)]
    table = wide(UNIT, num_tokens=numbers, split="train")
    table.to_csv(tmp_path / "w.csv", index=False)
    assert_refused("column split.*with rule_columns", encore.analyze, tmp_path / "w.csv")
    outside = r"under num_tokens alone \(if these columns are no rules: rule_columns harm,kind\)"
    assert_refused(outside, encore.analyze, table.drop(columns="split"))
    rules = encore.analyze(tmp_path / "w.csv", rule_columns="harm,kind").rules
    assert [rule.rule_id for rule in rules] == ["harm", "kind"]


def test_the_answer_says_which_columns_of_a_wide_table_are_rules(tmp_path):
    wide(UNIT).to_csv(tmp_path / "w.csv", index=False)
    sentence = "2 columns taken as rules: harm, kind (--rule-columns names others)"
    for command in ("analyze", "weights"):
        assert sentence in run_command(command, str(tmp_path / "w.csv")).err
    assert sentence in encore.analyze(tmp_path / "w.csv").notes
    assert_refused(
        "rule_columns names kin, and the columns are .*did you mean kind",
        *(encore.analyze, tmp_path / "w.csv"),
        rule_columns="harm,kin",
    )


def test_the_query_for_columns_constant_in_pairs_agrees_with_numpy():
    frame = wide(UNIT, a=confidence(UNIT), b=0.5, c=[1.0, *confidence(UNIT)[1:]])
    opened = open_ratings(frame, rule_columns=["harm", "kind", "a", "b", "c"])
    with open_warehouse(opened) as warehouse:
        names = warehouse.query("rules_constant_in_pairs")["rule_id"].to_pylist()
    pairs = read_pairs_of(opened)
    is_same_R = (pairs.margin_PR == 0).all(axis=0) & (np.ptp(pairs.chosen_PR, axis=0) > 0)
    assert names == [pairs.rule_ids[index] for index in np.flatnonzero(is_same_R)] == ["a"]


# --- one side -------------------------------------------------------------------------------------


def test_ratings_of_one_side_say_that_there_are_no_preferences(tmp_path):
    chosen = UNIT[UNIT["response"] == "chosen"]
    chosen.to_csv(tmp_path / "r.csv", index=False)
    result = run_command("analyze", str(tmp_path / "r.csv"))
    assert result.code == 0
    assert "There are no preferences in these ratings" in result.out
    assert "undecided" not in result.out
    text = repr(encore.analyze(chosen))
    assert "There are no preferences" in text
    assert "undecided" not in text
