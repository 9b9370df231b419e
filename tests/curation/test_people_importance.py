"""People's answers: both layouts are the same answers, and bad files name file, line and value."""

from __future__ import annotations

import pytest

from encore.curation.people_importance import read_answers
from encore.errors import InputError
from tests.curation.principles import write_answers

RULES = ["kind", "honest", "private"]
LONG = [
    "annotator,rule_id,importance",
    *("anna,kind,1", "anna,honest,0.5", "anna,private,0"),
    *("ben,kind,0.2", "ben,honest,0.4", "ben,private,0.6"),
]
WIDE = ["rule_id,title,anna,ben", "kind,=1+1,1,0.2", "honest,b,0.5,.4", "private,c,0.0, 0.60 "]
ANSWERS = {
    "anna": {"kind": 1.0, "honest": 0.5, "private": 0.0},
    "ben": {"kind": 0.2, "honest": 0.4, "private": 0.6},
}


def read(tmp_path, *files, allow_unfinished=False):
    paths = [write_answers(tmp_path / f"{place}.csv", one) for place, one in enumerate(files)]
    return read_answers(paths, RULES, allow_unfinished=allow_unfinished)


@pytest.mark.parametrize("lines", [LONG, WIDE, ["\ufeff" + WIDE[0], "", *WIDE[1:]]])
def test_a_row_per_answer_and_a_column_per_annotator_are_the_same_answers(tmp_path, lines):
    assert read(tmp_path, lines) == ANSWERS


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*LONG, "anna,kindd,1"], r"row 8: unknown rule 'kindd'; did you mean kind\?"),
        ([*LONG, "anna,kind,1"], "row 8: annotator 'anna' rates rule 'kind' a second time"),
        (
            [WIDE[0].replace("ben", "anna"), *WIDE[1:]],
            "header 'rule_id, title, anna, anna'; expected different columns",
        ),
        ([*LONG[:-1], "ben,private,1.1"], "row 7: importance '1.1', expected a number from 0"),
        ([*LONG[:-1], "ben,private,nan"], "row 7: importance 'nan'"),
        ([*LONG[:-1], 'ben,private,"0,6"'], "row 7: importance '0,6'"),
        (LONG[:-1], "annotator 'ben' rated 2 of 3 rules; missing: private; finish the file"),
        ([*WIDE[:-1], "private,c,0.0,"], "annotator 'ben' rated 2 of 3 rules; missing: private"),
        (["rule_id,anna,ben", *(f"{one},1," for one in RULES)], "'ben' rated 0 of 3 rules"),
        ([*LONG, ",kind,1"], "row 8: expected 3 cells, and a name for everybody"),
        ([*LONG, "carl,kind"], "row 8: expected 3 cells"),
        (["annotator,rule_id", "anna,kind"], "header 'annotator, rule_id'; expected"),
        (["rule,anna", "kind,1"], "header 'rule, anna'; expected"),
        (["rule_id,title", "kind,1"], "header 'rule_id, title'; expected"),
        (["rule_id,anna"], "no answer in it"),
        ([], "no answer in it|header ''"),
        ([*LONG, '"anna'], "unexpected end of data; expected a CSV file"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, lines, said):
    with pytest.raises(InputError, match=said):
        read(tmp_path, lines)


def test_one_name_in_two_files_and_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"1.csv, row 2: annotator 'anna' is in .*0.csv too"):
        read(tmp_path, WIDE, LONG)
    for path, said in (
        (tmp_path / "no.csv", "No such file"),
        (tmp_path / "0.csv", "expected a CSV file in UTF-8"),
    ):
        if path.exists():
            path.write_bytes(b"rule_id,\xff\n")
        with pytest.raises(InputError, match=said):
            read_answers([path], RULES, allow_unfinished=False)


def test_an_unfinished_file_is_read_where_that_is_allowed(tmp_path):
    found = read(tmp_path, LONG[:-1], allow_unfinished=True)
    assert found["ben"] == {"kind": 0.2, "honest": 0.4}
