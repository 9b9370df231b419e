"""`encore report`: its files, its JSON, its exit codes, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from encore.cli.report import report as report_command
from encore.errors import EncoreError, InputError
from encore.report.findings import gather
from encore.report.write_report import CHARTS, default_folder, report
from tests.cli.invoking import Command, Result
from tests.report.studies import remove_shard, some_ratings, write_rated_study

PNG = b"\x89PNG"
RULES = ("Calm", "Kind", "Open")

invoke = Command(report_command)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few rules of one source: few panels to draw."""
    path = tmp_path_factory.mktemp("ratings") / "ratings.parquet"
    pq.write_table(some_ratings(rule_ids=RULES, sources=("hh",)), path)
    return path


@pytest.fixture(scope="module")
def written(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The command on it, with its JSON."""
    return invoke(file, "--out", tmp_path_factory.mktemp("out"), "--json")


@pytest.mark.usefixtures("quick")
def test_a_study_s_report_goes_beside_its_run(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study", titles=RULES, sources=("hh",))
    [run_dir] = (study / "ratings").iterdir()
    result = invoke(study)
    assert result.exit_code == 0, result.stderr
    folder = study / "reports" / run_dir.name
    assert (folder / "report.html").is_file()
    assert str(folder / "report.html") in result.stdout.replace("\n", "")
    assert set(digests(folder)) == {
        "report.html",
        *(f"figures/{name}.{suffix}" for name in CHARTS for suffix in ("svg", "png")),
    }
    for path in folder.glob("figures/*.png"):
        assert path.read_bytes().startswith(PNG)


def test_a_ratings_file_needs_no_study(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_folder(file) == Path("report")


def test_the_json_names_files_and_findings(written: Result) -> None:
    assert written.exit_code == 0
    found = json.loads(written.stdout)
    assert Path(found["page"]).is_file()
    assert set(found["figures"]) == set(CHARTS)
    assert found["missing"] == {}
    assert found["synthetic"] == []
    assert found["num_pairs"] == 240
    assert found["num_ratings"] == 240 * 3 * 2
    assert {verdict["source"] for verdict in found["verdicts"]} == {"all", "hh"}


def test_the_same_ratings_give_the_same_bytes(file: Path, written: Result, tmp_path: Path) -> None:
    first = Path(json.loads(written.stdout)["page"]).parent
    report(file, out=tmp_path)
    assert digests(tmp_path) == digests(first)


@pytest.mark.usefixtures("quick")
def test_a_new_report_replaces_the_old_one_and_its_figures(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "figures").mkdir(parents=True)
    (out / "figures" / "correlations.svg").write_text("of another day")
    (out / "report.html").write_text("of another day")
    (out / "mine.txt").write_text("kept")
    written = report(some_ratings(rule_ids=("alone",)), out=out)
    assert "correlations" in written.missing
    assert not (out / "figures" / "correlations.svg").exists()
    assert (out / "mine.txt").read_text() == "kept"
    assert "another day" not in written.page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("quick")
def test_an_incomplete_run_has_a_report_that_says_so_and_code_3(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study", titles=RULES, sources=("hh",))
    remove_shard(study, index=1)
    result = invoke(study, "--out", tmp_path / "out")
    assert result.exit_code == 3
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "INCOMPLETE" in page
    assert "1 of 3 shards" in page


@pytest.mark.usefixtures("quick")
def test_synthetic_data_are_warned_of(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study", titles=RULES, sources=("synthetic-hh",))
    result = invoke(study, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "synthetic" in result.stderr
    assert "no evidence" in result.stderr


def test_a_run_is_chosen_by_its_key(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study", judge="one")
    write_rated_study(study, judge="two")
    with pytest.raises(InputError, match="--run"):
        report(study, out=tmp_path / "out")
    for key in (path.name for path in (study / "ratings").iterdir()):
        assert gather(study, run=key).provenance.run_key == key
        assert default_folder(study, run=key) == study / "reports" / key


def test_a_run_s_folder_without_its_study_gets_its_report_here(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study")
    [run_dir] = (study / "ratings").iterdir()
    copy = tmp_path / "elsewhere" / run_dir.name
    shutil.copytree(run_dir, copy)
    assert default_folder(copy) == Path("report")
    assert default_folder(run_dir) == study / "reports" / run_dir.name


def test_a_file_in_the_folder_s_place_is_one_line(file: Path) -> None:
    result = invoke(file, "--out", file)
    assert isinstance(result.exception, InputError)
    assert "is a file" in str(result.exception)


def test_no_ratings_are_one_line(tmp_path: Path) -> None:
    result = invoke(tmp_path / "nothing")
    assert isinstance(result.exception, InputError)


def test_a_missing_package_names_the_extra(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encore.report.write_report.find_spec", lambda _: None)
    with pytest.raises(EncoreError, match=r"encore-reward\[report\]"):
        report(file, out=tmp_path / "out")


def test_no_machine_s_path_is_in_the_files(file: Path, written: Result) -> None:
    folder = Path(json.loads(written.stdout)["page"]).parent
    for path in (*folder.glob("*.html"), *folder.glob("figures/*.svg")):
        text = path.read_text(encoding="utf-8")
        assert str(file.parent) not in text
        assert str(folder) not in text
