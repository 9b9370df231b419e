"""Manifests and ratings know which pairs and judges are synthetic."""

from __future__ import annotations

import pytest

from encore.core.model_files import folder_digest
from encore.data.ingestion import ingest
from encore.data.pairs_manifest import PairsManifest
from encore.data.rating_runs import RatingManifest
from encore.data.study import open_study
from encore.demo import DATA_PATHS, JUDGE_PATH
from encore.warehouse import Ratings
from tests.worlds.studies import numbered_pairs, study_of


def run(revision: str | None) -> RatingManifest:
    identity = {"judge": {"name": "judge"} | ({"revision": revision} if revision else {})}
    return RatingManifest(run_key="k", identity=identity, rule_set="r", rules=[], versions={})


@pytest.mark.parametrize(("label", "path"), DATA_PATHS.items())
def test_the_demos_pairs_are_synthetic_under_any_label(tmp_path, label, path):
    ingest([f"mine={path}"], out=tmp_path / "file")
    for study in (study_of(numbered_pairs(1), tmp_path / "label", label=label), tmp_path / "file"):
        [manifest] = open_study(study).sources
        assert manifest.synthetic
    # A repository of this name on the hub is another data set.
    origins = [origin.model_copy(update={"kind": "hub"}) for origin in manifest.origins]
    hub = {"label": "hh", "origins": origins, "synthetic": False}
    assert not PairsManifest.model_validate(manifest.model_dump() | hub).synthetic


def test_the_demos_judge_is_recognised_by_its_files():
    assert run(f"sha256:{folder_digest(JUDGE_PATH)}").synthetic == ("judge of run k",)
    assert run("sha256:" + "0" * 64).synthetic == ()
    assert run(None).synthetic == ()


def test_ratings_name_their_synthetic_sources_and_judge(tmp_path):
    rows_by_label = dict.fromkeys(("hh", "Synthetic-x"), numbered_pairs(1))
    study = open_study(study_of(rows_by_label, tmp_path / "study"))
    demo = run(f"sha256:{folder_digest(JUDGE_PATH)}")
    ratings = Ratings(label="study", study=study, manifest=demo)
    assert ratings.synthetic == ("source Synthetic-x", "judge of run k")
    assert Ratings(label="copy", manifest=demo).synthetic == ("judge of run k",)
