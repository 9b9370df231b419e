"""Pairs are ingested from data frames, records, CSV files and saved data sets."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from encore.analysis.analyze import analyze
from encore.core.errors import InputError
from encore.data.ingestion import ingest
from encore.data.sources import file_streams, json_records, local

RECORDS = [
    {"prompt": f"Question {i}, or; not?", "chosen": "Good.", "rejected": "B\nad."} for i in range(3)
]
#: A prompt as messages in one record, as text in the others.
MESSAGES = [{**RECORDS[0], "prompt": [{"role": "user", "content": RECORDS[0]["prompt"]}]}]


def _csv(path: Path, **options: Any) -> Path:
    pd.DataFrame(RECORDS)[["rejected", "prompt", "chosen"]].to_csv(path, **options)
    return path


def _saved(folder: Path) -> Path:
    """Write the folder that `save_to_disk` of `datasets` writes: an Arrow stream and two JSONs."""
    folder.mkdir()
    table = pa.Table.from_pylist(RECORDS)
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    # `map` leaves such a file beside a data set, and so does an earlier save with more files.
    shutil.copy(folder / "data-00000-of-00001.arrow", folder / "cache-1f.arrow")
    files = [{"filename": "data-00000-of-00001.arrow"}]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_every_kind_of_input_gives_the_same_pairs(tmp_path):
    expected = ingest({"mine": RECORDS}, out=str(tmp_path / "expected")).data_digest
    sources = {
        "messages": MESSAGES + RECORDS[1:],
        "pandas": pd.DataFrame(RECORDS),
        "Arrow": pa.Table.from_pylist(RECORDS),
        "CSV with an index": str(_csv(tmp_path / "p.csv")),
        "CSV of a spreadsheet": _csv(
            tmp_path / "s.csv", index=False, sep=";", encoding="utf-8-sig"
        ),
        "tabs": _csv(tmp_path / "t.csv.gz", sep="\t", lineterminator="\r\n"),
        "saved data set": _saved(tmp_path / "saved"),
    }
    for kind, source in sources.items():
        report = ingest({"mine": source}, out=tmp_path / kind)
        assert (kind, report.data_digest) == (kind, expected)
        assert report.sources[0].manifest.num_kept == 3


def test_a_saved_data_set_is_read_as_ratings_and_pairs_are_led_to_ingest(tmp_path: Path) -> None:
    """`analyze` reads its rows; these are pairs, so it says what makes ratings of them."""
    with pytest.raises(InputError, match="preference pairs without ratings; `encore ingest STUDY"):
        analyze(_saved(tmp_path / "saved"))
    assert local.read_saved_dataset(tmp_path / "saved").to_pylist() == RECORDS
    file = tmp_path / "saved" / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"data-00000-of-00001\.arrow: no valid Arrow"):
        local.read_saved_dataset(tmp_path / "saved")
    file.unlink()
    with pytest.raises(InputError, match=r"data-00000-of-00001\.arrow is missing"):
        local.read_saved_dataset(tmp_path / "saved")


def test_several_sources_are_labelled_by_their_names(tmp_path):
    report = ingest({"a": RECORDS[:1], "b": pd.DataFrame(RECORDS[1:])}, out=tmp_path / "labelled")
    counts = {source.manifest.label: source.manifest.num_kept for source in report.sources}
    assert counts == {"a": 1, "b": 2}
    (manifest,) = (source.manifest for source in ingest(RECORDS, out=tmp_path / "plain").sources)
    assert (manifest.label, manifest.origins[0].name, manifest.num_read) == ("table", "table", 3)
    (report,) = ingest([*RECORDS, {"prompt": 1}], out=tmp_path / "bad").sources
    assert report.manifest.set_aside_by_reason == {"wrong-type": 1}


def test_a_record_above_the_limit_is_refused_by_its_line(tmp_path, monkeypatch):
    path = tmp_path / "long.jsonl.gz"
    long = {**RECORDS[0], "chosen": "x" * (1 << 20)}
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, [RECORDS[0], long])).encode()))
    assert len(list(local.read_records(path))) == 2
    for module in (file_streams, json_records):
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", 1 << 20)  # the line is a little longer
    with pytest.raises(InputError, match=r"long\.jsonl\.gz, line 2: longer than 1 MiB"):
        ingest(path, out=tmp_path / "study")
    assert not (tmp_path / "study").exists()
    (tmp_path / "long.json").write_text(json.dumps([RECORDS[0], long]))
    with pytest.raises(InputError, match=r"long\.json, record 2: longer than 1 MiB"):
        ingest(tmp_path / "long.json", out=tmp_path / "study")
