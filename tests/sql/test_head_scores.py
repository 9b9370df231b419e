"""Head scores in SQL: what the files hold, a row for each head, and nothing that is not whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from encore.errors import EncoreError
from encore.model.opening import OpenedModel, open_reward_model
from encore.publish.database import publish_database
from encore.query.sql_query import run_query
from encore.runs import shard_path
from encore.scoring.head_accuracy import head_accuracies
from encore.scoring.head_scores import read_head_scores
from encore.scoring.score_files import choose_scores
from tests.scoring.models import make_model
from tests.scoring.models import score as score_study
from tests.sql.studies import NUM_PAIRS, make_pairs, rate_study

ALL_PAIRS = sum(NUM_PAIRS.values())
HEADS = ("it's kind", 'a "quoted" head')


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    """Two heads whose names would be trouble in SQL."""
    return open_reward_model(make_model(tmp_path_factory.mktemp("m") / "model", head_ids=HEADS))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_pairs(tmp_path)


def ask(study: Path, sql: str):
    with run_query(study, sql) as result:
        return list(result.rows()), result.num_missing_shards


def test_every_score_is_a_row(study, opened):
    scores = read_head_scores(score_study(study, opened, shard_size=5).out)
    rows, num_missing = ask(
        study, "select source, pair_id, response, head_id, score, model, subset from head_scores"
    )
    assert num_missing == 0
    assert len(rows) == ALL_PAIRS * 2 * len(HEADS)
    place = {
        key: row for row, key in enumerate(zip(scores.source_P, scores.pair_id_P, strict=True))
    }
    for source, pair_id, response, head_id, score, model, subset in rows:
        found = scores.score_P2R[
            place[source, pair_id], int(response == "rejected"), HEADS.index(head_id)
        ]
        assert score == found
        assert (model, subset) == ("model", None)


def test_head_accuracy_is_what_numpy_says(study, opened):
    score_study(study, opened)
    rows, _ = ask(
        study,
        "select head_id, sum(num_pairs), sum(half_accuracy * num_pairs) / sum(num_pairs), "
        "sum(strict_accuracy * num_pairs) / sum(num_pairs), sum(num_ties), "
        "sum(mean_margin * num_pairs) / sum(num_pairs) from head_accuracy group by head_id",
    )
    scores = read_head_scores(study)
    margin_PR = (scores.score_P2R[:, 0] - scores.score_P2R[:, 1]).astype(np.float64)
    found = {head_id: figures for head_id, *figures in rows}
    for place, one in enumerate(head_accuracies(scores)):
        expected = [one.num_pairs, one.half, one.strict, one.num_ties, margin_PR[:, place].mean()]
        assert found[one.head_id] == pytest.approx(expected, rel=1e-6)


def test_several_scorings_stand_side_by_side(study, opened, tmp_path):
    other = make_model(tmp_path / "other", head_ids=("only-one",))
    keys = {score_study(study, model).key for model in (opened, other)}
    rows, _ = ask(study, "select score_key, model, count(*) from head_scores group by all")
    assert {key for key, _, _ in rows} == keys
    assert {model: num for _, model, num in rows} == {
        "model": ALL_PAIRS * 2 * 2,
        "other": ALL_PAIRS * 2,
    }


def test_a_damaged_shard_is_counted_and_not_read(study, opened):
    out = score_study(study, opened, shard_size=5).out
    shard_path(out, 0).write_bytes(b"damaged")
    [(count,)], num_missing = ask(study, "select count(*) from head_scores")
    assert (count, num_missing) == ((ALL_PAIRS - 5) * 2 * len(HEADS), 1)
    _, num_missing = ask(study, "select count(*) from pairs")
    assert num_missing == 0


def test_without_scorings_the_table_is_empty(study):
    assert ask(study, "from head_scores") == ([], 0)
    assert ask(study, "from head_accuracy") == ([], 0)


def test_a_damaged_manifest_is_named(study, opened):
    score_study(study, opened)
    (choose_scores(study) / "score.json").write_text("{}")
    with pytest.raises(EncoreError, match=r"score\.json is damaged"):
        ask(study, "from head_scores")


def test_a_published_database_holds_the_scores_and_says_what_is_synthetic(study, tmp_path):
    import duckdb

    rate_study(study)
    model = make_model(tmp_path / "model", head_ids=HEADS, synthetic=["judge of run 12"])
    score_study(study, model)
    published = publish_database(study, out=tmp_path / "study.duckdb")
    assert published.tables["head_scores"] == ALL_PAIRS * 2 * len(HEADS)
    assert any("judge of run 12" in part for part in published.synthetic_parts)
    with duckdb.connect(str(tmp_path / "study.duckdb"), read_only=True) as connection:
        rows = connection.execute("select distinct head_id from head_accuracy").fetchall()
    assert {head_id for (head_id,) in rows} == set(HEADS)
