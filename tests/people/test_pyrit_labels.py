"""`encore labels`: the scores of people that the package PyRIT has, in a wheel or unpacked."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from encore.core.errors import InputError
from encore.data.study import LABELS_DIR
from encore.judges.judge_options import JudgeConfig
from encore.people.judge_labels import LabelManifest, judge_labels
from encore.people.labelled_responses import read_labels
from encore.people.people_options import LabelsConfig
from encore.rating.rating_options import ReplyOptions
from encore.runs.manifest import read_manifest
from tests.worlds.judges import ScriptedJudge

#: A wheel of pyrit (`pip download pyrit --no-deps`); its texts are not ours to ship.
WHEEL_VARIABLE = "ENCORE_PYRIT_WHEEL"
RULES = Path("examples/pyrit_rules.toml").resolve()
#: Invented tables in the form of PyRIT's, which open with lines of comments.
TABLES = {
    "harm/spite.csv": (
        "# dataset_version=1.0, harm_definition=spite.yaml,,\n"
        "harm_category,objective,assistant_response,human_score_1,human_score_2,human_score_3,"
        "data_type\n"
        'SELF_HARM,"Say\u2028""no"".","One\nline,\x85two",0.25,1,0.75,text\n'
        "self_harm,Again?,Yes.,0.5,0,,text\n"
        "self_harm,Look?,picture.png,1,1,1,image_path\n"
    ),
    "harm/mini_spite.csv": "objective,assistant_response,human_score\nAgain?,Yes.,1\n",
    "refusal_scorer/refusal.csv": (
        "# dataset_version=1.2\n# Two lines.\n"
        "objective,assistant_response,human_score,data_type\nSing.,I will not.,1,text\n"
    ),
    "objective/spite.csv": "objective,assistant_response,human_score\nDo it.,Done.,1\n",
}


def write_tables(folder: Path, tables: dict[str, str] = TABLES) -> Path:
    """Write tables into a folder ``scorer_evals``, and return it."""
    for name, text in tables.items():
        path = folder / "scorer_evals" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder / "scorer_evals"


def test_a_wheel_and_its_folder_have_the_middle_score_of_the_raters(tmp_path):
    folder = write_tables(tmp_path)
    wheel = tmp_path / "pyrit-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in TABLES.items():
            archive.writestr(f"pyrit/datasets/scorer_evals/{name}", text)
    rows = read_labels([folder])
    assert read_labels([wheel]) == rows
    # 0.75 lies between 0.25 and 1; of 0 and 0.5 the lower one counts. The sample repeats rows.
    labels = [(row.source, row.rule_id, row.label) for row in rows]
    assert labels == [
        ("spite", "self-harm", 0.75),
        ("spite", "self-harm", 0.0),
        ("refusal", "refusal", 1.0),
    ]
    assert rows[0].pair.chosen == "One\nline,\x85two"
    assert rows[0].pair.prompt[0].content == 'Say\u2028"no".'


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({}, "no table in a folder harm or refusal_scorer"),
        ({"objective/a.csv": "objective\n"}, "no table in a folder"),
        (
            {"harm/a.csv": "objective,human_score\nSing.,1\n"},
            "a.csv: KeyError 'assistant_response'",
        ),
        (
            {"harm/a.csv": "objective,assistant_response,human_score\nSing.,No.,high\n"},
            "a.csv: ValueError could not convert",
        ),
        ({"harm/a.csv": "objective,assistant_response,human_score\nSing.,No.,7\n"}, "label 7.0"),
        ({"harm/a.csv": 'objective\n"Sing.'}, "a.csv: Error unexpected end of data"),
    ],
)
def test_tables_of_another_form_are_refused(tmp_path, tables, problem):
    (tmp_path / "scorer_evals").mkdir()
    with pytest.raises(InputError, match=problem):
        read_labels([write_tables(tmp_path, tables)])


def test_a_wheel_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.whl").write_text("no")
    with pytest.raises(InputError, match="not a zip file; get the wheel again"):
        read_labels([tmp_path / "a.whl"])


def test_a_judge_rates_a_response_under_the_rules_that_share_responses_alone(tmp_path):
    judge = ScriptedJudge(lambda _: "1")
    config = LabelsConfig(
        files=(write_tables(tmp_path),), judge=JudgeConfig(model="scripted"), rules=str(RULES)
    )
    report = judge_labels(tmp_path / "study", config, ReplyOptions(), judge=judge)
    assert judge.num_asked == 3  # two responses about harm and one about refusal
    assert [(rule.rule_id, rule.num_ratings) for rule in report.rules] == [
        ("self-harm", 2),
        ("refusal", 1),
    ]
    files = (tmp_path / "study" / LABELS_DIR).glob(f"*/{LabelManifest.FILE}")
    manifests = [read_manifest(file.parent, LabelManifest) for file in files]
    assert {manifest.rule_ids for manifest in manifests} == {("self-harm",), ("refusal",)}


def test_the_labels_of_the_package_are_those_of_eight_categories_and_of_refusals():
    wheel = Path(os.environ.get(WHEEL_VARIABLE, ""))
    if not wheel.is_file():
        pytest.skip(f"{WHEEL_VARIABLE} names no wheel of pyrit")
    rows = read_labels([wheel])
    assert Counter(row.rule_id for row in rows) == {
        "exploits": 80,
        "hate-speech": 59 + 199,
        "information-integrity": 76,
        "privacy": 93,
        "representational": 29,
        "self-harm": 93,
        "sexual-content": 78,
        "violence": 96 + 187,
        "refusal": 105 + 64,
    }
    assert {row.label for row in rows} == {0, 0.25, 0.5, 0.75, 1}
