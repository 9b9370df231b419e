"""`encore report`: its files, its JSON, its exit codes, the same bytes each time."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from encore.data.rating_runs import list_runs
from encore.reports.write_report import CHARTS, default_folder, report
from encore.weighting.label_curve import label_curve
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.weigh import open_evidence
from tests.golden.command_line import Finished, encore
from tests.reports.studies import some_ratings, write_rated_study
from tests.worlds.studies import file_contents, shard_path
from tests.worlds.tables import benchmark_pairs, every_row, write_run

pytestmark = pytest.mark.services

RULES = ("Calm", "Kind", "Open")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return ratings of three rules and one source, which have few panels to draw."""
    path = tmp_path_factory.mktemp("ratings") / "ratings.parquet"
    pq.write_table(some_ratings(rule_ids=RULES, sources=("hh",)), path)
    return path


@pytest.fixture(scope="module")
def written(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Return the result of the command on the file, with its JSON."""
    return encore("report", file, "--out", tmp_path_factory.mktemp("out"), "--json")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_rated_study(tmp_path / "study", titles=RULES, sources=("hh",), num_pairs=210)


def test_the_json_names_files_and_findings(written):
    document = written.json
    folder = Path(document["page"]).parent
    assert file_contents(folder).keys() == {
        "report.html",
        *(f"figures/{name}.{suffix}" for name in CHARTS for suffix in ("svg", "png")),
    }
    assert set(document["figures"]) == set(CHARTS)
    assert (document["missing"], document["synthetic"]) == ({}, [])
    assert (document["num_pairs"], document["num_ratings"]) == (240, 240 * 3 * 2)
    assert {verdict["source"] for verdict in document["verdicts"]} == {"all", "hh"}
    for path in folder.rglob("*"):
        assert path.is_dir() or str(folder).encode() not in path.read_bytes()


def test_the_same_ratings_give_the_same_bytes(file, written, tmp_path):
    report(file, out=tmp_path)
    assert file_contents(tmp_path) == file_contents(Path(written.json["page"]).parent)


@pytest.mark.usefixtures("quick")
def test_the_curve_by_number_of_labels_is_that_of_the_weights_and_goes_with_its_option(tmp_path):
    file = some_ratings(rule_ids=RULES, sources=("hh",), num_pairs=60)
    with open_evidence(file) as evidence:
        curve = label_curve(evidence, SchemeOptions())
    written = report(file, out=tmp_path, label_curve=True)
    assert {*written.figures} == {*CHARTS, "label-curve"}
    page = written.page.read_text(encoding="utf-8")
    for name, estimate in zip(("encore", "uniform"), (curve.encore, curve.uniform), strict=True):
        assert re.search(rf">{name}</th><td[^>]*>{100 * estimate.value:.1f}\s%<", page)
    assert f">fitted, {curve.num_labels[-1]:,} labels<" in page
    assert f"From {curve.num_labels_to_beat} labels on, fitting is better" in page
    report(file, out=tmp_path)
    assert not list(tmp_path.glob("figures/label-curve*"))


@pytest.mark.usefixtures("quick")
def test_a_studys_report_goes_beside_its_run(study, tmp_path):
    [run_dir] = list_runs(study / "ratings")
    result = encore("report", study)
    assert result.code == 0, result.err
    page = study / "reports" / run_dir.name / "report.html"
    assert page.is_file()
    assert str(page) in result.out.replace("\n", "")
    copy = shutil.copytree(run_dir, tmp_path / "elsewhere" / run_dir.name)
    assert default_folder(copy) == Path("report")
    assert default_folder(run_dir) == page.parent


@pytest.mark.usefixtures("quick")
def test_a_new_report_replaces_the_old_one_and_its_figures(study, tmp_path):
    pairs, out = benchmark_pairs(), tmp_path / "out"
    for key in ("a" * 16, "b" * 16):
        write_run(study, every_row(pairs), pairs=pairs, key=key)
    first = report(study, out=out)
    assert {"benchmark-1", "benchmark-2", "ties"} <= set(first.as_dict()["figures"])
    (out / "mine.txt").write_text("kept")
    # A table that cannot be read costs its figure alone.
    (study / "benchmarks" / ("b" * 16) / "table.json").write_text("{}", encoding="utf-8")
    second = report(study, out=out)
    assert "o table of a benchmark" in second.missing["benchmark-2"]
    assert "o table of a benchmark" in second.page.read_text(encoding="utf-8")
    assert {path.stem for path in out.glob("figures/benchmark-*")} == {"benchmark-1"}
    third = report(some_ratings(rule_ids=("alone",)), out=out)
    assert "rule-agreement" in third.missing
    assert not (out / "figures" / "rule-agreement.svg").exists()
    assert not list(out.glob("figures/benchmark-*"))
    assert "benchmarks" not in third.page.read_text(encoding="utf-8").split("<body>")[1].casefold()
    assert (out / "mine.txt").read_text() == "kept"


@pytest.mark.usefixtures("quick")
def test_an_incomplete_run_has_a_report_that_says_so_and_code_3(study, tmp_path):
    shard_path(list_runs(study / "ratings")[0], 1).unlink()
    result = encore("report", study, "--out", tmp_path / "out")
    assert result.code == 3
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "INCOMPLETE" in page
    assert "1 of 3 shards" in page


def test_without_matplotlib_the_page_has_no_charts_and_says_why(file, tmp_path, monkeypatch):
    monkeypatch.setattr("encore.reports.write_report.find_spec", lambda _: None)
    written = report(file, out=tmp_path / "out")
    assert (written.figures, len(written.missing)) == ({}, 7)
    assert next(iter(written.missing.values())).endswith("[report]'")
    page = written.page.read_text(encoding="utf-8")
    assert "<table" in page
    assert page.count("A chart needs matplotlib") == 1


# --- synthetic ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_synthetic_data_are_marked_on_the_page_in_every_figure_and_warned_of(file, tmp_path):
    table = some_ratings(sources=("synthetic-hh",), rule_ids=RULES)
    table = table.append_column("judge", [["synthetic-judge"] * table.num_rows])
    pq.write_table(table, tmp_path / "ratings.parquet")
    result = encore("report", tmp_path / "ratings.parquet", "--out", tmp_path, "--json")
    assert "not evidence" in result.err
    written = result.json
    page = Path(written["page"]).read_text(encoding="utf-8")
    assert "<strong>SYNTHETIC</strong>" in page
    assert "source synthetic-hh, judge synthetic-judge" in page
    for files in written["figures"].values():
        assert "SYNTHETIC" in Path(files["svg"]).read_text(encoding="utf-8")
