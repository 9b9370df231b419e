"""The page's API: filters, single pairs, hostile texts, and refused hosts and requests."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from encore.data.annotations import read_items
from encore.data.pairs import iter_pairs
from encore.data.rating_runs import status
from encore.data.study import open_study
from encore.people.export_sample import export_sample
from encore.people.import_answers import import_answers
from encore.people.people_options import AnnotateExportConfig, AnnotateImportConfig
from encore.tables.pair_details import pair_in_run
from tests.people.answering import save_page
from tests.tables.browse.studies import HOSTILE, browsing, write_hostile_study
from tests.tables.sql.studies import digest_of_tree

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def cells(hostile_study: Path) -> pd.DataFrame:
    """Read a row for each (pair, rule, run) from the shards' files without SQL."""
    files = [path for run in status(hostile_study) for path in run.paths]
    rows = pd.concat(pq.read_table(path).to_pandas() for path in files).fillna({"null_reason": ""})
    keys = ["pair_id", "source", "rule_id", "run_key"]
    sides = rows.pivot(index=keys, columns="response", values=["rating", "null_reason"])
    cells = sides["rating"].astype(float).reset_index()
    cells["null"] = sides["null_reason"].agg(" ".join, axis=1).to_numpy()
    margin = cells["chosen"] - cells["rejected"]
    margins = margin.groupby([cells[key] for key in keys[:3]])
    low, high = margins.transform("min"), margins.transform("max")
    is_decided = margin.notna() & (margin != 0)
    cells["judges"] = (high - low).where((low < 0) & (high > 0) & is_decided)
    cells["responses"] = -margin.where(margin < 0)
    pairs = iter_pairs(open_study(hostile_study))
    cells["text"] = cells["pair_id"].map({pair.pair_id: f"{pair}".lower() for pair in pairs})
    return cells


def rows_of(browsed: httpx.Client, **filters: Any) -> list[dict[str, Any]]:
    """Return the rows of all pages."""
    first = browsed.get("/api/pairs", params=filters).json()
    rows = list(first["rows"])
    for number in range(2, first["num_pages"] + 1):
        rows += browsed.get("/api/pairs", params={**filters, "page": number}).json()["rows"]
    assert len(rows) == first["num_pairs"]
    return rows


@pytest.mark.parametrize(
    "query",
    [
        "",
        "null=any",
        "null=empty_reply&rule=fair&run=1",
        "disagreement=responses",
        "disagreement=responses&rule=calm&run=0&source=hh",
        "disagreement=responses&text=GENTLE answer 1",
        "min_rating=0.2&max_rating=0.3&rule=calm",
        "disagreement=judges",
        "disagreement=judges&rule=calm&run=1",
        "text=<script>",
    ],
)
def test_a_filter_returns_the_pairs_of_the_same_condition_in_pandas(browsed, cells, query):
    filters = dict(parse_qsl(query))
    if "run" in filters:
        filters["run"] = sorted(set(cells["run_key"]))[int(filters["run"])]
    low, high = (float(filters.get(name, "nan")) for name in ("min_rating", "max_rating"))
    sides = cells[["chosen", "rejected"]]
    is_in_range = ((sides >= low) & (sides <= high)).any(axis=1)
    matching = cells
    for name, value in filters.items():
        masks = {
            "min_rating": is_in_range[matching.index],
            "max_rating": is_in_range[matching.index],
            # Every reason has an underscore.
            "null": matching["null"].str.contains(value.replace("any", "_")),
            "text": matching["text"].str.contains(value.lower(), regex=False),
            "disagreement": matching.get(value, matching["null"]).notna(),
        }
        column = {"rule": "rule_id", "run": "run_key"}.get(name, name)
        matching = matching[masks[name] if name in masks else matching[column] == value]
    no_difference = matching["chosen"] * 0
    difference = matching.get(filters.get("disagreement"), no_difference).fillna(0).round(9)
    largest = difference.groupby([matching["pair_id"], matching["source"]]).max()
    expected = largest.sort_values(ascending=False, kind="stable").index.tolist()
    assert [(row["pair_id"], row["source"]) for row in rows_of(browsed, **filters)] == expected
    assert 0 < len(expected) < 60 or not filters


@pytest.mark.parametrize("column", ["chosen", "rejected", "difference"])
def test_a_list_is_sorted_by_its_figures_and_nulls_come_last(browsed, cells, column):
    run = cells[cells["null"].str.contains("empty")]["run_key"].iloc[0]
    ratings = cells[(cells["rule_id"] == "calm") & (cells["run_key"] == run)]
    values = ratings.assign(difference=ratings["chosen"] - ratings["rejected"])
    value_of = values.set_index(["pair_id", "source"])[column].round(9).to_dict()
    filters = {"rule": "calm", "run": run}
    for sort, sign in ((column, 1), (f"-{column}", -1)):
        rows = rows_of(browsed, **filters, sort=sort)
        listed = [value_of[row["pair_id"], row["source"]] for row in rows]
        rated = [sign * value for value in listed if not np.isnan(value)]
        assert rated == sorted(rated)
        assert len(rated) == np.isfinite(listed[: len(rated)]).sum() < len(listed)


def test_pairs_that_a_judge_rates_unlike_people_are_found(hostile_study, tmp_path):
    study = Path(shutil.copytree(hostile_study, tmp_path / "study"))
    run = sorted(status(study), key=lambda run: run.manifest.run_key)[0].manifest.run_key
    export = export_sample(open_study(study), AnnotateExportConfig(study=study, run=run, items=50))
    file = save_page(export.files[0], tmp_path / "a.json", lambda *_: "0.5")
    import_answers(open_study(study), AnnotateImportConfig(study=study, files=(file,)))
    items = read_items(open_study(study), export.sample).to_pylist()
    # The scale is 0, 0.5, 1: ratings from 0.25, and below 0.75, are nearest to the label 0.5.
    unlike = {item["pair_id"] for item in items if not 0.25 <= item["rating"] < 0.75}
    assert 0 < len(unlike) < 50
    with browsing(study) as page:
        rows = rows_of(page, disagreement="people", run=run)
        assert {row["pair_id"] for row in rows} == unlike
        labels = page.get(f"/api/pairs/{rows[0]['position']}").json()["people"]
    assert {row["label"] for row in labels} == {0.5}


def test_a_note_is_kept_in_the_study_and_nothing_else_changes(hostile_study, tmp_path):
    study = Path(shutil.copytree(hostile_study, tmp_path / "study"))
    with browsing(study) as page:
        pair_id = page.get("/api/pairs/3").json()["pair_id"]
        before = digest_of_tree(study)
        assert page.put("/api/pairs/3/note", content=HOSTILE).status_code == 200
        assert json.loads((study / "notes.json").read_text()) == {pair_id: HOSTILE}
        assert [row["note"] for row in rows_of(page) if row["note"]] == [HOSTILE]
        assert page.get("/api/pairs/3").json()["note"] == HOSTILE
        for content, headers, code in (
            ("x" * 2001, {}, 400),
            ("é" * 4001, {}, 413),  # 8,002 bytes: more than 2,000 characters can have
            ("x", {"host": "evil.example"}, 403),
        ):
            answer = page.put("/api/pairs/3/note", content=content, headers=headers)
            assert answer.status_code == code
        page.put("/api/pairs/3/note", content="")
        (study / "notes.json").unlink()
        assert digest_of_tree(study) == before


def test_a_body_without_end_is_not_read_to_its_end(browsed):
    """A million times the largest note; the client sends until the server stops to read."""
    num_sent = 0

    def blocks() -> Iterator[bytes]:
        nonlocal num_sent
        for _ in range(1_000_000):
            num_sent += 1
            yield b"x" * 8_000

    with contextlib.suppress(httpx.TransportError):
        answer = browsed.put("/api/pairs/3/note", content=blocks())
        assert answer.status_code == 413
    assert num_sent < 10_000
    assert browsed.get("/api/pairs/3").json()["note"] == ""


def test_a_body_that_is_announced_as_too_large_is_not_read_at_all(browsed):
    """The client sends a head and waits; the answer does not wait for the body."""
    url = browsed.base_url
    with socket.create_connection((url.host, url.port), timeout=5) as connection:
        connection.sendall(
            b"PUT /api/pairs/3/note HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8001\r\n\r\n"
        )
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_row_has_the_means_nulls_and_contradictions_of_each_run(browsed, cells):
    rows = {
        (row["pair_id"], run["run_key"]): run for row in rows_of(browsed) for run in row["runs"]
    }
    for key, ratings in cells.groupby(["pair_id", "run_key"]):
        mean = pytest.approx(ratings["chosen"].mean(), nan_ok=True)
        assert np.float64(rows[key]["chosen"]) == mean  # null becomes NaN
        assert rows[key]["num_nulls"] == ratings[["chosen", "rejected"]].isna().sum().sum()
        assert rows[key]["num_against"] == ratings["responses"].notna().sum()


def test_an_opened_pair_has_the_ratings_that_encore_show_prints(browsed, hostile_study):
    pairs = sorted(
        iter_pairs(open_study(hostile_study)), key=lambda pair: (pair.pair_id, pair.source)
    )
    for position in (0, 30, 59):
        opened = browsed.get(f"/api/pairs/{position}").json()
        assert opened["chosen"] == pairs[position].chosen
        assert opened["runs"] == [
            pair_in_run(pairs[position], run.manifest, run.paths) for run in status(hostile_study)
        ]
    # The last 10 pairs are in the second run's missing shard. The third run has label masses:
    # 7 e^-5 + e^-1 + e^-1.5 + e^-2 = 0.7735.
    assert sorted(len(run["ratings"]) for run in opened["runs"]) == [0, 6, 6]
    masses = [run["ratings"][0].get("label_mass") for run in opened["runs"] if run["ratings"]]
    assert sorted(masses, key=bool) == [None, pytest.approx(0.7735, abs=1e-4)]
    (row,) = rows_of(browsed, text=pairs[7].pair_id[:9].upper())
    assert row["position"] == 7


def test_the_summary_has_missing_shards_and_distinct_names_of_runs(browsed):
    summary = browsed.get("/api/study").json()
    runs = {run["name"]: run["num_missing_shards"] for run in summary["runs"]}
    assert runs == {"one": 0, "two<i>": 1, "one, conversation-first, expected": 0}
    assert summary["null_reasons"].keys() == {"not_a_single_number", "empty_reply"}


def test_hostile_texts_are_returned_unchanged_and_only_as_json(browsed):
    row, *_ = rows_of(browsed, null="not_a_single_number")
    answer = browsed.get(f"/api/pairs/{row['position']}")
    ratings = [rating for run in answer.json()["runs"] for rating in run["ratings"]]
    assert HOSTILE in [rating["raw_reply"] for rating in ratings]
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "status_code", "text"),
    [
        ("/", 200, "<title>ENCORE browse</title>"),
        ("/report.css", 200, "light-dark"),
        ("/%2e%2e/pair_index.py", 404, "Not Found"),
        ("/api/pairs/" + "9" * 60, 400, "the study has no such pair"),
        ("/api/pairs?page=0", 400, "page '0': expected a number from 1"),
        ("/api/pairs?page=99999999999", 400, "expected a number from 1"),
        ("/api/pairs?rule=no", 400, "rule 'no': expected one of calm, fair, kind"),
        ("/api/pairs?null=x'--", 400, "expected one of any, "),
        ("/api/pairs?order=1", 400, "parameter 'order': expected rule"),
        ("/api/pairs?text=%00%27%22%ff", 200, '"num_pairs":0'),
    ],
)
def test_every_answer_forbids_scripts_and_guessed_types(browsed, path, status_code, text):
    answer = browsed.get(path)
    assert (answer.status_code, text in answer.text) == (status_code, True)
    policy = set(answer.headers["content-security-policy"].split("; "))
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= policy
    assert "unsafe" not in str(policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("hosts", "status_code"),
    [
        (("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:80"), 200),
        (("evil.example", "127.0.0.1.evil.example", "evil.example@localhost", "", "[", "a b"), 403),
    ],
)
def test_a_request_for_a_foreign_host_is_refused(browsed, hosts, status_code):
    for path in ("/", "/api/study"):
        codes = {host: browsed.get(path, headers={"host": host}).status_code for host in hosts}
        assert codes == dict.fromkeys(hosts, status_code)


def test_only_get_is_answered_and_no_file_changes(browsed, hostile_study):
    digest = digest_of_tree(hostile_study)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert browsed.request(method, "/api/pairs").status_code == 405
    rows_of(browsed, disagreement="judges", text="a")
    browsed.get("/api/pairs/1")
    assert digest_of_tree(hostile_study) == digest


def test_a_deleted_shard_is_one_clear_error(tmp_path):
    study = write_hostile_study(tmp_path)
    with browsing(study) as page:
        for path in (study / "ratings").glob("*/shard-*.parquet"):
            path.unlink()
        answer = page.get("/api/pairs/0")
        assert answer.status_code == 500
        assert "start `encore browse` again" in answer.json()["error"]
        assert len(rows_of(page)) == 60
