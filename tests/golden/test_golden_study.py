"""Golden: files and output of ingesting, rating, training, scoring, exporting and a benchmark.

All commands run on one study of twenty of the demo's pairs, rated by the shipped judge.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.golden.command_line import encore
from tests.golden.conftest import GoldenStudy, find_product_file
from tests.golden.same import (
    ANY,
    PROBED,
    SOLVED,
    TRAINED_FROM_PROBE,
    assert_same,
    check_golden,
    mask_keys_and_paths,
    read_golden,
)
from tests.golden.tiny_llama import write_tiny_llama
from tests.judges.hostile_server import KEY, MODEL, HostileServer, serving

pytestmark = pytest.mark.services

SECONDS = {"*seconds": ANY, "*_per_second": ANY}
#: The ratings' digest depends on shards' footers, which hold the versions of Python and packages.
MACHINE = {"*encore_version": ANY, "*ratings_sha256": ANY}


def columns(table: pa.Table) -> dict[str, str]:
    return {field.name: f"{field.type}" for field in table.schema}


def test_ingest(golden_study):
    tolerances = {"*encore_version": ANY, "*parquet_sha256": ANY}
    check_golden("ingest", mask_keys_and_paths(golden_study.ingested), tolerances)
    pairs = pq.read_table(golden_study.folder / "pairs" / "hh.parquet")
    seen = {"columns": columns(pairs), "pair_ids": pairs["pair_id"].to_pylist()}
    check_golden("pairs", seen)


def test_ratings(golden_study):
    """Compare all columns and rows in order; values that all rows share are compared once."""
    rated = golden_study.rated | {}
    rated.pop("plan")  # has seconds
    check_golden("rate", mask_keys_and_paths(rated))
    folder = golden_study.folder / "ratings" / golden_study.rated["run_key"]
    shards = sorted(folder.glob("*.parquet"))
    table = pa.concat_tables([pq.read_table(shard) for shard in shards])
    assert set(table["judge"].to_pylist()) == {golden_study.judge.name}
    assert set(table["run_key"].to_pylist()) == {golden_study.rated["run_key"]}
    per_response = []
    for first_row in range(0, table.num_rows, 10):
        rows = table.slice(first_row, 10).to_pylist()
        first = {name: rows[0][name] for name in ("pair_id", "source", "response")}
        assert all(row.items() >= first.items() for row in rows)
        ratings = [[row["rating"], row["raw_reply"]] for row in rows]
        assert not any(row["null_reason"] or row["num_truncated_tokens"] for row in rows)
        per_response.append([*first.values(), ratings])
    seen = {
        "columns": columns(table),
        "rows_of_shards": [pq.read_metadata(shard).num_rows for shard in shards],
        "rules": table["rule_id"].to_pylist()[:10],
        "rows": per_response,
    }
    check_golden("ratings", seen)


def test_status_and_analysis_of_the_study(golden_study):
    run = golden_study.rated["run_key"]
    status = encore("status", golden_study.folder, "--run", run, "--json").json
    check_golden("status", mask_keys_and_paths(status))
    weights = encore("weights", golden_study.folder, "--json").json
    check_golden("weights-of-study", mask_keys_and_paths(weights), MACHINE)


#: Ends of bootstrap intervals, and means over 50 draws.
TABLE = {
    "*comparison*_low": 0.05,
    "*comparison*_high": 0.05,
    "*draws*": 0.05,
    "*computed_with*": ANY,
    "*weights*": SOLVED,
    **SECONDS,
}


#: Options by the name of the golden file: two layouts, the preference objective, adapters, and
#: heads that start from the probe.
TRAININGS = {
    "packed": ("--layout", "packed"),
    "prefix-shared": ("--layout", "prefix-shared"),
    "bradley-terry": ("--objective", "bradley-terry", "--layout", "sorted"),
    "lora": ("--method", "lora", "--lora-rank", 4, "--lora-alpha", 8),
    "head-init-probe": ("--head-init", "probe", "--layout", "single"),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_twenty_steps_of_training(golden_study, name):
    trained = golden_study.train(*TRAININGS[name])
    lines = (Path(trained["out"]) / "log.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    names = ("step", "epoch", "loss", "learning_rate", "num_tokens", "num_computed", "num_pairs")
    seen = {
        "evaluation": trained["evaluation"],
        "notes": trained["notes"],
        "synthetic": trained["synthetic"],
        "steps": [{name: step[name] for name in names} for step in steps],
    }
    # One of the 4 held-out pairs may change; R² divides the loss by the ratings' variance.
    loss, r2 = (TRAINED_FROM_PROBE,) * 2 if name == "head-init-probe" else (SOLVED, 1e-3)
    close = {"*loss": loss, "*r2_by_head*": r2, "*accuracy*": 0.25, **SECONDS}
    check_golden(f"train-{name}", mask_keys_and_paths(seen), close)


def test_both_layouts_see_the_same_losses():
    packed, shared = (read_golden(f"train-{layout}") for layout in ("packed", "prefix-shared"))
    losses = [[step["loss"] for step in training["steps"]] for training in (packed, shared)]
    assert_same(*losses, {"*": SOLVED})


def test_the_probe(golden_study):
    probe = golden_study.probe
    check_golden(
        "train-probe", mask_keys_and_paths(probe), {**SECONDS, "*loss": SOLVED, "*r2_*": PROBED}
    )


def test_head_scores(golden_study):
    """Compare the rows in order: pair, source, response, a score of every head."""
    answer = golden_study.scored
    # Two pairs differ only in the last bits of some head, so they may tie.
    ties = {"accuracy*": 1.01 / 20, "accuracy*.num_ties": 1, "padding_share": ANY}
    check_golden("score", mask_keys_and_paths(answer), {**SECONDS, **ties})
    [shard] = Path(answer["out"]).glob("*.parquet")
    table = pq.read_table(shard)
    seen = {"columns": columns(table), "rows": [list(row.values()) for row in table.to_pylist()]}
    check_golden("head-scores", seen, {"rows.*": PROBED})


@pytest.mark.parametrize("kind", ["heads", "composed"])
def test_an_exported_folder(golden_study, tmp_path, kind):
    """The trunk equals the backbone byte for byte; heads come from a solver, folded or not."""
    out = tmp_path / kind
    weights = ("--scheme", "encore", "--ratings", golden_study.folder)
    options = weights if kind == "composed" else ()
    answer = encore("export", golden_study.probe_run, "--out", out, *options, "--json").json
    seen = {
        "answer": {name: answer[name] for name in ("kind", "labels", "dtype", "weights", "notes")},
        "scheme": answer["scheme"],
        "files": sorted(path.relative_to(out).as_posix() for path in out.rglob("*")),
        "config": json.loads((out / "config.json").read_text()),
        "tensors": tensors_of(out),
    }
    close = {"tensors.score*": PROBED, "config.transformers_version": ANY}
    check_golden(f"export-{kind}", mask_keys_and_paths(seen), close)


def tensors_of(folder: Path) -> dict[str, Any]:
    """Return shape, type and digest of each tensor; for heads the values instead of the digest."""
    from safetensors.numpy import load_file

    tensors: dict[str, Any] = {}
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        is_head = name.startswith("score")
        value = tensor.tolist() if is_head else hashlib.sha256(tensor.tobytes()).hexdigest()[:16]
        tensors[name] = [list(tensor.shape), str(tensor.dtype), value]
    return tensors


def test_a_small_benchmark(golden_study):
    """Score the shipped 80 pairs with the probe's heads under a few schemes, without a gate."""
    answer = encore(
        *("benchmark", golden_study.folder, "--model", golden_study.probe_run),
        *("--benchmark", find_product_file("synthetic-safety.toml")),
        *("--data", find_product_file("synthetic-safety.jsonl.gz")),
        *("--paper", "none", "--num-random", 50, "--tau", 2, "--tau", 0.5),
        *("--scheme", "encore", "--scheme", "top-k", "--scheme", "random", "--scheme", "single"),
        "--json",
    ).json
    check_golden("benchmark", mask_keys_and_paths(answer), TABLE)
    query = "select row from benchmark_rows order by place"
    rows = encore("sql", golden_study.folder, query, "--json").json
    assert [row["row"] for row in rows] == [row["name"] for row in answer["rows"]]


def columns_of(golden_study: GoldenStudy, tables: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return DuckDB's type of each column by table, in one query.

    Args:
        tables: What stands after FROM for each table, view or call, by the name of it.
    """
    parts = [
        f"select '{name}' as name, column_name, column_type from (describe from {table})"  # noqa: S608
        for name, table in tables.items()
    ]
    query = " union all ".join(parts)
    types: dict[str, dict[str, str]] = {name: {} for name in tables}
    for row in encore("sql", golden_study.folder, query, "--json").json:
        types[row["name"]][row["column_name"]] = row["column_type"]
    return types


def test_tables_queries_and_columns_of_sql(golden_study):
    """Compare every table, view and macro of a study with the types of its columns."""
    listed = encore("sql", golden_study.folder, "--list", "--json").json
    types = columns_of(golden_study, {table["name"]: table["name"] for table in listed["tables"]})
    for table in listed["tables"]:
        assert list(types[table["name"]]) == [column["name"] for column in table["columns"]]
    calls, kinds = {}, {}
    for query in listed["queries"]:
        name = query["call"].replace("tau", "2") if query["call"] else query["name"]
        if query["kind"] == "function":
            name = f"(select unnest({name}) from (select 1 as wins, 1 as ties, 1 as losses))"  # noqa: S608
        calls[query["name"]], kinds[query["name"]] = name, {"kind": query["kind"]}
    queries = {
        name: columns | kinds[name] for name, columns in columns_of(golden_study, calls).items()
    }
    check_golden("sql-tables", {"types": types, "queries": queries})


@pytest.mark.parametrize(
    "query", ["entropy_accuracy", "rule_accuracy", "pair_patterns", "head_accuracy"]
)
def test_a_query_of_the_library(golden_study, query):
    golden_study.scored  # noqa: B018 - head_accuracy reads the scores
    rows = encore("sql", golden_study.folder, "--query", query, "--json").json
    if query == "head_accuracy":
        rows = sorted(rows[0])  # its columns; the values are head scores
    check_golden(f"sql-{query}", mask_keys_and_paths(rows))


def test_show_of_a_pair(golden_study):
    pair = read_golden("pairs")["pair_ids"][0]
    answer = encore("show", golden_study.folder, pair, "--json").json
    check_golden("show", mask_keys_and_paths(answer))


@pytest.fixture(scope="module")
def small_benchmark(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a benchmark of the first of each subset's sixteen pairs: definition and data."""
    folder = tmp_path_factory.mktemp("few")
    definition = find_product_file("synthetic-safety.toml").read_text(encoding="utf-8")
    (folder / "few.toml").write_text(definition.replace("num_pairs = 16", "num_pairs = 1"))
    lines = gzip.decompress(find_product_file("synthetic-safety.jsonl.gz").read_bytes()).splitlines(
        True
    )
    (folder / "few.jsonl").write_bytes(b"".join(lines[::16]))
    return folder / "few.toml", folder / "few.jsonl"


@pytest.mark.parametrize("by", ["pair", "rating"])
def test_judging_a_benchmark(golden_study, small_benchmark, tmp_path, by):
    definition, data = small_benchmark
    options = {
        "pair": ("--protocol", "verdict-only"),
        "rating": ("--weights-from", golden_study.folder),
    }
    answer = encore(
        *("judge", *golden_study.judge_options),
        *("--benchmark", definition, "--data", data, "--out", tmp_path / "judged"),
        *("--by", by, *options[by], "--json"),
    ).json
    check_golden(f"judge-by-{by}", mask_keys_and_paths(answer), {**SECONDS, "*version*": ANY})


WAYS_OF_RATING = {
    "expected": ("--decode", "expected"),
    "conversation-first": ("--layout", "conversation-first"),
    "demand-first": ("--layout", "demand-first"),
    "all-rules": ("--layout", "all-rules"),
}
LABELS = (
    {"prompt": "Hello?", "response": "Hi.", "rule": "rejection-of-hate-speech", "label": 1},
    {"prompt": "Hello?", "response": "Go!", "rule": "rejection-of-hate-speech", "label": 0},
)
POOL = """\
rule_id,title,description,source,licence,origin
be-kind,Be kind,Be kind to people.,made-up,CC0-1.0,line 1
be-brief,Be brief,Say no more than is needed.,made-up,CC0-1.0,line 2
"""


def keys_of_ratings(study: Path, judge: tuple[object, ...]) -> dict[str, str]:
    """Rate one pair in other ways and with a judge behind a server; return the run keys."""

    def key_of(*options: object) -> str:
        plan = ("--limit", 1, "--shard-size", 1000)
        rated = encore("rate", study, *options, *plan, "--json").json
        return str(rated["run_key"])

    keys = {name: key_of(*judge, *options) for name, options in WAYS_OF_RATING.items()}
    with mock.patch.dict(os.environ, {"OPENAI_API_KEY": KEY}), serving(HostileServer()) as server:
        served = ("--judge", MODEL, "--backend", "http", "--base-url", server.base_url)
        keys["http"] = key_of(*served)
        keys["http-revision"] = key_of(*served, "--revision", "1")
        keys["choice"] = key_of(*served, "--decode", "choice")
    return keys


def keys_of_questions(folder: Path, judge: tuple[object, ...]) -> dict[str, str]:
    """Judge labelled responses and the importance of a pool's rules; return the run keys."""
    labels, pool = folder / "labels.jsonl", folder / "pool.csv"
    labels.write_text("".join(json.dumps(row) + "\n" for row in LABELS))
    pool.write_text(POOL)
    labelled = encore(
        *("labels", folder / "labelled", labels, *judge, "--shard-size", 1000, "--json")
    ).json
    out = ("--output", folder / "importance")
    asked = encore("rules", "rate-importance", pool, *judge, *out, "--json").json
    return {"labels": Path(labelled["table"]).parent.name, "importance": asked["run_key"]}


def test_run_keys_of_fixed_inputs(golden_study, small_benchmark, tmp_path):
    """If a key must change, docs/changes.md says so and this golden file changes with it."""
    definition, data = small_benchmark
    study = golden_study.copy(tmp_path)
    judge = golden_study.judge_options
    pairs = ("--benchmark", definition, "--data", data)
    labels = ("be-kind", "be-honest", "be-brief")
    classifier = write_tiny_llama(tmp_path / "tiny-classifier", labels=labels)
    reward_model = write_tiny_llama(tmp_path / "tiny-reward-model", labels=("reward",))
    scored = encore("score", study, "--model", classifier, "--max-length", 256, "--json").json
    judged = encore(
        *("judge", *judge, *pairs, "--protocol", "verdict-only", "--out", tmp_path, "--json")
    ).json
    table = tmp_path / "table"
    rows = ("--reward-model", f"tiny={reward_model}", "--max-length", 256, "--paper", "none")
    finished = encore("benchmark", study, *pairs, *rows, "--out", table)
    assert finished.code == 0, finished.err
    keys = {
        "rating": golden_study.rated["run_key"],
        "training": golden_study.probe["run_key"],
        "scores": scored["key"],
        "judging": Path(judged["folder"]).name,
        "table": json.loads((table / "evaluation.json").read_text())["key"],
        **keys_of_ratings(study, judge),
        **keys_of_questions(tmp_path, judge),
    }
    check_golden("run-keys", keys)


def test_an_incomplete_run(golden_study, tmp_path):
    """Commands exit with 3 and use the shards that exist; `rate` then rates the missing one."""
    study = golden_study.copy(tmp_path)
    run = golden_study.rated["run_key"]
    shards = sorted((study / "ratings" / run).glob("*.parquet"))
    shards[-1].unlink()
    status = encore("status", study, "--run", run, "--json")
    analysis = encore("analyze", study, "--json")
    weights = encore("weights", study, "--json")
    assert (status.code, analysis.code, weights.code) == (3, 3, 3)
    assert [encore("weights", study, view).code for view in ("--compare", "--sweep")] == [3, 3]
    again = encore("rate", study, *golden_study.judge_options, "--shard-size", 12, "--json").json
    assert again["run_key"] == run
    again.pop("plan")  # has seconds
    seen = {
        "status": json.loads(status.out)["runs"],
        "provenance": json.loads(weights.out)["provenance"],
        "num_ratings": [rule["num_ratings"] for rule in json.loads(analysis.out)["rules"]],
        "again": again,
    }
    check_golden("incomplete", mask_keys_and_paths(seen), MACHINE)
    assert encore("status", study, "--run", run).code == 0


def test_a_comparison_of_benchmark_rows(golden_study, tmp_path):
    study = golden_study.copy(tmp_path)
    shutil.rmtree(study / "benchmarks", ignore_errors=True)
    benchmark = encore(
        *("benchmark", study, "--model", golden_study.probe_run, "--paper", "none"),
        *("--benchmark", find_product_file("synthetic-safety.toml")),
        *("--data", find_product_file("synthetic-safety.jsonl.gz")),
        *("--scheme", "encore", "--tau", 2, "--scheme", "top-k", "--json"),
    )
    assert benchmark.code == 0, benchmark.err
    answer = encore("compare", study, "--json").json
    check_golden("compare", mask_keys_and_paths(answer), {"*low": 0.05, "*high": 0.05})


def test_a_published_study(golden_study, tmp_path):
    """Compare the data set's files and columns, and the database's tables and macros."""
    database, dataset = tmp_path / "study.duckdb", tmp_path / "rated"
    done = encore("publish", golden_study.folder, "--out", database, "--dataset", dataset)
    assert done.code == 0, done.err
    data = sorted(dataset.rglob("*.parquet"))
    with duckdb.connect(database, read_only=True) as connection:
        tables = connection.execute(
            "select table_name, column_name, data_type from information_schema.columns "
            "order by table_name, ordinal_position"
        ).fetchall()
        macros = connection.execute(
            "select function_name from duckdb_functions() where not internal order by 1"
        ).fetchall()
    column_types: dict[str, dict[str, str]] = {}
    for table, column, data_type in tables:
        if table == "other_ratings":
            continue  # a view that only judge_comparison uses
        column_types.setdefault(table, {})[column] = data_type
    seen = {
        "files": sorted(path.relative_to(dataset).as_posix() for path in dataset.rglob("*.*")),
        "columns": [columns(pq.read_table(path)) for path in data],
        "num_rows": [pq.read_metadata(path).num_rows for path in data],
        "tables": column_types,
        "macros": sorted({name for (name,) in macros}),
    }
    check_golden("published", seen)
