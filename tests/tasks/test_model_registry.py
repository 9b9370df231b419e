"""Aliases in a real MLflow registry: who is candidate, who is champion, and why."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from encore.benchmarks.models import ModelBehind
from encore.benchmarks.pairs import BenchmarkPairs
from encore.errors import InputError
from tasks import model_registry
from tasks.evaluation_words import reward_key
from tasks.model_registry import register_candidate
from tests.benchmarks.stored_world import every_row, model_row, real_pairs, write_run
from tests.tasks.mlflow_store import MlflowClient
from tests.tasks.test_track_benchmark import track
from tests.training.studies import make_study

PAIRS = real_pairs()
MODEL = "encore-reward-model"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path / "study", num_pairs=4)


def register(
    study: Path,
    uri: str,
    wins: int,
    *,
    key: str,
    pairs: BenchmarkPairs | None = None,
    experiment: str | None = None,
    **more: Any,
) -> Any:
    """A reward model that wins so many pairs (of 400), logged and registered."""
    pairs = pairs or real_pairs({"all": 400})
    wins_P = [1.0] * wins + [0.0] * (pairs.num_pairs - wins)
    behind = ModelBehind(name=f"org/{key}", digest=key, revision=None)
    run = write_run(
        study, [model_row(key, wins_P, pairs=pairs)], pairs=pairs, key=key, models={key: behind}
    )
    tracked = track(run, study, uri, experiment=experiment)
    return register_candidate(run, tracked, row=key, uri=uri, **more)


def aliases(uri: str) -> dict[str, str]:
    found = MlflowClient(uri).get_registered_model(MODEL).aliases
    return {alias: str(version) for alias, version in found.items()}


def test_the_champion_changes_only_by_the_rule(study, store_uri):
    client = MlflowClient(store_uri)
    assert register(study, store_uri, 300, key="first").champion == "1"
    worse = register(study, store_uri, 290, key="worse")  # 2.5 points worse
    assert (worse.version, worse.champion) == ("2", "1")
    assert "−2.5 points on 400 pairs" in worse.summary
    assert aliases(store_uri) == {"candidate": "2", "champion": "1"}
    better = register(study, store_uri, 320, key="better")
    assert (better.version, better.champion) == ("3", "3")
    assert aliases(store_uri) == {"candidate": "3", "champion": "3"}
    version = client.get_model_version(MODEL, "2")
    assert "not above −1.0" in version.tags["encore.promotion"]
    path = client.download_artifacts(version.run_id, "model/reward-model.json")
    assert json.loads(Path(path).read_text())["model"] == "org/worse"


def test_the_reason_is_there_before_the_champion(study, store_uri, monkeypatch):
    def die(registry: Any, alias: str, version: str) -> None:
        if alias == "champion":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(model_registry._Registry, "point", die)
        with pytest.raises(KeyboardInterrupt):
            register(study, store_uri, 300, key="first")
    tags = MlflowClient(store_uri).get_model_version(MODEL, "1").tags
    assert tags["encore.promotion"] == "there was no champion before"
    assert register(study, store_uri, 300, key="first").champion == "1"


def test_a_gate_says_which_it_is(study, store_uri):
    """Two gates over the same heads are two rewards, and a mean over draws is none."""
    uniform = every_row(PAIRS)[0]
    gated = replace(uniform, name="moe gate", method="moe", vector=None)
    unknown = replace(gated, name="theirs")
    behind = ModelBehind(name="org/heads", digest="a1", revision=None)
    models = {"moe gate": replace(behind, gate="c2" * 32), "theirs": behind}
    run = write_run(study, [gated, unknown], pairs=PAIRS, models=models)
    tracked = track(run, study, store_uri)
    with pytest.raises(InputError, match="there are: 'moe gate'"):
        register_candidate(run, tracked, row="theirs", uri=store_uri)
    register_candidate(run, tracked, row="moe gate", uri=store_uri)
    client = MlflowClient(store_uri)
    run_id = client.get_model_version(MODEL, "1").run_id
    path = client.download_artifacts(run_id, "model/reward-model.json")
    assert json.loads(Path(path).read_text())["gate_sha256"] == "c2" * 32
    first = reward_key(gated, run)
    other = replace(run, models={"moe gate": replace(behind, gate="d3" * 32)})
    assert first != reward_key(gated, other)


def test_a_champion_evaluated_in_another_experiment_can_be_challenged(study, store_uri):
    other = real_pairs({"all": 200})
    register(study, store_uri, 300, key="first")
    register(study, store_uri, 100, key="first", pairs=other, experiment="elsewhere")
    found = register(study, store_uri, 180, key="second", pairs=other, experiment="here")
    assert "+40.0 points on 200 pairs" in found.summary  # 180 against 100 of 200


def test_a_wider_margin_lets_it_pass(study, store_uri):
    register(study, store_uri, 300, key="first")
    assert register(study, store_uri, 290, key="worse", margin=0.1).champion == "2"


def test_registering_again_makes_no_second_version(study, store_uri):
    register(study, store_uri, 300, key="first")
    again = register(study, store_uri, 300, key="first")
    assert (again.version, again.champion) == ("1", "1")
    assert "it was so before" in again.summary
    tags = MlflowClient(store_uri).get_model_version(MODEL, "1").tags
    assert tags["encore.promotion"] == "there was no champion before"
    assert len(MlflowClient(store_uri).search_model_versions(f"name = '{MODEL}'")) == 1


def test_results_on_other_pairs_do_not_make_a_champion(study, store_uri):
    register(study, store_uri, 200, key="first")
    other = register(study, store_uri, 300, key="other", pairs=real_pairs({"all": 300}))
    assert (other.version, other.champion) == ("2", "1")
    assert "run the champion on the same pairs first" in other.summary


def test_what_cannot_be_a_candidate_is_refused(study, store_uri):
    run = write_run(study, every_row(PAIRS), pairs=PAIRS)
    tracked = track(run, study, store_uri)
    with pytest.raises(InputError, match="no reward model among the rows"):
        register_candidate(run, tracked, row="random (5 draws)", uri=store_uri)
    with pytest.raises(InputError, match="scored here"):  # as a row of a file of results is
        register_candidate(run, tracked, row="uniform", uri=store_uri)
    with pytest.raises(InputError, match="registered model 'a/b'"):
        register_candidate(run, tracked, row="uniform", uri=store_uri, model="a/b")


def test_a_champion_that_was_run_on_the_same_pairs_since_can_be_challenged(study, store_uri):
    other = real_pairs({"all": 200})
    register(study, store_uri, 300, key="first")
    assert register(study, store_uri, 180, key="second", pairs=other).champion == "1"
    # The same model on the other pairs: no difference, but too few pairs to exclude one.
    again = register(study, store_uri, 100, key="first", pairs=other)
    assert (again.version, again.champion) == ("3", "1")
    challenged = register(study, store_uri, 180, key="second", pairs=other)
    assert (challenged.version, challenged.champion) == ("2", "2")
    assert "+40.0 points on 200 pairs" in challenged.summary  # 180 against 100 of 200


def test_a_champion_whose_files_are_gone_stays_and_the_reason_says_so(study, store_uri):
    register(study, store_uri, 300, key="first")
    client = MlflowClient(store_uri)
    run_id = client.get_model_version(MODEL, "1").run_id
    folder = Path(urlsplit(client.get_run(run_id).info.artifact_uri).path)
    content = (folder / "results.parquet").read_bytes()
    (folder / "results.parquet").write_bytes(content[:-9])
    for _ in range(2):
        found = register(study, store_uri, 390, key="better")
        assert (found.version, found.champion) == ("2", "1")
        assert "the results of the champion, version 1, are gone" in found.summary
        shutil.rmtree(folder, ignore_errors=True)
    client.delete_registered_model_alias(MODEL, "champion")
    assert register(study, store_uri, 390, key="better").champion == "2"


def test_a_champion_that_no_evaluation_is_behind_stays(study, store_uri):
    client = MlflowClient(store_uri)
    client.create_registered_model(MODEL)
    client.create_model_version(MODEL, "file:///by-hand")
    client.set_registered_model_alias(MODEL, "champion", "1")
    found = register(study, store_uri, 390, key="better")
    assert (found.version, found.champion) == ("2", "1")
    assert "are gone" in found.summary


def test_a_version_says_what_of_it_is_synthetic(study, store_uri):
    made = replace(model_row("made", [1.0] * 50, pairs=PAIRS), synthetic=("model made (made up)",))
    rows = [model_row("real", [1.0] * 50, pairs=PAIRS), made]
    behind = ModelBehind(name="org/model", digest="a1", revision=None)
    run = write_run(study, rows, pairs=PAIRS, models=dict.fromkeys(("real", "made"), behind))
    tracked = track(run, study, store_uri)
    client = MlflowClient(store_uri)
    for row, says in {"made": "model made (made up)", "real": "no"}.items():
        found = register_candidate(run, tracked, row=row, uri=store_uri)
        tags = client.get_model_version(MODEL, found.version).tags
        assert tags["encore.synthetic"] == says
        assert tags["encore.partial"] == "no"
