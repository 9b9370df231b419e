"""A scoring that local engines share: the same files as of one process."""

from __future__ import annotations

import shutil

import pyarrow.parquet as pq
import pytest

from encore.core.errors import EncoreError
from encore.data.study import open_study
from encore.runs.run_files import run_status
from encore.scoring.head_scores import ScoreManifest
from encore.scoring.scoring_options import ScoreConfig
from encore.scoring.scoring_run import ScoreResult, score_study

pytestmark = pytest.mark.services  # several processes


def rows(result: ScoreResult) -> list[dict[str, object]]:
    paths = run_status(result.out, ScoreManifest).paths
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_two_engines_score_what_one_process_scores(study, model, tmp_path):
    copied_study = shutil.copytree(study, tmp_path / "other")
    options = {"model": str(model), "shard_size": 5}
    single = score_study(open_study(study), ScoreConfig(study=study, **options))
    of_two_engines = score_study(
        open_study(copied_study), ScoreConfig(study=copied_study, engines=2, **options)
    )

    assert of_two_engines.key == single.key
    assert rows(of_two_engines) == rows(single)
    assert (of_two_engines.num_tokens, of_two_engines.split) == (single.num_tokens, single.split)
    assert list((of_two_engines.out / "engines").glob("0-*.json"))  # scored by an engine, not here


def test_a_model_that_no_engine_can_open_is_one_error(study, tmp_path):
    config = ScoreConfig(study=study, engines=2, model=str(tmp_path / "nowhere"))
    with pytest.raises(EncoreError, match=r"engine 1 of 2 could not begin: .*nowhere"):
        score_study(open_study(study), config)
