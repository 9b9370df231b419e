"""Counts of pairs equal those of numpy, whatever the order of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.analysis import pair_counts
from encore.analysis.pair_counts import count_pairs
from encore.core.errors import EncoreError, InputError
from encore.data.records import RESPONSES
from encore.warehouse import Warehouse, connection, open_ratings, open_warehouse
from encore.warehouse.connection import load_query
from tests.reference import pairs_of, reference_signs, rows_of
from tests.worlds.ratings import random_table, ratings_table, table_of
from tests.worlds.studies import rules_of, write_rating_run

Order = Callable[[pa.Table, np.random.Generator], pa.Table]


def pair_by_pair(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Return the pairs in random order, the rows of each pair together."""
    keys = list(zip(table["source"].to_pylist(), table["pair_id"].to_pylist(), strict=True))
    rank = {key: rng.random() for key in dict.fromkeys(keys)}
    return table.take(pa.array(np.argsort([rank[key] for key in keys], kind="stable")))


def rule_by_rule(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    return table.sort_by("rule_id")


def shuffled(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    return table.take(pa.array(rng.permutation(table.num_rows)))


ORDERS: tuple[Order, ...] = (pair_by_pair, rule_by_rule, shuffled)


def counted(ratings: pa.Table | Path, *, part_rows: int = 3_000_000) -> dict:
    with open_warehouse(open_ratings(ratings), part_rows=part_rows) as opened:
        return count_pairs(opened)


# --- against other definitions --------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_numpy_whatever_the_order_and_the_parts(seed, order):
    rng = np.random.default_rng(300 + seed)
    table = order(random_table(rng, max_rows=4000), rng)
    rows = rows_of(table)
    rule_ids = sorted({row[3] for row in rows})
    for source, counts in counted(table, part_rows=500).items():
        source_rows = [row for row in rows if source in (None, row[1])]
        ratings_by_key = pairs_of(source_rows)
        keys = sorted({key[:2] for key in ratings_by_key})
        sign_PR = reference_signs(source_rows, rule_ids)
        np.testing.assert_array_equal(counts.sign_gram_RR, sign_PR.T @ sign_PR)
        np.testing.assert_array_equal(counts.wins_R, (sign_PR > 0).sum(axis=0))
        np.testing.assert_array_equal(counts.losses_R, (sign_PR < 0).sum(axis=0))
        assert counts.num_pairs == len(sign_PR)
        responses = {(*row[1::-1], row[2]) for row in source_rows if row[4] is not None}
        num_responses = Counter(key[:2] for key in responses)
        assert counts.num_one_sided == list(num_responses.values()).count(1)
        for rule_id, count_MM, ties in zip(rule_ids, counts.cells, counts.ties_R, strict=True):
            pairs = Counter(
                tuple(ratings_by_key.get((*key, rule_id), (None, None))) for key in keys
            )
            assert ties == sum(num for (x, y), num in pairs.items() if x is not None and x == y)
            levels = sorted({row[4] for row in rows if row[3] == rule_id} - {None})
            if count_MM is None:
                assert len(levels) > 256 or not levels
                continue
            states = [*levels, None]
            expected = [[pairs[chosen, rejected] for rejected in states] for chosen in states]
            np.testing.assert_array_equal(count_MM, expected)


def test_a_run_is_counted_from_its_shards_as_its_rows_are(tmp_path):
    """Sources alternate, ids have a source each, rules are not sorted, a rule has 70 levels."""
    rng = np.random.default_rng(330)
    rule_ids = ["b", "c", "a"]
    rating_2PR = rng.integers(0, 70, size=(2, 500, 3)) / 69
    rating_2PR[:, :, :2] = rating_2PR[:, :, :2].round(1)
    rating_2PR[rng.random(rating_2PR.shape) < 0.05] = np.nan
    table = table_of(*rating_2PR, rule_ids=rule_ids, source=["s", "r"] * 250)
    expected = counted(table)
    write_rating_run(tmp_path, table, rules=rules_of(rule_ids), shard_size=7)
    for source, counts in counted(tmp_path).items():
        for name in ("num_pairs", "num_one_sided", "wins_R", "losses_R", "ties_R", "sign_gram_RR"):
            np.testing.assert_array_equal(getattr(counts, name), getattr(expected[source], name))
        # Equal sums in each block: every pair has its own key.
        expected_B2RR = expected[source].margin_sums_B2RR
        np.testing.assert_allclose(counts.margin_sums_B2RR, expected_B2RR, atol=1e-12)
        for count_MM, expected_MM in zip(counts.cells, expected[source].cells, strict=True):
            np.testing.assert_array_equal(count_MM, expected_MM)


# --- order and parts ------------------------------------------------------------------------------


def test_rows_of_a_pair_that_stand_together_are_never_sorted(monkeypatch):
    stream = Warehouse.stream

    def refuse(self: Warehouse, name: str, *, order_by: str | None = None) -> object:
        assert order_by is None, "sorted by key"
        return stream(self, name)

    monkeypatch.setattr(Warehouse, "stream", refuse)
    rng = np.random.default_rng(332)
    table = random_table(rng, max_rows=30_000)
    counted(pair_by_pair(table, rng), part_rows=2048)
    with pytest.raises(AssertionError, match="sorted by key"):
        counted(shuffled(table, rng), part_rows=2048)


@pytest.mark.parametrize("num_between", [1, 3, 8])
def test_a_pair_whose_rows_stand_far_apart_is_one_pair(num_between):
    """The pair's two runs of rows are in different batches, 1, 3 or 8 batches apart."""
    rows = [(f"p{i:05d}", "s", r, "a", 0.5) for i in range(500 * num_between) for r in RESPONSES]
    rows = [("far", "s", "chosen", "a", 1.0), *rows, ("far", "s", "rejected", "a", 0.0)]
    counts = counted(ratings_table(rows), part_rows=1000)["s"]
    assert counts.num_pairs == 500 * num_between + 1
    assert (counts.wins_R.tolist(), counts.num_one_sided) == ([1], 0)


def test_a_limit_of_cells_drops_the_last_rules_in_any_order_of_rows(monkeypatch):
    """Rules a, c have 2 levels, so 3 x 3 cells, and b 8, so 81: with a 90, with a and c 99."""
    monkeypatch.setattr(pair_counts, "_MAX_CELL_COUNTS", 98)
    rng = np.random.default_rng(340)
    rating_2PR = rng.integers(0, 2, size=(2, 200, 3)).astype(float)
    rating_2PR[:, :, 1] = rng.integers(0, 8, size=(2, 200)) / 7
    table = table_of(*rating_2PR, rule_ids=["a", "b", "c"])
    for order in ORDERS:
        for counts in counted(order(table, rng), part_rows=100).values():
            assert [count_MM is None for count_MM in counts.cells] == [False, False, True]


# --- repeats and errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_a_repeated_rating_is_refused_in_any_order(order):
    rng = np.random.default_rng(350)
    table = random_table(rng, max_rows=3000)
    pair_id = repr(table["pair_id"][7].as_py())
    repeated = order(pa.concat_tables([table, table.slice(7, 1)]), rng)
    with pytest.raises(InputError, match=rf"2 ratings for .*{pair_id}"):
        counted(repeated)


@pytest.mark.parametrize("num_keys", [1, 7])
def test_pairs_with_the_same_key_are_never_counted_as_one(monkeypatch, num_keys):
    def clashing(name: str) -> str:
        return load_query(name).replace(
            "hash(ratings.source, ratings.pair_id)",
            f"hash(ratings.source, ratings.pair_id) % {num_keys}",
        )

    rows = [(f"p{i}", "s", response, "r", 0.5) for i in range(50) for response in RESPONSES]
    monkeypatch.setattr(connection, "load_query", clashing)
    with pytest.raises(EncoreError, match="same 64-bit hash"):
        counted(ratings_table(rows))


def test_a_query_that_fails_midway_is_an_error_of_one_line(tmp_path):
    # The page of pair_id is damaged; only counting pairs reads it.
    rows = [(f"{i:040x}", "s", r, "a", 0.5) for i in range(3000) for r in RESPONSES]
    path = tmp_path / "r.parquet"
    pq.write_table(ratings_table(rows), path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    content[start + 60 : start + 400] = b"\x00" * 340
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="cannot be read") as caught:
        counted(path)
    assert "\n" not in str(caught.value)
