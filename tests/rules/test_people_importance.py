"""People's answers: a column per annotator, and bad files name file, line and value."""

from __future__ import annotations

import pytest

from encore.core.errors import InputError
from encore.rules.people_importance import read_answers
from tests.rules.principles import write_answers

RULES = ["kind", "honest", "private"]
LINES = ["rule_id,title,anna,ben", "kind,=1+1,1,0.2", "honest,b,0.5,.4", "private,c,0.0, 0.60 "]
ANSWERS = {
    "anna": {"kind": 1.0, "honest": 0.5, "private": 0.0},
    "ben": {"kind": 0.2, "honest": 0.4, "private": 0.6},
}


def read(tmp_path, *files):
    paths = [write_answers(tmp_path / f"{place}.csv", one) for place, one in enumerate(files)]
    return read_answers(paths, RULES)


@pytest.mark.parametrize("lines", [LINES, ["\ufeff" + LINES[0], "", *LINES[1:]]])
def test_a_column_per_annotator_is_their_answers(tmp_path, lines):
    assert read(tmp_path, lines) == ANSWERS


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*LINES, "kindd,d,1,1"], r"line 5: unknown rule 'kindd'; did you mean kind\?"),
        ([*LINES, "kind,d,1,1"], "line 5: rule 'kind' a second time"),
        ([LINES[0].replace("ben", "anna"), *LINES[1:]], "column 'anna' is there twice"),
        ([*LINES[:-1], "private,c,0,1.1"], "line 4: importance '1.1', expected a number from 0"),
        ([*LINES[:-1], "private,c,0,nan"], "line 4: importance 'nan'"),
        ([*LINES[:-1], 'private,c,0,"0,6"'], "line 4: importance '0,6'"),
        ([*LINES[:-1], "private,c,0,0,6"], "line 4: more cells than the header has columns"),
        (["rule_id,anna,ben", *(f"{one},1," for one in RULES)], "annotator 'ben' rated no rule"),
        (["rule,anna", "kind,1"], "columns 'rule, anna', 1 rows; expected"),
        (["rule_id,title", "kind,1"], "columns 'rule_id, title', 1 rows; expected"),
        (["rule_id,anna,", "kind,1,"], "columns 'rule_id, anna, ', 1 rows; expected"),
        (["rule_id,anna"], "columns '', 0 rows; expected"),
        ([*LINES, '"anna'], "unexpected end of data .after line 4.; expected a CSV file"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, lines, said):
    with pytest.raises(InputError, match=said):
        read(tmp_path, lines)


def test_one_name_in_two_files_and_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"1.csv: annotator 'anna' is in another file too"):
        read(tmp_path, LINES, LINES)
    with pytest.raises(InputError, match="No such file"):
        read_answers([tmp_path / "no.csv"], RULES)
    (tmp_path / "0.csv").write_bytes(b"rule_id,\xff\n")
    with pytest.raises(InputError, match="expected a CSV file in UTF-8"):
        read_answers([tmp_path / "0.csv"], RULES)


@pytest.mark.parametrize("last", ["private,c,0.0,", "private,c,0.0"])
def test_what_is_not_rated_is_missing(tmp_path, last):
    found = read(tmp_path, [*LINES[:-1], last])
    assert found == {"anna": ANSWERS["anna"], "ben": {"kind": 0.2, "honest": 0.4}}
