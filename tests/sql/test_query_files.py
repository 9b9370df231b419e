"""The first comment of a file of `sql/` says what the file is, and the file keeps to it."""

from __future__ import annotations

import re

import duckdb
import pytest

from encore.errors import InputError
from encore.query.query_files import query_file, query_files
from encore.query.study_database import definition_of
from encore.query.study_tables import TABLE_DOCS
from encore.warehouse.connection import query_names

FILES = query_files()


@pytest.mark.parametrize("name", query_names())
def test_a_file_says_its_question_its_grain_and_what_it_reads(name: str) -> None:
    file = query_file(name)
    assert file.question.endswith("?")
    assert file.grain.startswith("one row per ")
    assert set(file.reads) <= TABLE_DOCS.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_macro_says_so_and_a_query_does_not(file) -> None:
    creates = re.search(r"^create or replace macro (\w+)\((\w+)\) as table$", file.text, re.M)
    assert file.is_macro == (creates is not None)
    if creates:
        assert creates[1] == file.name
        assert file.call == f"{creates[1]}({creates[2]})"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_reads_no_other_tables_than_it_says(file) -> None:
    with duckdb.connect() as connection:
        for name in file.reads:
            connection.register(name, TABLE_DOCS[name].schema.empty_table())
        connection.execute(definition_of(file))
        shown = f"{file.name}(2)" if file.is_macro else file.name
        assert connection.sql(f"from {shown}").to_arrow_table().num_rows == 0


def test_no_query_has_the_name_of_a_table() -> None:
    assert not set(query_names()) & TABLE_DOCS.keys()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'nonsense'.*rule_histogram"):
        query_file("nonsense")
