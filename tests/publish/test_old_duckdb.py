"""DuckDB 1.4, the long-term release, opens a published database and runs all of `sql/` in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from encore.publish.database import publish_database
from encore.query.query_files import query_files
from tests.sql.studies import ask, comparable

_OLD = "duckdb==1.4.*"
#: Runs in the other environment, which has DuckDB and nothing else: path of the database, queries.
_SCRIPT = """
import json, sys
import duckdb
path, queries = sys.argv[1], json.loads(sys.stdin.read())
answers = {}
with duckdb.connect(path, read_only=True) as connection:
    for name, text in queries.items():
        answers[name] = connection.execute(text).fetchall()
with duckdb.connect(path) as connection:
    connection.execute(open(sys.argv[2], encoding="utf-8").read())
    answers["macro, created anew"] = connection.execute("from weights_at(2)").fetchall()
print(json.dumps({"version": duckdb.__version__, "answers": answers}))
"""


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", _OLD]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        reason = (installed.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"{_OLD} cannot be installed here: {reason}")
    return python


@pytest.mark.full
def test_duckdb_1_4_opens_it_and_answers_as_the_new_one_does(
    old_python: Path, two_runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study.duckdb"
    written = publish_database(two_runs, out=out, judge="one")
    queries = {f"view {name}": f"from {name}" for name in (*written.views, *written.tables)}
    for file in query_files():
        text = "from weights_at(2)" if file.is_macro else file.text
        queries[f"file {file.name}"] = text
    macro = tmp_path / "weights_at.sql"
    macro.write_text(next(file.text for file in query_files() if file.is_macro), encoding="utf-8")
    ran = subprocess.run(
        [old_python, "-c", _SCRIPT, out, macro],
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["version"].startswith("1.4.")
    answers = answer["answers"]
    for name, text in queries.items():
        if name.removeprefix("view ") in ("other_ratings", "provenance"):
            assert answers[name]
            continue
        expected = json.loads(json.dumps(ask(two_runs, text, judge="one")))
        assert comparable(answers[name]) == comparable(expected), name
    assert comparable(answers["macro, created anew"]) == comparable(answers["file weights_at"])
