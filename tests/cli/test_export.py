"""`encore export` takes weights from files and schemes, and counts what bfloat16 flips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encore.model.held_out_scores import write_held_out_scores
from tests.cli.conftest import Run
from tests.golden.command_line import Finished
from tests.worlds.models import RULES
from tests.worlds.scorings import held_out_scores, make_model
from tests.worlds.trainings import make_study, text_rating, write_ratings

pytestmark = pytest.mark.services


def rate(pair, response: str, rule_id: str) -> float | None:
    """Rate by the text, but be-brief is constant: its entropy is 0."""
    return 0.5 if rule_id == "be-brief" else text_rating(pair, response, rule_id)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a study and a file of ratings for the rules of the model."""
    folder = tmp_path_factory.mktemp("export")
    study = make_study(folder / "study", num_pairs=12)
    write_ratings(study, folder / "ratings.parquet", rate=rate, rules=RULES)
    return folder


@pytest.fixture
def export(encore: Run, reward_model: Path, tmp_path: Path):
    def run(*arguments: object, model: object = reward_model, out: str = "new") -> Finished:
        return encore("export", model, "--out", tmp_path / out, *arguments)

    return run


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def test_weights_of_a_file_and_of_a_scheme_are_those_of_the_weights_command(
    export, encore, folder, tmp_path
):
    ratings = folder / "ratings.parquet"
    printed = encore("weights", ratings, "--tau", 0.5, "--json").out
    (tmp_path / "weights.json").write_text(printed)
    finished = export("--weights", tmp_path / "weights.json")
    assert finished.code == 0, finished.err
    assert config_of(tmp_path / "new")["id2label"] == {"0": "reward"}
    assert "Folded heads" in finished.out
    assert finished.err.splitlines()[-1] == f"next: encore serve {tmp_path / 'new'}"
    assert all(rule in finished.out for rule in RULES)
    arguments = ("--scheme", "encore", "--tau", 0.5, "--ratings", ratings)
    result, expected = export(*arguments, "--json").json, json.loads(printed)
    assert result["weights"] == dict(zip(expected["rule_ids"], expected["weights"], strict=True))
    card = (tmp_path / "new" / "README.md").read_text()
    assert "entropy (nats)" in card
    assert "| `be-brief` | 0.5000 |" in card
    record = json.loads((tmp_path / "new" / "encore_export.json").read_text())
    assert record["entropy_nats"]["be-brief"] == 0.0
    assert record["weights_provenance"]["num_ratings"] == expected["provenance"]["num_ratings"]


def test_rankings_that_bfloat16_flips_are_counted_on_pairs_of_the_study(export, folder):
    bfloat16 = ("--rule", "be-true", "--dtype", "bfloat16")
    finished = export(*bfloat16, "--ratings", folder / "study")
    assert finished.code == 0, finished.err
    message = " ".join(finished.err.split())  # long paths break it over lines
    assert "of 12 rankings flipped" in message  # the study's pairs
    finished = export(*bfloat16, "--ratings", folder / "ratings.parquet")
    assert finished.code == 0, finished.err
    assert "rankings flipped" not in " ".join(finished.err.split())


def test_weights_of_an_incomplete_run_are_marked_and_exit_with_3(export, encore, folder, tmp_path):
    content = encore("weights", folder / "ratings.parquet", "--json").json
    content["provenance"] |= {"num_shards": 10, "num_missing_shards": 4}
    (tmp_path / "w.json").write_text(json.dumps(content))
    finished = export("--weights", tmp_path / "w.json")
    assert finished.code == 3
    assert "incomplete rating run: 4 of 10 shards were not read" in finished.err
    assert "4 of 10 shards were not read" in (tmp_path / "new" / "README.md").read_text()


def test_an_export_does_not_replace_its_own_model(export, tmp_path, monkeypatch):
    assert export(out="heads").code == 0
    (tmp_path / "link").symlink_to("heads", target_is_directory=True)
    monkeypatch.setattr("encore.model.open_model.open_reward_model", None)  # nothing is loaded
    for model, out in (("heads", "heads"), ("link", "heads"), ("heads", "link"), ("heads", ".")):
        finished = export("--rule", "be-kind", model=tmp_path / model, out=out)
        assert finished.code == 1
        assert "would be replaced by its own" in finished.error
    assert len(config_of(tmp_path / "heads")["id2label"]) == 3


def test_beta_is_that_of_the_option_and_is_refused_without_head_0(export, folder, tmp_path):
    """The folder's own held-out scores have deviations of 1: head 0 and rules are 2, 0, 2, 0."""
    model = make_model(tmp_path / "joint", head_ids=("preference", *RULES))
    write_held_out_scores(model, held_out_scores([[[2] * 4, [0] * 4]] * 2))
    arguments = ("--scheme", "uniform", "--ratings", folder / "ratings.parquet")
    result = export(*arguments, "--beta", 1.5, "--json", model=model).json
    assert result["weights"] == pytest.approx({"preference": 1} | dict.fromkeys(RULES, 0.5))
    finished = export(*arguments, "--beta", "auto", model=model)
    assert finished.code == 0, finished.err
    assert "the rules do not clearly help, so head 0 stands alone" in " ".join(finished.err.split())
    assert "learnt from people's preferences" in (tmp_path / "new" / "README.md").read_text()
    assert "the model has no head 0" in export(*arguments, "--beta", 1).err
    assert "--beta belongs to weights" in export("--rule", "be-kind", "--beta", 1).err
