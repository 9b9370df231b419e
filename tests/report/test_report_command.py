"""`encore report`: its files, its JSON, its exit codes, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from encore.cli.report import report as report_command
from encore.errors import EncoreError, InputError
from encore.report.charts import CHARTS
from encore.report.write import report
from tests.report.studies import remove_shard, some_ratings, write_rated_study

PNG = b"\x89PNG\r\n\x1a\n"

app = typer.Typer()
app.command()(report_command)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(some_ratings(), tmp_path / "ratings.parquet")
    return tmp_path / "ratings.parquet"


def test_a_study_s_report_goes_beside_its_run(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study")
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
    assert invoke(file.name).exit_code == 0
    assert (tmp_path / "report" / "report.html").is_file()


def test_the_json_names_files_and_findings(file: Path, tmp_path: Path) -> None:
    result = invoke(file, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert Path(found["page"]).is_file()
    assert set(found["figures"]) == set(CHARTS)
    assert found["missing"] == {}
    assert found["synthetic"] == []
    assert found["num_pairs"] == 240
    assert found["num_ratings"] == 240 * 6 * 2
    assert {verdict["source"] for verdict in found["verdicts"]} == {"all", "hh", "pku"}


def test_the_same_ratings_give_the_same_bytes(file: Path, tmp_path: Path) -> None:
    report(file, out=tmp_path / "one")
    report(file, out=tmp_path / "two")
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_a_new_report_replaces_the_old_one_and_its_figures(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report(file, out=out)
    (out / "mine.txt").write_text("kept")
    written = report(some_ratings(rule_ids=("alone",)), out=out)
    assert "correlations" in written.missing
    assert not (out / "figures" / "correlations.svg").exists()
    assert (out / "mine.txt").read_text() == "kept"


def test_an_incomplete_run_has_a_report_that_says_so_and_code_3(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study")
    remove_shard(study, index=1)
    result = invoke(study, "--out", tmp_path / "out")
    assert result.exit_code == 3
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "INCOMPLETE" in page
    assert "1 of 3 shards" in page


def test_synthetic_data_are_warned_of(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study", sources=("synthetic-hh",))
    result = invoke(study, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "synthetic" in result.stderr
    assert "no evidence" in result.stderr


def test_a_run_is_chosen_by_its_key(tmp_path: Path) -> None:
    study = write_rated_study(tmp_path / "study", judge="one")
    write_rated_study(study, judge="two")
    with pytest.raises(InputError, match="--run"):
        report(study, out=tmp_path / "out")
    [key, _] = sorted(path.name for path in (study / "ratings").iterdir())
    assert report(study, out=tmp_path / "out", run=key).findings.provenance.run_key == key


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
    monkeypatch.setattr("encore.report.write.find_spec", lambda _: None)
    with pytest.raises(EncoreError, match=r"encore-reward\[report\]"):
        report(file, out=tmp_path / "out")


def test_no_machine_s_path_is_in_the_files(file: Path, tmp_path: Path) -> None:
    written = report(file, out=tmp_path / "out")
    for path in (written.page, *(svg for svg, _ in written.figures.values())):
        assert str(tmp_path) not in path.read_text(encoding="utf-8")
