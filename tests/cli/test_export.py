"""`encore export`: one folder that others load, weights from every place, one line on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from encore.demo import JUDGE_PATH
from encore.model.backbone_config import BackboneConfig
from encore.model.loading import load_reward_model, load_tokenizer
from encore.model.saved_model import save_model
from tests.cli.conftest import Run
from tests.cli.test_commands import the_error
from tests.golden.command_line import Finished
from tests.worlds.trainings import RULES, make_study, text_rating, write_ratings


def rate(pair, response: str, rule_id: str) -> float:
    """be-brief is constant (entropy 0); the others follow the text."""
    return 0.5 if rule_id == "be-brief" else text_rating(pair, response, rule_id)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a model, a study, and ratings of its rules."""
    folder = tmp_path_factory.mktemp("export")
    config = BackboneConfig(model=str(JUDGE_PATH), max_length=512)
    model = load_reward_model(config, head_ids=RULES)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.heads.weight.copy_(torch.randn(model.heads.weight.shape, generator=generator) / 30)
    model.mean_R.copy_(torch.tensor([0.2, 0.5, 0.8]))
    run = folder / "run"
    save_model(run / "model", model.eval(), load_tokenizer(config), metadata={"run_key": "0123"})
    (run / "training.json").write_text("{}")
    study = make_study(folder / "study", num_pairs=12)
    write_ratings(study, folder / "ratings.parquet", rate=rate)
    return folder


@pytest.fixture
def export(encore: Run, folder: Path, tmp_path: Path):
    def run(*arguments: object, model: object = folder / "run", out: str = "new") -> Finished:
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
    assert all(rule in finished.out for rule in RULES)
    arguments = ("--scheme", "encore", "--tau", 0.5, "--ratings", ratings)
    result, expected = json.loads(export(*arguments, "--json").out), json.loads(printed)
    assert result["weights"] == dict(zip(expected["rule_ids"], expected["weights"], strict=True))
    card = (tmp_path / "new" / "README.md").read_text()
    assert "entropy (nats)" in card
    assert "| `be-brief` | 0.8000 |" in card
    about = json.loads((tmp_path / "new" / "encore_export.json").read_text())
    assert about["entropy_nats"]["be-brief"] == 0.0
    assert about["weights_provenance"]["num_ratings"] == expected["provenance"]["num_ratings"]


def test_bfloat16_says_what_it_flips_on_pairs_of_the_study(export, folder, tmp_path):
    bfloat16 = ("--rule", "be-honest", "--dtype", "bfloat16")
    finished = export(*bfloat16, "--study", folder / "study")
    assert finished.code == 0, finished.err
    assert "of 12 rankings flipped" in finished.err  # the study's pairs
    finished = export(*bfloat16, "--ratings", folder / "ratings.parquet")
    assert finished.code == 0, finished.err
    assert "rankings flipped" not in finished.err


def test_weights_of_an_incomplete_run_are_marked_and_exit_with_3(export, encore, folder, tmp_path):
    """By the same road from a scheme and from a file: what was printed of an incomplete run."""
    found = json.loads(encore("weights", folder / "ratings.parquet", "--json").out)
    found["provenance"] |= {"num_shards": 10, "num_missing_shards": 4}
    (tmp_path / "w.json").write_text(json.dumps(found))
    finished = export("--weights", tmp_path / "w.json")
    assert finished.code == 3
    assert "incomplete rating run: 4 of 10 shards were not read" in finished.err
    assert "4 of 10 shards were not read" in (tmp_path / "new" / "README.md").read_text()


def test_an_export_does_not_replace_the_model_it_is_made_from(
    export, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    assert export(out="heads").code == 0
    (tmp_path / "link").symlink_to("heads", target_is_directory=True)
    monkeypatch.setattr("encore.model.opening.open_reward_model", None)  # nothing is loaded
    for model, out in (("heads", "heads"), ("link", "heads"), ("heads", "link"), ("heads", ".")):
        finished = export("--rule", "be-kind", model=tmp_path / model, out=out)
        assert finished.code == 1
        assert "would be replaced by its own" in the_error(finished)
    assert len(config_of(tmp_path / "heads")["id2label"]) == 3


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        (2, ("--rule", "be-kind", "--ratings", "."), "--ratings belongs to --scheme"),
        (1, ("--rule", "be-late"), "--rule be-late: the model has no such head"),
        (1, ("--weights", "none.json"), "weights none.json: cannot be used"),
        (1, ("--scheme", "encore", "--ratings", "nowhere"), "ratings nowhere: no Parquet file"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(export, tmp_path, code, arguments, message):
    finished = export(*arguments)
    assert finished.code == code
    told = " ".join(finished.err.replace("│", " ").split()) if code == 2 else the_error(finished)
    assert message in told
    assert list(tmp_path.iterdir()) == []


def test_a_gate_a_folder_of_other_things_and_no_folder_are_refused(export, folder, tmp_path):
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "gate.json").write_text("{}")
    assert "this is a gate" in the_error(export(model=gate))
    assert "something else in it than an export" in the_error(export(out="gate"))
    assert "no such folder" in the_error(export(model=tmp_path / "none", out="other"))
