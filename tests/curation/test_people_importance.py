"""People's answers: both layouts are the same answers, and bad files name file, line and value."""

from __future__ import annotations

import pytest

from encore.curation.people_importance import keep_people, people_with, read_people
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
    return people_with(paths, tmp_path / "out", rule_ids=RULES, allow_unfinished=allow_unfinished)


@pytest.mark.parametrize("lines", [LONG, WIDE, ["\ufeff" + WIDE[0], "", *WIDE[1:]]])
def test_a_row_per_answer_and_a_column_per_annotator_are_the_same_answers(tmp_path, lines):
    assert read(tmp_path, lines) == ANSWERS


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*LONG, "anna,kindd,1"], r"line 8: unknown rule 'kindd'; did you mean kind\?"),
        ([*LONG, "anna,kind,1"], "line 8: annotator 'anna' rates rule 'kind' a second time"),
        ([WIDE[0].replace("ben", "anna"), *WIDE[1:]], "two columns 'anna' in its header"),
        ([*LONG[:-1], "ben,private,1.1"], "line 7: importance '1.1', expected a number from 0"),
        ([*LONG[:-1], "ben,private,nan"], "line 7: importance 'nan'"),
        ([*LONG[:-1], 'ben,private,"0,6"'], "line 7: importance '0,6'"),
        (LONG[:-1], "annotator 'ben' rated 2 of 3 rules; missing: private; finish the file"),
        ([*WIDE[:-1], "private,c,0.0,"], "annotator 'ben' rated 2 of 3 rules; missing: private"),
        (["rule_id,anna,ben", *(f"{one},1," for one in RULES)], "'ben' rated 0 of 3 rules"),
        ([*LONG, ",kind,1"], "line 8: no annotator; give everybody a name"),
        ([*LONG, "carl,kind"], "line 8: 2 cells, expected 3"),
        (["annotator,rule_id", "anna,kind"], "only one of the columns annotator and importance"),
        (["rule,anna", "kind,1"], "no column rule_id in its header"),
        (["rule_id,title", "kind,1"], "no annotator's column"),
        (["rule_id,anna", "kind,"], "no answer in it"),
        ([], "no column rule_id in its header"),
        ([*LONG, '"anna'], "not CSV"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_and_nothing_is_kept(tmp_path, lines, said):
    with pytest.raises(InputError, match=said):
        read(tmp_path, lines)
    assert not (tmp_path / "out").exists()


def test_one_name_in_two_files_and_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"1.csv: annotator 'anna' is in .*0.csv too; give every"):
        read(tmp_path, WIDE, LONG)
    for path, said in ((tmp_path / "no.csv", "no such file"), (tmp_path / "0.csv", "not UTF-8")):
        if path.exists():
            path.write_bytes(b"rule_id,\xff\n")
        with pytest.raises(InputError, match=said):
            people_with([path], tmp_path, rule_ids=RULES, allow_unfinished=False)


def test_an_unfinished_file_is_read_where_that_is_allowed(tmp_path):
    found = read(tmp_path, LONG[:-1], allow_unfinished=True)
    assert found["ben"] == {"kind": 0.2, "honest": 0.4}


def test_a_corrected_file_takes_the_place_of_the_first_and_never_of_another_persons(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    path = write_answers(tmp_path / "answers.csv", WIDE)
    keep_people([path], out)
    write_answers(path, [WIDE[0], "kind,a,0,0", *WIDE[2:]])
    assert people_with([path], out, rule_ids=RULES, allow_unfinished=False)["anna"]["kind"] == 0
    keep_people([path], out)
    assert read_people(out, rule_ids=RULES)["ben"]["kind"] == 0
    write_answers(path, ["rule_id,carl", *(f"{one},1" for one in RULES)])
    with pytest.raises(InputError, match=r"has its name and the answers of 'anna', whom it lacks"):
        people_with([path], out, rule_ids=RULES, allow_unfinished=False)
    namesake = tmp_path / "else"
    namesake.mkdir()
    both = [path, write_answers(namesake / "answers.csv", LONG)]
    with pytest.raises(InputError, match=r"two files are called answers.csv; rename one"):
        people_with(both, out, rule_ids=RULES, allow_unfinished=False)
