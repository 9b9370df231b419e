"""A figure of a rule is the same number in SQL, in a report, in MLflow and in Prefect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from encore.analysis.analyze import analyze
from encore.data.rating_runs import list_runs
from encore.data.study import open_study
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.weigh import weigh_rules
from tasks import artifacts
from tasks.tracking.study_runs import weighing_run
from tasks.tracking.sync import sync
from tests.golden.command_line import encore
from tests.reports.studies import write_rated_study
from tests.tasks.tracking.conftest import logged
from tests.tasks.tracking.mlflow_store import copy_store

pytestmark = pytest.mark.services

#: Columns of Prefect's table, which are rounded to four decimals, by their names in SQL.
PREFECT_COLUMNS = {
    "entropy_nats": "entropy (nats)",
    "num_levels": "levels",
    "half_accuracy": "half",
    "untied_accuracy": "untied",
    "strict_accuracy": "strict",
    "inclusive_accuracy": "inclusive",
    "tie_rate": "ties",
    "coverage": "coverage",
    "num_ratings": "ratings",
}
#: Figures that the page of a report has in full, for sorting.
PAGE_FIGURES = ("entropy_nats", "half_accuracy", "untied_accuracy", "tie_rate", "coverage")


@pytest.fixture
def study(tmp_path: Path, mlflow_template: Path) -> Path:
    """Return a study of two sources with ties and nulls, and with an empty MLflow store."""
    study = write_rated_study(tmp_path / "study", num_pairs=60)
    copy_store(mlflow_template, study / "mlflow.db")
    return study


def test_a_report_mlflow_and_prefect_show_the_numbers_of_sql(study, tmp_path, monkeypatch):
    rows = encore("sql", study, "from entropy_accuracy where source is null", "--json").json
    expected = {row["rule_id"]: row for row in rows}

    assert encore("report", study, "--out", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for rule_id, row in expected.items():
        cells = re.findall(rf'<th scope="row" data-value="{rule_id}">(.*?)</tr>', page, re.DOTALL)
        [values] = [values for values in map(_values, cells) if str(row["coverage"]) in values]
        assert [str(row[name]) in values for name in PAGE_FIGURES] == [True] * len(PAGE_FIGURES)

    [run_dir] = list_runs(study / "ratings")
    weighed = weigh_rules(study, scheme="encore", options=SchemeOptions())
    (tmp_path / "analysis.json").write_text(encore("analyze", study, "--json").out)
    run = weighing_run(
        open_study(study), run_dir, weighed, analysis_file=tmp_path / "analysis.json"
    )
    sync(study, weighings=[run])
    tracked = logged(study).run().data
    metrics = tracked.metrics
    rows = analyze(study).answers[-1].rows
    note = tracked.tags["mlflow.note.content"].splitlines()[0]
    assert note.startswith("Which rules to trust. ")
    assert [row.rule_id for row in rows if row.rule_id not in note] == []
    for rule_id, row in expected.items():
        assert metrics[f"entropy/{rule_id}"] == row["entropy_nats"]
        assert metrics[f"accuracy/{rule_id}"] == row["half_accuracy"]

    tables = []
    monkeypatch.setattr(artifacts.LiveArtifact, "show", lambda _, table: tables.append(table))
    artifacts.publish_statistics(analyze(study), study=study)
    assert len(tables[0].table) == len(expected)
    for row in tables[0].table:
        for name, column in PREFECT_COLUMNS.items():
            assert row[column] == round(expected[row["rule"]][name], 4)


def _values(html: str) -> set[str]:
    return {*re.findall(r'data-value="([^"]*)"', html)}
