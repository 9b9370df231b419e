"""Training a study: results, continuation after a stop, and refusals."""

from __future__ import annotations

import errno
import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from encore.core.errors import InputError
from encore.core.reporting import Reporter
from encore.data.study import open_study
from encore.model.held_out_scores import read_held_out_scores
from encore.model.saved_model import load_model
from encore.training import train as stage
from encore.training.checkpoints import WEIGHTS_FILE, checkpoint_path, checkpoint_steps
from encore.training.disk_space import NoRoomError
from encore.training.run_folder import TrainingResult, read_log
from tests.worlds.studies import flip_bit, numbered_pairs, study_of
from tests.worlds.trainings import RULES, make_world, repeatable, train_config, write_ratings

pytestmark = pytest.mark.services

NUM_PAIRS = 88
Usage = namedtuple("Usage", "total used free")


class RecordingReporter(Reporter):
    """Records progress, and may interrupt the run at a step."""

    def __init__(self, *, stop_after: int | None = None):
        self.checkpoints: list[str] = []
        self.summaries: list[str] = []
        self.steps: list[int] = []
        self._stop_after = stop_after

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        self._is_training, self._num_done = title == "training", done

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        if self._is_training:
            self._num_done += count
            self.steps.append(self._num_done)
            if self._num_done == self._stop_after:
                raise KeyboardInterrupt

    def saved(self, path: Path, *, kind: str) -> None:
        if kind == "checkpoint":
            self.checkpoints.append(path.name)

    def finished(self, summary: str = "") -> None:
        self.summaries.append(summary)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a study that tests only read; every run has a folder of its own."""
    return make_world(tmp_path_factory.mktemp("world"), num_pairs=NUM_PAIRS)


def run_training(
    world: Path, *, stop_after: int | None = None, **settings: Any
) -> tuple[TrainingResult, RecordingReporter]:
    """Train the study with small settings; return the result and the recorded progress."""
    config = train_config(world, **settings)
    reporter = RecordingReporter(stop_after=stop_after)
    return stage.train(open_study(world / "study"), config, reporter=reporter), reporter


@pytest.fixture
def train(world: Path, tmp_path: Path):
    return lambda *, out="run", **settings: run_training(world, out=tmp_path / out, **settings)


@pytest.fixture(scope="module")
def undisturbed(world: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """Train ten steps with the default settings; interrupted runs are compared with them."""
    return run_training(world, out=tmp_path_factory.mktemp("undisturbed") / "run")[0]


def stop_training(train, *, after_step: int, **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(stop_after=after_step, **settings)


def forbid_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "load_reward_model", lambda *_, **__: pytest.fail("loaded"))


def model_weights(result: TrainingResult) -> dict[str, torch.Tensor]:
    model, _, _ = load_model(result.model_dir, dtype="float32")
    return dict(model.named_parameters()) | {"mean": model.mean_R}


def assert_same_run(actual: TrainingResult, expected: TrainingResult) -> None:
    """Compare weights and logs to the last bit."""
    torch.testing.assert_close(model_weights(actual), model_weights(expected), rtol=0, atol=0)
    for name in ("log.jsonl", "evaluations.jsonl"):
        assert repeatable(actual.out / name) == repeatable(expected.out / name)
    held_out = [read_held_out_scores(result.model_dir) for result in (actual, expected)]
    assert len({scores and scores.score_P2R.tobytes() for scores in held_out}) == 1


# --- a run --------------------------------------------------------------------------------------


def test_a_run_reports_logs_and_saves_a_model_with_its_metadata(
    train, world, tmp_path, monkeypatch
):
    result, progress = train()
    manifest = json.loads((result.out / "training.json").read_text())
    assert manifest["num_pairs"] + manifest["num_evaluation_pairs"] == NUM_PAIRS
    assert result.num_steps == -(-manifest["num_pairs"] // 8)
    assert f"training on cpu: {manifest['num_pairs']} pairs" in progress.summaries[0]
    assert [record["step"] for record in read_log(result.out / "log.jsonl")] == progress.steps
    evaluations = read_log(result.out / "evaluations.jsonl")
    assert [record["step"] for record in evaluations] == [5, 10]
    assert checkpoint_steps(result.out / "checkpoints") == (8, 10)
    assert progress.checkpoints[-2:] == ["step-00000008", "step-00000010"]

    # The weights of the model are those of the last checkpoint.
    last = load_file(checkpoint_path(result.out / "checkpoints", 10) / WEIGHTS_FILE)
    weights = model_weights(result)
    assert all(torch.equal(weights[name], tensor) for name, tensor in last.items())
    loaded, _, metadata = load_model(result.model_dir)
    assert loaded.head_ids == tuple(sorted(RULES))
    assert metadata["run_key"] == result.run_key
    assert metadata["config"]["learning_rate"] == 1e-3
    assert metadata["evaluation"]["loss"] == result.final_evaluation.loss == evaluations[-1]["loss"]
    assert (len(metadata["mean"]), metadata["synthetic"]) == (len(RULES), [])
    for text in (json.dumps(metadata), (result.out / "training.json").read_text()):
        assert str(world) not in text  # no path of this machine
        assert str(tmp_path) not in text

    forbid_loading(monkeypatch)
    again, progress = train()
    assert (result.is_new, again.is_new, progress.steps) == (True, False, [])
    assert again.final_evaluation == result.final_evaluation
    assert (again.out, again.model_dir) == (result.out, result.model_dir)


def test_a_model_of_a_synthetic_source_is_marked_and_saved_in_the_study(world, tmp_path):
    copied_world = Path(shutil.copytree(world, tmp_path / "world"))
    study = study_of(numbered_pairs(1), copied_world / "study", label="synthetic-more")
    settings = {"max_steps": 1, "objective": "bradley-terry", "evaluation_share": 0.0}
    result, _ = run_training(copied_world, **settings)
    assert load_model(result.model_dir)[2]["synthetic"] == ["source synthetic-more"]
    assert result.out == study / "training" / result.run_key
    assert read_log(result.out / "evaluations.jsonl") == []  # nothing is held out
    assert result.final_evaluation is None


def test_training_may_start_at_the_heads_of_the_probe(train):
    """At a negligible learning rate it ends with the heads and means of the probe."""
    probed, _ = train(out="probe", method="probe")
    tuned, _ = train(out="tuned", head_init="probe", learning_rate=1e-12, max_steps=2)
    actual, expected = model_weights(tuned), model_weights(probed)
    assert torch.equal(actual["mean"], expected["mean"])
    torch.testing.assert_close(actual["heads.weight"], expected["heads.weight"])
    assert tuned.final_evaluation.loss == pytest.approx(probed.final_evaluation.loss, rel=1e-5)


def test_rule_heads_do_not_start_at_a_head_of_another_scale(train, tmp_path):
    with pytest.raises(InputError, match="use head_init 'zero' or 'probe', or objective bradley"):
        train(out="own", head_init="own")
    assert not (tmp_path / "own").exists()


# --- continuation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop_after", "settings"),
    [
        (4, {}),
        (5, {"head_init": "probe"}),
        (5, {"method": "lora", "lora_rank": 4}),
        (5, {"preference_head": "joint", "rating_loss_weight": 0.5, "layout": "sorted"}),
        # Across the end of an epoch: an epoch has 5 steps of 16 pairs, step 7 is in the second.
        (7, {"batch_pairs": 16, "epochs": 2, "max_steps": 8, "layout": "sorted"}),
        (5, {"dtype": "bfloat16", "layout": "prefix-shared", "clip_gradient": 0.01}),
    ],
)
def test_an_interrupted_run_ends_as_an_undisturbed_one(train, undisturbed, stop_after, settings):
    expected = train(out="undisturbed", **settings)[0] if settings else undisturbed
    stop_training(train, after_step=stop_after, **settings)
    # Interrupted after the step, before its checkpoint: the last checkpoint has an even number.
    last = (stop_after - 1) // 2 * 2
    resumed, progress = train(**settings)
    assert progress.steps[0] == last + 1
    going_on = f"going on after step {last} of {resumed.num_steps}"
    assert any(going_on in summary for summary in progress.summaries) == (last > 0)
    assert_same_run(resumed, expected)
    assert resumed.final_evaluation.loss == expected.final_evaluation.loss


@pytest.mark.parametrize("method", ["full", "probe"])
def test_a_damaged_model_is_saved_again_from_the_last_checkpoint(train, method):
    first, _ = train(max_steps=3, method=method)
    before = model_weights(first)
    flip_bit(first.model_dir / "heads.safetensors")
    again, progress = train(max_steps=3, method=method)
    assert again.is_new
    assert progress.steps == []
    assert again.final_evaluation.loss == first.final_evaluation.loss
    assert len(read_log(again.out / "evaluations.jsonl")) == 1
    torch.testing.assert_close(model_weights(again), before, rtol=0, atol=0)


# --- refusals and full disks --------------------------------------------------------------------


def test_a_full_disk_is_reported_before_weights_are_loaded(train, monkeypatch):
    forbid_loading(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, (1 << 30) - 100, 100))
    with pytest.raises(NoRoomError, match=r"this run \(its checkpoints and its model\) needs"):
        train()


def test_a_folder_of_other_settings_data_or_number_format_is_refused(
    train, world, tmp_path, monkeypatch
):
    stop_training(train, after_step=3)
    load = stage.load_reward_model
    # The same settings mean bfloat16 on a GPU and float32 on a CPU, which must not be mixed.
    as_on_gpu = {"dtype": "bfloat16"}
    monkeypatch.setattr(
        stage,
        "load_reward_model",
        lambda config, **s: load(config.model_copy(update=as_on_gpu), **s),
    )
    with pytest.raises(InputError, match=r'weights\.dtype is "float32" there and "bfloat16" here'):
        train()
    forbid_loading(monkeypatch)
    for settings, message in (
        ({"learning_rate": 2e-3}, r"config\.learning_rate is 0\.001 there and 0\.002 here"),
        ({"clip_gradient": 1.0}, r"config\.clip_gradient is nothing there and 1\.0 here"),
    ):
        with pytest.raises(InputError, match=message):
            train(**settings)
    monkeypatch.undo()
    other_ratings = write_ratings(world / "study", tmp_path / "r.parquet", missing_share=0.3)
    (tmp_path / "run" / "training.json").unlink()
    message = r"step-00000002 belongs to another .*data_sha256 is .* there and .* here.*--out"
    with pytest.raises(InputError, match=message):
        train(ratings=other_ratings)


def test_a_disk_that_is_full_at_the_end_costs_no_step(train, undisturbed, monkeypatch):
    no_space = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(stage, "save_model", no_space)
    with pytest.raises(NoRoomError, match="the trained model was written; the last checkpoint"):
        train()
    monkeypatch.undo()
    resumed, progress = train()
    assert progress.steps == []
    assert_same_run(resumed, undisturbed)
