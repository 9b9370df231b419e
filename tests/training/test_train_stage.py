"""Training a study: what is refused, what is kept, what goes on, what is found when it is done."""

from __future__ import annotations

import errno
import json
import os
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
from encore.data.ingestion import ingest
from encore.data.study import open_study
from encore.model.saved_model import load_model
from encore.training import train as stage
from encore.training.checkpoints import (
    WEIGHTS_FILE,
    CheckpointManager,
    checkpoint_path,
    checkpoint_steps,
)
from encore.training.disk import NoRoomError
from encore.training.evaluation import TrainingDivergedError
from encore.training.run_folder import TrainingResult, read_log
from encore.training.training_config import TrainConfig
from tests.training.studies import (
    RULES,
    backbone_config,
    make_world,
    repeatable,
    training_config,
    write_ratings,
)

NUM_PAIRS = 88
Usage = namedtuple("Usage", "total used free")


class Heard(Reporter):
    """Keeps what it hears, and may end the process's work at a step."""

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
    """Only ever read: every run is in a folder of its own."""
    return make_world(tmp_path_factory.mktemp("world"), num_pairs=NUM_PAIRS)


def trained(
    world: Path,
    out: Path,
    heard: Heard,
    ratings: str | Path = "ratings.parquet",
    dtype: str = "auto",
    **settings: Any,
) -> TrainingResult:
    config = TrainConfig(
        study=world / "study",
        backbone=backbone_config(world / "tiny").model_copy(update={"dtype": dtype}),
        ratings=world / ratings,
        out=out,
        **dict(training_config(**settings)),
    )
    return stage.train(open_study(world / "study"), config, reporter=heard)


@pytest.fixture
def train(world: Path, tmp_path: Path):
    """Train the study with small settings; returns the result and what was heard."""

    def run(
        *,
        out: str = "run",
        stop_after: int | None = None,
        ratings: str | Path = "ratings.parquet",
        dtype: str = "auto",
        **settings: Any,
    ) -> tuple[TrainingResult, Heard]:
        heard = Heard(stop_after=stop_after)
        return trained(world, tmp_path / out, heard, ratings, dtype, **settings), heard

    return run


@pytest.fixture(scope="module")
def undisturbed(world: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """Ten steps with the default settings: what disturbed runs are compared with."""
    return trained(world, tmp_path_factory.mktemp("undisturbed") / "run", Heard())


def stopped(train, *, after: int, **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(stop_after=after, **settings)


def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "load_reward_model", lambda *_, **__: pytest.fail("loaded"))


def model_weights(result: TrainingResult) -> dict[str, torch.Tensor]:
    model, _, _ = load_model(result.model_dir, dtype="float32")
    return dict(model.named_parameters()) | {"mean": model.mean_R}


def assert_same_run(left: TrainingResult, right: TrainingResult) -> None:
    """To the last bit."""
    torch.testing.assert_close(model_weights(left), model_weights(right), rtol=0, atol=0)
    for name in ("log.jsonl", "evaluations.jsonl"):
        assert repeatable(left.out / name) == repeatable(right.out / name)


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# --- a run --------------------------------------------------------------------------------------


def test_a_run_reports_logs_and_leaves_a_model_that_says_where_it_comes_from(
    train, world, tmp_path, monkeypatch
):
    result, heard = train()
    about = json.loads((result.out / "training.json").read_text())
    assert about["num_pairs"] + about["num_evaluation_pairs"] == NUM_PAIRS
    assert result.num_steps == -(-about["num_pairs"] // 8)
    assert f"training on cpu: {about['num_pairs']} pairs" in heard.summaries[0]
    assert [record["step"] for record in read_log(result.out / "log.jsonl")] == heard.steps
    evaluations = read_log(result.out / "evaluations.jsonl")
    assert [one["step"] for one in evaluations] == [5, 10]
    assert checkpoint_steps(result.out / "checkpoints") == (8, 10)
    assert heard.checkpoints[-2:] == ["step-00000008", "step-00000010"]

    # The last checkpoint's weights are the model's: nothing happens in between.
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

    nothing_is_loaded(monkeypatch)
    again, heard = train()
    assert (result.is_new, again.is_new, heard.steps) == (True, False, [])
    assert again.final_evaluation == result.final_evaluation
    assert (again.out, again.model_dir) == (result.out, result.model_dir)


def test_a_synthetic_source_marks_the_model_which_goes_into_the_study(world, tmp_path):
    shutil.copytree(world / "study", tmp_path / "study")
    source = tmp_path / "more.jsonl"
    source.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    ingest([f"synthetic-more={source}"], out=tmp_path / "study")
    training = training_config(max_steps=1, objective="bradley-terry", evaluation_share=0.0)
    backbone = backbone_config(world / "tiny")
    config = TrainConfig(study=tmp_path / "study", backbone=backbone, **dict(training))
    result = stage.train(open_study(tmp_path / "study"), config)
    assert load_model(result.model_dir)[2]["synthetic"] == ["source synthetic-more"]
    assert result.out == tmp_path / "study" / "training" / result.run_key
    assert read_log(result.out / "evaluations.jsonl") == []  # nothing is held out
    assert result.final_evaluation is None


def test_training_may_begin_at_the_probes_heads(train):
    """At a negligible learning rate it then ends where the probe does, centres included."""
    probed, _ = train(out="probe", method="probe")
    tuned, _ = train(out="tuned", head_init="probe", learning_rate=1e-12, max_steps=2)
    ours, theirs = model_weights(tuned), model_weights(probed)
    assert torch.equal(ours["mean"], theirs["mean"])
    torch.testing.assert_close(ours["heads.weight"], theirs["heads.weight"])
    assert tuned.final_evaluation.loss == pytest.approx(probed.final_evaluation.loss, rel=1e-5)


# --- going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop_after", "settings"),
    [
        (4, {}),
        (5, {"head_init": "probe"}),
        (5, {"method": "lora", "lora_rank": 4}),
        # Over the end of an epoch: 5 steps of 16 pairs are one, step 7 is in the second.
        (7, {"batch_pairs": 16, "epochs": 2, "max_steps": 8, "layout": "sorted"}),
        (5, {"dtype": "bfloat16", "layout": "prefix-shared", "clip_gradient": 0.01}),
    ],
)
def test_an_interrupted_run_ends_as_an_undisturbed_one(train, undisturbed, stop_after, settings):
    expected = train(out="undisturbed", **settings)[0] if settings else undisturbed
    stopped(train, after=stop_after, **settings)
    # Interrupted after the step and before its checkpoint: the last one is at an even step below.
    last = (stop_after - 1) // 2 * 2
    resumed, heard = train(**settings)
    assert heard.steps[0] == last + 1
    going_on = f"going on after step {last} of {resumed.num_steps}"
    assert any(going_on in summary for summary in heard.summaries) == (last > 0)
    assert_same_run(resumed, expected)
    assert resumed.final_evaluation.loss == expected.final_evaluation.loss


@pytest.mark.parametrize("method", ["full", "probe"])
def test_a_damaged_model_is_saved_again_from_the_last_checkpoint(train, method):
    first, _ = train(max_steps=3, method=method)
    before = model_weights(first)
    flip_bit(first.model_dir / "heads.safetensors")
    again, heard = train(max_steps=3, method=method)
    assert again.is_new
    assert heard.steps == []
    assert again.final_evaluation.loss == first.final_evaluation.loss
    assert len(read_log(again.out / "evaluations.jsonl")) == 1
    torch.testing.assert_close(model_weights(again), before, rtol=0, atol=0)


# --- what stands in the way ---------------------------------------------------------------------


def test_a_full_disk_is_seen_before_weights_are_loaded(train, monkeypatch):
    nothing_is_loaded(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, (1 << 30) - 100, 100))
    with pytest.raises(NoRoomError, match=r"this run \(its checkpoints and its model\) needs"):
        train()


def test_another_run_data_or_number_format_in_the_folder_is_refused(
    train, world, tmp_path, monkeypatch
):
    stopped(train, after=3)
    load = stage.load_reward_model
    # The same settings mean bfloat16 on a GPU and float32 here: neither continues the other.
    monkeypatch.setattr(
        stage,
        "load_reward_model",
        lambda config, **how: load(config.model_copy(update={"dtype": "bfloat16"}), **how),
    )
    with pytest.raises(InputError, match=r'weights\.dtype is "float32" there and "bfloat16" here'):
        train()
    nothing_is_loaded(monkeypatch)
    with pytest.raises(InputError, match=r"config\.learning_rate is 0\.001 there and 0\.002 here"):
        train(learning_rate=2e-3)
    monkeypatch.undo()
    other = write_ratings(world / "study", tmp_path / "other.parquet", missing_share=0.3)
    (tmp_path / "run" / "training.json").unlink()
    with pytest.raises(InputError, match=r"step-00000002 belongs to another .*data_sha256 is"):
        train(ratings=other)


def test_a_disk_that_is_full_at_the_end_costs_no_step(train, undisturbed, monkeypatch):
    no_space = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(stage, "save_model", no_space)
    with pytest.raises(NoRoomError, match="the trained model was written; the last checkpoint"):
        train()
    monkeypatch.undo()
    resumed, heard = train()
    assert heard.steps == []
    assert_same_run(resumed, undisturbed)


def test_a_weight_that_is_no_number_is_never_checkpointed(train, tmp_path, monkeypatch):
    look, looked = CheckpointManager.first_not_finite, []

    def poisoned(self):
        looked.append(self)
        if len(looked) == 2:
            with torch.no_grad():
                self.weights["heads.weight"][0, 0] = float("nan")
        return look(self)

    monkeypatch.setattr(CheckpointManager, "first_not_finite", poisoned)
    with pytest.raises(TrainingDivergedError, match=r"weight heads\.weight .*at step 4"):
        train()
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == (2,)


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(train, tmp_path, monkeypatch):
    """Every file of it and its folder, then, after the rename, the folder it is in."""
    synced: list[Path] = []
    sync = os.fsync

    def record_and_sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record_and_sync)
    train(max_steps=2)
    checkpoint_paths = [path for path in synced if ".step-00000002.tmp" in str(path)]
    names = {path.name.split(".tmp")[0] for path in checkpoint_paths}
    files = {"weights.safetensors", "optimizer.safetensors", "state.json"}
    assert names >= {*files, ".step-00000002"}
    assert tmp_path / "run" / "checkpoints" in synced[synced.index(checkpoint_paths[-1]) :]
