"""The page has a section on people and probes only if the study has labels or a probe."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from encore.core.config import part_of
from encore.core.number_text import percent
from encore.data.study import open_study
from encore.judges.judge_options import JudgeConfig
from encore.people.export_sample import export_sample
from encore.people.import_answers import import_answers
from encore.people.judge_labels import judge_labels
from encore.people.people_options import AnnotateExportConfig, AnnotateImportConfig, LabelsConfig
from encore.people.rates_by_rule import ALL_JUDGES, rates_of_study
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import open_run
from encore.reports.write_report import report
from encore.runs.worker import work_through
from tests.people.answering import save_pages
from tests.rules.scripted_probes import RULES, make_study, probe, probe_config, weak_judge
from tests.worlds.studies import write_lines

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def rated_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a rated study, whose judge obeys planted sentences under one rule."""
    study = make_study(tmp_path_factory.mktemp("rated"), num_pairs=40)
    config = part_of(probe_config(study), RatingConfig)
    work_through(open_run(open_study(study), config, judge=weak_judge(obeys=["calm"])).job())
    return study.parent


@pytest.fixture
def study(rated_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(rated_folder, tmp_path / "copy")) / "study"


def section_of(study: Path, *, table: int = 0) -> list[list[str]]:
    """Return the rows of a table of the section; empty if the page has no section."""
    page = report(study, out=study.parent / "report").page.read_text(encoding="utf-8")
    section = re.search(r'<section id="people">(.*?)</section>', page, re.S)
    assert ('href="#people"' in page) == (section is not None)
    tables = re.findall(r"<table.*?</table>", section[1], re.S) if section else [""]
    rows = re.findall(r"<tr>(.*?)</tr>", tables[table], re.S)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


@pytest.mark.usefixtures("quick")
def test_a_probe_and_labels_of_responses_are_shown_beside_entropy(study):
    assert section_of(study) == []  # nobody labelled, and nothing was probed
    judge = weak_judge(obeys=["calm"])
    probe(study, judge, num_pairs=40)
    head, *rows = section_of(study)
    assert head[0] == "rule"
    assert head[-1] == "bought"
    assert [row[0] for row in rows] == [*RULES]
    assert [row[-1] for row in rows] == ["yes", "no", "no", "no"]
    assert all(row[3] == row[4] == "–" for row in rows)
    labels = write_lines(
        study.parent / "labels.jsonl",
        (
            {"prompt": f"Question {n}?", "response": f"Answer {n}", "rule": "kind", "label": n % 2}
            for n in range(20)
        ),
    )
    config = LabelsConfig(
        files=(labels,), judge=JudgeConfig(model="weak"), rules=str(study.parent / "rules.toml")
    )
    kind = judge_labels(study, config, judge=judge).rules[0]
    _, *rows = section_of(study)
    assert [row[3] for row in rows] == ["–", "20", "–", "–"]
    assert rows[1][4] == f"{kind.kappa.value:.2f}".replace("-", "−")


@pytest.mark.usefixtures("quick")
def test_kappas_of_two_annotators_are_shown_beside_the_judge(study):
    config = AnnotateExportConfig(study=study, items=40, annotators=2)
    files = export_sample(open_study(study), config).files
    answers = (lambda item_id, _: str(int(item_id[-1], 16) % 2), lambda *_: "1")
    pages = save_pages(files, study.parent, *answers)
    import_answers(open_study(study), AnnotateImportConfig(study=study, files=pages))
    _, *rows = section_of(study)
    assert sum(int(row[3]) for row in rows) == 40
    # One of the two always says the same, so that people have no kappa.
    assert [row[6] for row in rows] == ["–"] * 4
    head, *rates = section_of(study, table=1)
    assert head[2::2] == ["judge alone", "people alone", "corrected", "a label is worth"]
    study_rates = [row for row in rates_of_study(open_study(study)) if row.who != ALL_JUDGES]
    assert [row[0] for row in rates] == [row.rule_id for row in study_rates]
    assert [row[1] for row in rates] == [str(row.rate.num_labels) for row in study_rates]
    assert [row[6] for row in rates] == [percent(row.rate.corrected.value) for row in study_rates]
