"""Scores read back: whole pairs, no gaps, and weights that fit the heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.errors import InputError, StudyIncompleteError
from encore.scoring.head_accuracy import head_accuracies
from encore.scoring.head_scores import head_scores_schema, read_head_scores
from tests.rating_shards import shard_path
from tests.scoring.models import score

HEADS = ("kind", "brief")
SCHEMA = head_scores_schema(HEADS)


def rows_of(*pairs: tuple[str, str, tuple[float, ...], tuple[float, ...]]) -> list[dict[str, Any]]:
    """(source, pair id, chosen's scores, rejected's scores) as rows of the schema."""
    return [
        {
            "pair_id": pair_id,
            "source": source,
            "subset": None,
            "response": response,
            **dict(zip(HEADS, scores, strict=True)),
        }
        for source, pair_id, chosen, rejected in pairs
        for response, scores in (("chosen", chosen), ("rejected", rejected))
    ]


SMALL = rows_of(("hh", "p1", (0.5, -1.0), (0.25, 1.0)), ("pku", "p0", (0.0, 2.0), (0.0, 0.5)))


def written(folder: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> Path:
    path = folder / "scores.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


# --- reading --------------------------------------------------------------------------------------


def test_a_scoring_is_read_by_its_study_and_by_its_folder(study, opened):
    with pytest.raises(InputError, match="no scores yet; run `encore score"):
        read_head_scores(study)
    result = score(study, opened, shard_size=9)
    by_study, by_folder = read_head_scores(study), read_head_scores(result.out)
    assert by_study.score_P2R.tolist() == by_folder.score_P2R.tolist()
    assert by_study.head_ids == opened.model.head_ids
    assert by_study.mean_R.tolist() == [0.5, 0.25, 0.125]
    assert (set(by_study.source_P), set(by_study.subset_P)) == ({"mine"}, {None})
    other = score(study, opened, limit=2)
    with pytest.raises(InputError, match=r"2 runs match .* or its folder") as caught:
        read_head_scores(study)
    assert all(f"{key} (model model)" in str(caught.value) for key in (result.key, other.key))
    shard_path(result.out, 1).unlink()
    with pytest.raises(StudyIncompleteError, match=r"1 of 3 shards are not done \(shard 1: miss"):
        read_head_scores(result.out)


def test_any_parquet_of_the_schema_is_read_in_any_order_of_rows(tmp_path):
    expected = read_head_scores(written(tmp_path, SMALL))
    assert expected.score_P2R.tolist() == [[[0.0, 2.0], [0.0, 0.5]], [[0.5, -1.0], [0.25, 1.0]]]
    assert expected.mean_R.tolist() == [0.0, 0.0]
    shuffled = read_head_scores(written(tmp_path, [SMALL[i] for i in (3, 0, 2, 1)]))
    assert shuffled.pair_id_P.tolist() == ["p0", "p1"]
    assert shuffled.score_P2R.tolist() == expected.score_P2R.tolist()
    wide = pa.schema([(f.name, pa.float64() if f.name in HEADS else f.type) for f in SCHEMA])
    assert read_head_scores(written(tmp_path, SMALL[:2], wide)).score_P2R.dtype == np.float32
    (tmp_path / "scores.parquet").rename(tmp_path / "part.parquet")
    written(tmp_path, SMALL[2:], wide)
    assert read_head_scores(tmp_path).pair_id_P.tolist() == ["p0", "p1"]


@pytest.mark.parametrize("key", ["pair_id", "source"])
def test_rows_of_neighbouring_pairs_are_not_mixed_up(tmp_path, key):
    """Chosen and rejected take turns, but each stands beside another pair's (or source's) row."""
    rows = [row | {"pair_id": "p", "source": "s", key: row["pair_id"]} for row in SMALL]
    expected = read_head_scores(written(tmp_path, rows))
    crossed = read_head_scores(written(tmp_path, [rows[place] for place in (0, 3, 2, 1)]))
    assert crossed.score_P2R.tolist() == expected.score_P2R.tolist()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (SMALL[:3], "pair p0: expected exactly one row for its chosen"),
        ([*SMALL, SMALL[0]], "pair p1: expected exactly one row"),
        ([*SMALL, *SMALL], "pair p0: expected exactly one row"),
        ([*SMALL[:3], SMALL[3] | {"response": "other"}], "pair p0: expected exactly one"),
        ([*SMALL[:3], SMALL[3] | {"kind": float("nan")}], "pair p0: its rejected response has no"),
        ([*SMALL[:3], SMALL[3] | {"kind": float("inf")}], "pair p0: its rejected response has no"),
        ([*SMALL[:3], SMALL[3] | {"brief": None}], "pair p0: its rejected response has no"),
    ],
    ids=["missing", "twice", "all twice", "another response", "nan", "infinite", "null"],
)
def test_gaps_and_repeats_are_refused(tmp_path, rows, message):
    nullable = pa.schema([(field.name, field.type) for field in SCHEMA])
    with pytest.raises(InputError, match=message):
        read_head_scores(written(tmp_path, rows, nullable))


def test_another_table_is_refused(tmp_path):
    for schema, message in (
        (SCHEMA.remove(2), "expected pair_id, source, subset.*; found pair_id .string., source"),
        (head_scores_schema(()), "no head scores; expected"),
        (SCHEMA.append(pa.field("note", pa.string())), "note .string"),
    ):
        with pytest.raises(InputError, match=message):
            read_head_scores(written(tmp_path, SMALL, schema))


def test_what_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "scores.parquet").write_bytes(b"no")
    for name in ("scores.parquet", "nowhere"):
        with pytest.raises(InputError, match="cannot be read as head scores"):
            read_head_scores(tmp_path / name)
    with pytest.raises(InputError, match="head 'kind'"):
        head_scores_schema(["kind", "kind"])


# --- accuracy -------------------------------------------------------------------------------------


def test_accuracy_counts_a_tie_half_or_as_a_miss(tmp_path):
    rows = rows_of(
        ("hh", "p0", (1.0, 0.0), (0.5, 0.0)),  # win, tie
        ("hh", "p1", (0.0, 0.0), (0.5, 0.0)),  # loss, tie
        ("hh", "p2", (2.0, 1.0), (2.0, 0.0)),  # tie, win
        ("hh", "p3", (3.0, 0.0), (2.0, 1.0)),  # win, loss
    )
    scores = read_head_scores(written(tmp_path, rows))
    kind, brief = head_accuracies(scores)
    assert (kind.num_pairs, kind.num_ties, kind.half, kind.strict) == (4, 1, 2.5 / 4, 2 / 4)
    assert (brief.num_pairs, brief.num_ties, brief.half, brief.strict) == (4, 2, 2 / 4, 1 / 4)
    assert [one.head_id for one in (kind, brief)] == list(HEADS)
    assert head_accuracies(scores.take(np.arange(0))) == ()
