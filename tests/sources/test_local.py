"""Local files: read record by record, and a bad record never takes the others with it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.data.sources import local
from encore.data.sources.local import data_files, read_records
from encore.errors import InputError


def values(path: Path) -> list[object]:
    return [record.value for record in read_records(path)]


def problems(path: Path) -> list[tuple[int, str | None]]:
    return [
        (record.number, record.problem.reason if record.problem else None)
        for record in read_records(path)
    ]


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


RECORDS: list[dict[str, object]] = [{"a": 1}, {"a": "é"}, {"a": [{"b": None}]}]


def as_parquet(path: Path) -> None:
    pq.write_table(pa.table({"a": ["x", "y", "z"], "extra": [1, 2, 3]}), path)


BOM = b"\xef\xbb\xbf"
LINES, ARRAY = lines(*RECORDS), json.dumps(RECORDS, indent=2).encode()
SAME_RECORDS = {
    "lines": ("x.jsonl", LINES),
    "lines in a gzip": ("x.jsonl.gz", gzip.compress(LINES)),
    "upper-case suffix": ("x.JSONL", LINES),
    "lines called json": ("x.json", LINES),
    "array": ("x.json", ARRAY),
    "array in a gzip": ("x.json.gz", gzip.compress(ARRAY)),
    "called gz but unpacked": ("x.jsonl.gz", LINES),
    "gzip without the suffix": ("x.jsonl", gzip.compress(LINES)),
    "two gzip members": ("x.jsonl.gz", gzip.compress(LINES[:9]) + gzip.compress(LINES[9:])),
    "byte order mark": ("x.jsonl", BOM + LINES),
    "byte order mark and array": ("x.json", BOM + ARRAY),
    "Windows line ends": ("x.jsonl", LINES.replace(b"\n", b"\r\n")),
    "no final line end": ("x.jsonl", LINES.rstrip()),
}


@pytest.mark.parametrize(("name", "content"), SAME_RECORDS.values(), ids=SAME_RECORDS)
def test_the_same_records_come_from_every_kind_of_file(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert values(tmp_path / name) == RECORDS


def test_blank_lines_are_no_records_but_count_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('\n{"a": 1}\n  \n\n{"a": 2}\n')
    assert [record.number for record in read_records(path)] == [2, 5]


def test_a_bad_line_is_given_with_its_number_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'{"a": 1}\n{"a": \n{"a": "\xff"}\n' + b"[" * 100_000 + b'\n[1]\n{"a": 1e999}\n{"a": 2}\n'
    )
    assert problems(path) == [
        (1, None),
        (2, "not-json"),
        (3, "not-utf8"),
        (4, "not-json"),
        (5, None),
        (6, None),
        (7, None),
    ]


def test_a_number_of_too_many_digits_is_not_json_for_us(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": ' + "9" * 5000 + "}\n")
    assert problems(path) == [(1, "not-json")]


def test_a_line_longer_than_the_limit_is_skipped_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_RECORD_BYTES", 20)
    path = tmp_path / "x.jsonl"
    # 12 + 8 = 20 bytes with the line end: just allowed.
    exact = b'{"a": "12345678901"}'[:19] + b"\n"
    path.write_bytes(b'{"a": "' + b"x" * 100 + b'"}\n{"a": 2}\n' + exact + b"x" * 41)
    assert problems(path) == [
        (1, "too-long"),
        (2, None),
        (3, "not-json"),
        (4, "too-long"),
    ]


def test_a_record_of_five_megabytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines({"a": "x" * 5_000_000}, {"a": "y"}))
    first, second = values(path)
    assert first == {"a": "x" * 5_000_000}
    assert second == {"a": "y"}


def test_half_a_surrogate_pair_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "\\ud800"}\n')
    (record,) = read_records(path)
    assert record.value == {"a": "\ud800"}
    assert "ud800" in record.excerpt()


@pytest.mark.parametrize("keep", [0.999, 0.5, 0.01])
def test_a_gzip_that_breaks_off_is_an_error(tmp_path: Path, keep: float) -> None:
    whole = gzip.compress(os.urandom(20_000).hex().encode() + b"\n" + lines(*RECORDS))
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(InputError, match=r"x\.jsonl\.gz: the gzip data break off"):
        values(path)


def test_a_damaged_gzip_is_an_error(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(lines(*RECORDS) * 1000))
    whole[-6] ^= 1  # the checksum
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(whole)
    with pytest.raises(InputError, match="damaged"):
        values(path)


def test_parquet_gives_rows_and_only_the_wanted_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    as_parquet(path)
    assert values(path)[0] == {"a": "x", "extra": 1}
    assert [record.value for record in read_records(path, columns=("a",))] == [
        {"a": "x"},
        {"a": "y"},
        {"a": "z"},
    ]


def test_parquet_is_read_in_constant_memory(tmp_path: Path) -> None:
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


def test_a_missing_parquet_column_is_named_with_those_found(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    as_parquet(path)
    with pytest.raises(InputError, match=r"column 'prompt' is missing \(found: a, extra\)"):
        list(read_records(path, columns=("a", "prompt")))


def test_bytes_in_a_parquet_text_that_are_no_utf8_cost_one_row(tmp_path: Path) -> None:
    column = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": column}), path)
    assert problems(path) == [(1, None), (2, "not-utf8"), (3, None)]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all"])
def test_damaged_parquet_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.parquet: no valid Parquet"):
        values(path)


def test_parquet_cut_in_half_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    as_parquet(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=r"x\.parquet"):
        values(path)


def test_a_folder_is_its_data_files_by_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.parquet", "README.md", ".hidden.jsonl", "c.json.gz"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "inner").mkdir()
    names = [path.name for path in data_files(tmp_path)]
    assert names == ["a.parquet", "b.jsonl", "c.json.gz"]


def test_a_folder_without_data_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(InputError, match="no data file in this folder"):
        data_files(tmp_path)


def test_another_kind_of_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a,b")
    with pytest.raises(InputError, match=r"unknown kind of file; expected \.jsonl.*parquet$"):
        data_files(tmp_path / "x.txt")


def test_a_csv_file_is_answered_with_a_conversion_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text('prompt,chosen,rejected\n"a\nb","c, d",e\n')
    with pytest.raises(InputError, match="convert it with: python -c") as caught:
        data_files(Path("x.csv"))
    exec(str(caught.value).split('-c "')[1].rstrip('"'))  # noqa: S102  # what the user pastes
    assert values(Path("x.parquet")) == [{"prompt": "a\nb", "chosen": "c, d", "rejected": "e"}]


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Root may read everything; be somebody else for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_without_read_permission_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines(*RECORDS))
    path.chmod(0)
    with ordinary_user(), pytest.raises(InputError, match=r"x\.jsonl: no permission"):
        values(path)
