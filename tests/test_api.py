"""`import encore` offers the stages as functions, and loads nothing until one is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import encore
from tests.test_rating import write_source
from tests.tiny_judge import make_tiny_judge


def test_every_name_that_is_offered_is_there():
    for name in encore.__all__:
        assert getattr(encore, name).__doc__
    with pytest.raises(AttributeError, match="no_such_thing"):
        encore.no_such_thing  # noqa: B018 - the access is what is tested


def test_importing_it_loads_no_package_but_itself():
    code = (
        "import sys, encore; "
        "print([name for name in ('pyarrow', 'numpy', 'duckdb', 'torch') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_the_readmes_path_from_pairs_to_weights_in_python(tmp_path: Path):
    source = write_source(tmp_path, num_pairs=4)
    study = tmp_path / "study"
    report = encore.ingest([f"mine={source}"], out=study)
    assert report.sources[0].manifest.num_kept == 4
    judge = make_tiny_judge(tmp_path / "judge")
    config = encore.RatingConfig(
        judge=encore.JudgeConfig(model=str(judge), backend="transformers"), shard_size=3
    )
    assert encore.rate(study, config).summary == "2 rated, 0 reused, 0 failed"
    [status] = encore.status(study)
    assert status.is_complete
    analysis = encore.analyze(study)
    assert sum(rule.num_ratings + rule.num_unparsed for rule in analysis.rules) == 4 * 2 * 10
    vector = encore.weights(study, scheme="encore", tau=2.0)
    assert sum(vector.weights) == pytest.approx(1)
    table = pq.read_table(status.paths[0])
    assert encore.analyze(table).rules
    assert encore.analyze(table.to_pandas()).rules
