"""Local files are read record by record, and a bad record does not stop the reading."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from encore.core.errors import InputError
from encore.data.sources.local import data_files, read_records
from tests.worlds.refusals import assert_refused

RECORDS: list[dict[str, object]] = [{"a": 1}, {"a": "é"}, {"a": [{"b": None}]}]


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def values(path: Path) -> list[object]:
    return [record.value for record in read_records(path)]


def problems(path: Path) -> list[tuple[int, str | None]]:
    return [
        (record.number, record.problem and record.problem.reason) for record in read_records(path)
    ]


def table_file(path: Path) -> Path:
    pq.write_table(pa.table({"a": ["x", "y", "z"], "extra": [1, 2, 3]}), path)
    return path


BOM = b"\xef\xbb\xbf"
LINES = b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS)
ARRAY = json.dumps(RECORDS, indent=2).encode()
ZSTD = bytes(pa.compress(LINES, "zstd", asbytes=True))
PRETTY = b"\n".join(json.dumps(record, indent=2).encode() for record in RECORDS)
COLUMNS = {"a": {str(number): record["a"] for number, record in enumerate(RECORDS)}}
SAME_RECORDS = {
    "array in lines": ("x.jsonl", b"[\n" + b",\n".join(LINES.splitlines()) + b"\n]\n"),
    "array in one line": ("x.jsonl", json.dumps(RECORDS).encode() + b"\n\n"),
    "indented values": ("x.json", PRETTY),
    "indented values called jsonl": ("x.jsonl", PRETTY),
    "wrapped": ("x.json", json.dumps({"version": "1", "data": RECORDS}, indent=1).encode()),
    "wrapped in one line": ("x.jsonl", b"\n" + json.dumps({"rows": RECORDS}).encode()),
    "columns as pandas writes them": ("x.json", json.dumps(COLUMNS).encode()),
    "text sequence": ("x.jsonl", b"".join(b"\x1e" + line + b"\n" for line in LINES.splitlines())),
    "ndjson": ("x.ndjson", LINES),
    "xz": ("x.jsonl.xz", lzma.compress(LINES)),
    "bzip2": ("x.ndjson.bz2", bz2.compress(LINES)),
    "zstd": ("x.jsonl.zst", ZSTD),
    "array in xz": ("x.json.xz", lzma.compress(ARRAY)),
    "UTF-16 with a mark": ("x.jsonl", LINES.decode().encode("utf-16")),
    "UTF-16 without a mark": ("x.json", ARRAY.decode().encode("utf-16-be")),
    "UTF-16 in gzip": ("x.jsonl.gz", gzip.compress(LINES.decode().encode("utf-16"))),
    "UTF-32": ("x.jsonl", LINES.decode().encode("utf-32")),
    "lines": ("x.jsonl", LINES),
    "lines in a gzip": ("x.jsonl.gz", gzip.compress(LINES)),
    "lines called json": ("x.json", LINES),
    "array": ("x.json", ARRAY),
    "array in a gzip": ("x.json.gz", gzip.compress(ARRAY)),
    "called gz but unpacked": ("x.jsonl.gz", LINES),
    "gzip without the suffix": ("x.jsonl", gzip.compress(LINES)),
    "two gzip members": ("x.jsonl.gz", gzip.compress(LINES[:9]) + gzip.compress(LINES[9:])),
    "byte order mark": ("x.jsonl", BOM + LINES),
    "Windows line ends": ("x.jsonl", LINES.replace(b"\n", b"\r\n")),
}


@pytest.mark.parametrize(("name", "content"), SAME_RECORDS.values(), ids=SAME_RECORDS)
def test_the_same_records_come_from_every_kind_of_file(tmp_path, name, content):
    assert values(written(tmp_path, name, content)) == RECORDS


def test_tables_of_cells_and_arrow_are_read_by_their_content(tmp_path):
    rows = [{"a": "x", "b": "1"}, {"a": "é, ü", "b": "2"}]
    tabs, commas = "a\tb\nx\t1\né, ü\t2\n", 'a,b\nx,1\n"é, ü",2\n'
    contents = {
        "x.tsv": tabs.encode(),
        "x.csv": tabs.encode("utf-16"),  # what Excel calls Unicode text
        "y.csv": BOM + commas.encode(),
        "x.csv.bz2": bz2.compress(commas.encode()),
        "x.tsv.zst": bytes(pa.compress(tabs.encode(), "zstd", asbytes=True)),
    }
    for name, content in contents.items():
        assert values(written(tmp_path, name, content)) == rows, name
    table = pa.Table.from_pylist(rows)
    feather.write_feather(table, tmp_path / "x.feather", compression="zstd")
    with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "y.arrow").write_bytes((tmp_path / "x.feather").read_bytes())
    pq.write_table(table, tmp_path / "x.json")  # the name is wrong
    for name in ("x.feather", "x.arrow", "y.arrow", "x.json"):
        assert values(tmp_path / name) == rows, name


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.csv", b"PK\x03\x04....", "a ZIP archive or an Excel workbook"),
        ("x.jsonl", b"SQLite format 3\0", "an SQLite database"),
        (
            "x.json",
            json.dumps({"train": RECORDS, "test": RECORDS}).encode(),
            "several lists of rec",
        ),
        ("x.jsonl.xz", lzma.compress(LINES)[:-9], "reading failed"),
        ("x.jsonl.zst", ZSTD[:-9], "reading failed"),
        ("x.jsonl", LINES.decode().encode("utf-16")[:-1], "reading failed .*truncated"),
        ("x.feather", b"ARROW1\0\0 cut", "no valid Arrow"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, problem):
    path = written(tmp_path, name, content)
    assert_refused(problem, values, path)


def test_a_bad_line_is_numbered_and_the_next_line_is_read(tmp_path):
    deep, long = b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"
    rows = [b"", b'{"a": 1}', b"  ", b'{"a": ', b'{"a": "\xff"}', deep, b"[1]", b'{"a": 1e999}']
    content = b"\n".join([*rows, long, b'{"a": 2}', b""])
    # Blank lines are no records but count as lines.
    bad = {4: "not-json", 5: "not-utf8", 6: "not-json", 9: "not-json"}
    expected = [(number, bad.get(number)) for number in (2, *range(4, 11))]
    assert problems(written(tmp_path, "x.jsonl", content)) == expected


def test_lines_that_end_with_a_carriage_return_alone_are_refused_with_advice(tmp_path):
    path = written(tmp_path, "x.jsonl", b'{"a": 1}\r{"a": 2}\r')
    [record] = read_records(path)
    assert record.problem is not None
    assert "carriage return alone" in str(record.problem)


@pytest.mark.parametrize("kept_share", [0.999, 0.01])
def test_an_incomplete_or_damaged_gzip_is_an_error(tmp_path, kept_share):
    content = gzip.compress(os.urandom(20_000).hex().encode() + b"\n" + LINES)
    path = written(tmp_path, "x.jsonl.gz", content[: int(len(content) * kept_share)])
    assert_refused(r"x\.jsonl\.gz: reading failed", values, path)
    path.write_bytes(content[:-6] + bytes([content[-6] ^ 1]) + content[-5:])  # the checksum
    assert_refused("reading failed", values, path)


@pytest.mark.parametrize("text", [b"[", b"[1, ]", b"[1] 2", b'["\xff"]', b"[" * 100_000])
def test_invalid_arrays_are_refused(tmp_path, text):
    assert_refused(r"x\.json: not valid JSON", values, written(tmp_path, "x.json", text))


def test_only_the_requested_columns_of_parquet_are_read(tmp_path):
    path = table_file(tmp_path / "x.parquet")
    assert values(path)[0] == {"a": "x", "extra": 1}
    column = [record.value for record in read_records(path, columns=("a",))]
    assert column == [{"a": "x"}, {"a": "y"}, {"a": "z"}]
    assert [record.value for record in read_records(path, columns=("a", "prompt"))] == column


def test_parquet_is_read_in_constant_memory(tmp_path):
    # 40 row groups of 1 MB that do not compress; reading may hold one of them and its buffers.
    path = tmp_path / "x.parquet"
    schema = pa.schema([("a", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(40):
            rows = [os.urandom(2500).hex() for _ in range(200)]
            writer.write_table(pa.table({"a": rows}, schema=schema))
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in read_records(path))
    assert most < 6_000_000


def test_few_rows_of_large_values_that_a_dictionary_repeats_are_decoded_at_once(tmp_path):
    # 2,000 rows of one value of 1 MB: 2 GB, and about 10 kB in the file. At most 32 of them, those
    # of 32 MiB, are decoded at once; before it were 256.
    path = tmp_path / "x.parquet"
    indices = pa.array([0] * 2000, pa.int32())
    values_of_file = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"a": values_of_file}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 20_000
    before, num_rows, most = pa.total_allocated_bytes(), 0, 0
    for record in read_records(path):
        num_rows += len(record.value["a"]) == 1 << 20
        most = max(most, pa.total_allocated_bytes() - before)
    assert num_rows == 2000
    assert most < 80 << 20


def test_a_parquet_text_that_is_not_utf8_is_one_bad_record(tmp_path):
    column = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": column}), path)
    assert problems(path) == [(1, None), (2, "not-utf8"), (3, None)]


def test_damaged_parquet_is_an_error(tmp_path):
    cut = table_file(tmp_path / "whole.parquet").read_bytes()[:200]
    for content in (b"", b"not parquet at all", cut):
        with pytest.raises(InputError, match=r"x\.parquet: no valid Parquet"):
            values(written(tmp_path, "x.parquet", content))


def test_the_data_files_of_a_folder_are_sorted_by_name(tmp_path):
    (tmp_path / "inner").mkdir()
    text = written(tmp_path, "README.md", b"")
    for path in (tmp_path, text):
        assert_refused(r"no data file; expected .*parquet", data_files, path)
    for name in ("b.jsonl", "a.parquet", ".hidden.jsonl", "c.json.gz"):
        written(tmp_path, name, b"")
    assert [path.name for path in data_files(tmp_path)] == ["a.parquet", "b.jsonl", "c.json.gz"]
