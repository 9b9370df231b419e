"""People's answers: a column per annotator; an error names file, line and value."""

from __future__ import annotations

import pytest

from encore.core.errors import InputError
from encore.rules.people_importance import read_answers
from tests.rules.principles import write_text_lines

RULES = ["kind", "honest", "private"]
LINES = ["rule_id,title,anna,ben", "kind,=1+1,1,0.2", "honest,b,0.5,.4", "private,c,0.0, 0.60 "]
ANSWERS = {
    "anna": {"kind": 1.0, "honest": 0.5, "private": 0.0},
    "ben": {"kind": 0.2, "honest": 0.4, "private": 0.6},
}


def read(tmp_path, *files):
    paths = [
        write_text_lines(tmp_path / f"{index}.csv", lines) for index, lines in enumerate(files)
    ]
    return read_answers(paths, RULES)


@pytest.mark.parametrize("lines", [LINES, ["\ufeff" + LINES[0], "", *LINES[1:]]])
def test_a_column_per_annotator_is_their_answers(tmp_path, lines):
    assert read(tmp_path, lines) == ANSWERS


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([*LINES, "kindd,d,1,1"], r"line 5: unknown rule 'kindd'; did you mean kind\?"),
        ([*LINES, "kind,d,1,1"], "line 5: rule 'kind' a second time"),
        ([*LINES[:-1], "private,c,0,1.1"], "line 4: importance '1.1', expected a number from 0"),
        ([*LINES[:-1], "private,c,0,nan"], "line 4: importance 'nan'"),
        ([*LINES[:-1], 'private,c,0,"0,6"'], "line 4: importance '0,6'"),
        (["rule_id,anna,ben", "kind,1,", "honest,1,"], "annotator 'ben' rated no rule"),
        (["rule,anna", "kind,1"], "columns 'rule, anna', 1 rows; expected"),
        (["rule_id,title", "kind,1"], "columns 'rule_id, title', 1 rows; expected"),
        (["rule_id,anna,", "kind,1,"], "columns 'rule_id, anna, ', 1 rows; expected"),
        (["rule_id,anna"], "columns '', 0 rows; expected"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, lines, problem):
    with pytest.raises(InputError, match=problem):
        read(tmp_path, lines)


def test_an_annotator_in_two_files_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"1.csv: annotator 'anna' is in another file too"):
        read(tmp_path, LINES, LINES)


@pytest.mark.parametrize("last", ["private,c,0.0,", "private,c,0.0"])
def test_a_rule_that_an_annotator_did_not_rate_is_missing(tmp_path, last):
    answers = read(tmp_path, [*LINES[:-1], last])
    assert answers == {"anna": ANSWERS["anna"], "ben": {"kind": 0.2, "honest": 0.4}}
