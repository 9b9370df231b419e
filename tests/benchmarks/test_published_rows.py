"""Rows that others published, and our rows as records that others can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from encore.benchmarks import definition as definitions
from encore.benchmarks.benchmark_options import BenchmarkConfig, BenchmarkRunOptions, PairsConfig
from encore.benchmarks.benchmark_table import make_table
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.published_rows import published_rows, write_records
from encore.benchmarks.render_table import render_markdown
from encore.benchmarks.run_benchmark import run_benchmark
from encore.core.errors import InputError
from encore.data.study import open_study
from tests.worlds.tables import benchmark_pairs, make_world, model_row

PAIRS = benchmark_pairs({"refuse": 4, "respond": 4}, source_name="Made up")


def write_record(path: Path, **changes: Any) -> Path:
    """Write a record of version 0.2.1 with a score out of 100 and one of another benchmark's."""
    record = {
        "schema_version": "0.2.1",
        "evaluation_id": "made-up/owner_model/1",
        "retrieved_timestamp": "100.5",
        "source_metadata": {"source_name": "Made up", "source_organization_name": "Institute"},
        "eval_library": {"name": "unknown", "version": "unknown"},
        "model_info": {"name": "owner/model", "id": "owner/model"},
        "evaluation_results": [
            {
                "evaluation_name": name,
                "metric_config": {"lower_is_better": False, "max_score": largest},
                "score_details": {"score": score},
            }
            for name, score, largest in (
                ("Safety", 0.75, 1.0),
                ("refuse", 50, 100),
                ("Maths", 1, 1),
            )
        ],
        **changes,
    }
    path.write_text(json.dumps(record))
    return path


def test_published_rows_are_marked_and_only_the_latest_of_a_model_counts(tmp_path):
    write_record(tmp_path / "a.json")
    earlier = {"retrieved_timestamp": "99", "evaluation_results": []}
    write_record(tmp_path / "b.json", **earlier)
    better = [{
        "evaluation_name": "Safety",
        "metric_config": {},
        "score_details": {"score": 0.9},
    }]  # fmt: skip
    (tmp_path / "deep").mkdir()
    second_model = {"name": "owner/other", "id": "owner/other"}
    write_record(tmp_path / "deep" / "c.json", model_info=second_model, evaluation_results=better)
    write_record(tmp_path / "d.json", source_metadata={"source_name": "Another"})
    rows = published_rows(tmp_path, PAIRS.benchmark)
    assert [row.name for row in rows] == ["owner/other", "owner/model"]  # the best first
    assert rows[1].scores == {"Safety": 0.75, "refuse": 0.5}
    table = make_table([model_row("ours", [1] * 8, pairs=PAIRS)], pairs=PAIRS, published=rows)
    assert [line.kind for line in table.rows] == ["model", "published", "published"]
    lines = render_markdown(table).splitlines()
    [cells] = [line.split("|") for line in lines if "owner/model (as published)" in line]
    assert [cell.strip() for cell in cells[2:6]] == ["50.0", "–", "75.0", "–"]
    assert any("copied from the records given" in line for line in lines)


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_of_two_records_of_a_model_the_latest_counts_in_any_order_of_files(tmp_path, first, second):
    """Times are numbers: 99.5 is before 100.5, although its text comes after."""

    def results(score: float) -> list[dict[str, Any]]:
        return [
            {"evaluation_name": "Safety", "metric_config": {}, "score_details": {"score": score}}
        ]

    for name, timestamp, score in ((first, "99.5", 0.25), (second, "100.5", 0.75)):
        path = tmp_path / f"{name}.json"
        write_record(path, retrieved_timestamp=timestamp, evaluation_results=results(score))
    [row] = published_rows(tmp_path, PAIRS.benchmark)
    assert row.scores == {"Safety": 0.75}


def test_a_file_that_is_no_record_of_the_benchmark_is_refused(tmp_path):
    path = write_record(tmp_path / "a.json")
    with pytest.raises(InputError, match="none of 1 files has the source_name 'RewardBench 2'"):
        published_rows(path, load_benchmark("rewardbench-2"))
    for changes in ({"model_info": {}}, {"retrieved_timestamp": "today"}):
        with pytest.raises(
            InputError,
            match=r"a.json: cannot be read .*; expected a JSON record of every_eval_ever",
        ):
            published_rows(write_record(path, **changes), PAIRS.benchmark)
    with pytest.raises(InputError, match=r"missing.json: cannot be read \(FileNotFoundError"):
        published_rows(tmp_path / "missing.json", PAIRS.benchmark)


def test_our_records_are_read_as_published_rows(tmp_path):
    row = model_row("ours", [1, 1, 1, 0, 1, 1, 0, 0], pairs=PAIRS)
    table = make_table([row], pairs=PAIRS)
    [path] = write_records(tmp_path, table, PAIRS.benchmark, timestamp=1.5)
    [published] = published_rows(path, PAIRS.benchmark)
    assert published.scores == {"Safety": 5 / 8, "refuse": 3 / 4, "respond": 1 / 2}
    record = json.loads(path.read_bytes())
    # Required by version 0.2.1 of the schema.
    required = {"schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata"}
    assert record.keys() == required | {"model_info", "eval_library", "evaluation_results"}
    headline = record["evaluation_results"][0]
    assert headline["source_data"] == {"dataset_name": "Made up", "source_type": "other"}
    interval = headline["score_details"]["uncertainty"]["confidence_interval"]
    assert interval["lower"] < 5 / 8 < interval["upper"]
    assert all(type(text) is str for text in record["model_info"]["additional_details"].values())


def test_the_stage_reads_published_rows_and_writes_records(tmp_path):
    world = make_world(tmp_path, num_rows=4)
    definition = tmp_path / "mine.toml"
    text = Path(definitions.__file__).with_name("generic.toml").read_text(encoding="utf-8")
    definition.write_text(f'{text}source_name = "Made up"\n'.replace("Accuracy", "Safety"))
    config = BenchmarkConfig(
        reward_models=(f"initial={world / 'initial'}",),
        pairs=PairsConfig(benchmark=str(definition), data=world / "rows.jsonl"),
        published=write_record(tmp_path / "record.json"),
    )
    how = BenchmarkRunOptions(records=tmp_path / "records")
    study = open_study(world / "study")
    run = run_benchmark(study, config, how)
    assert [line.name for line in run.table.rows][1:] == ["owner/model (as published)"]
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["initial.json"]
    # Published rows belong to a table's key; a table without them keeps its own.
    plain = config.model_copy(update={"published": None})
    assert run_benchmark(study, plain).out != run.out
    definition.write_text(
        definition.read_text() + 'subsets = [{ name = "refuse", num_rows = 9 }]\n'
    )
    part = config.pairs.model_copy(update={"allow_partial": True})
    with pytest.raises(InputError, match="--records: the pairs are partial"):
        run_benchmark(study, config.model_copy(update={"pairs": part}), how)
