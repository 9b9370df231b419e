"""Training a study: what is refused, what is kept, what goes on, what is found when it is done."""

from __future__ import annotations

import errno
import json
import logging
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.model.saved_model import load_model
from encore.training import checkpoints, driver, fitting
from encore.training.checkpoints import WEIGHTS_FILE, checkpoint_path, checkpoint_steps
from encore.training.disk import NoRoomError
from encore.training.driver import train_study
from encore.training.keeper import Keeper
from encore.training.log import UNREPEATABLE, read_log
from encore.training.records import SilentReporter, TrainingDivergedError, TrainingResult
from tests.training.studies import (
    RULES,
    backbone_config,
    make_backbone,
    make_study,
    training_config,
    write_ratings,
)

NUM_PAIRS = 88
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> BackboneConfig:
    return backbone_config(make_backbone(tmp_path_factory.mktemp("backbone") / "tiny"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    study = make_study(folder / "study", num_pairs=NUM_PAIRS)
    write_ratings(study, folder / "ratings.parquet")
    return folder


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "study", tmp_path / "study")
    return tmp_path / "study"


class Heard(SilentReporter):
    """Keeps every event's name and record, and may end the process's work at a step."""

    def __init__(self, *, stop_after: int | None = None, error: BaseException | None = None):
        self.events: list[tuple[str, Any]] = []
        self._stop_after = stop_after
        self._error = error or KeyboardInterrupt()

    def started(self, plan):
        self.events.append(("started", plan))

    def stepped(self, record):
        self.events.append(("stepped", record))
        if record.step == self._stop_after:
            raise self._error

    def evaluated(self, record):
        self.events.append(("evaluated", record))

    def saved(self, record):
        self.events.append(("saved", record))

    def finished(self, result):
        self.events.append(("finished", result))

    def of(self, name: str) -> list[Any]:
        return [record for event, record in self.events if event == name]


@pytest.fixture
def train(made: Path, study: Path, backbone: BackboneConfig):
    """Train the study with small settings; returns the result and what was heard."""

    def run(
        *, stop_after: int | None = None, out: Path | None = None, **settings: Any
    ) -> tuple[TrainingResult, Heard]:
        heard = Heard(stop_after=stop_after)
        start = settings.pop("backbone", backbone)
        result = train_study(
            study,
            backbone=start,
            config=training_config(**settings),
            reporter=heard,
            ratings=made / "ratings.parquet",
            out=out,
        )
        return result, heard

    return run


def model_weights(result: TrainingResult) -> dict[str, torch.Tensor]:
    assert result.model_dir is not None
    model = load_model(result.model_dir, dtype="float32").model
    return dict(model.named_parameters()) | {"mean": model.mean_R}


def same_weights(left: TrainingResult, right: TrainingResult) -> bool:
    ours, theirs = model_weights(left), model_weights(right)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def repeatable_log(result: TrainingResult) -> list[dict[str, Any]]:
    """What two runs' logs must agree in."""
    return [
        {name: value for name, value in record.items() if name not in UNREPEATABLE}
        for record in read_log(result.out / "log.jsonl")
    ]


# --- a run --------------------------------------------------------------------------------------


def test_a_run_reports_logs_and_leaves_a_model_that_loads(train, study):
    result, heard = train()
    [plan] = heard.of("started")
    assert plan.num_pairs + plan.num_evaluation_pairs == NUM_PAIRS
    assert plan.num_steps == -(-plan.num_pairs // 8)
    assert [record.step for record in heard.of("stepped")] == list(range(1, plan.num_steps + 1))
    assert [event for event, _ in heard.events][-1] == "finished"
    assert result.is_new
    assert result.out.parent == study / "training"
    assert result.num_steps == plan.num_steps

    records = read_log(result.out / "log.jsonl")
    assert [record["loss"] for record in records] == [r.loss for r in heard.of("stepped")]
    evaluations = read_log(result.out / "evaluations.jsonl")
    assert [e["step"] for e in evaluations] == [e.step for e in heard.of("evaluated")]
    assert result.final_evaluation == heard.of("evaluated")[-1]
    assert checkpoint_steps(result.out / "checkpoints") == tuple(
        record.step for record in heard.of("saved")[-2:]
    )

    loaded = load_model(result.model_dir)
    assert loaded.model.head_ids == tuple(sorted(RULES))
    # The last checkpoint's weights are the model's: nothing happens in between.
    last = checkpoints.load_file(
        checkpoint_path(result.out / "checkpoints", plan.num_steps) / WEIGHTS_FILE
    )
    weights = model_weights(result)
    assert all(torch.equal(weights[name], tensor) for name, tensor in last.items())


def test_the_model_says_where_it_comes_from(train, study):
    result, _ = train()
    metadata = load_model(result.model_dir).metadata
    manifest = json.loads((result.out / "training.json").read_text())
    assert metadata["run_key"] == manifest["run_key"] == result.out.name
    assert metadata["config"]["learning_rate"] == 1e-3
    assert metadata["objective"] == "multi-head"
    assert metadata["num_steps"] == result.num_steps
    assert metadata["evaluation"]["loss"] == result.final_evaluation.loss
    assert len(metadata["mean"]) == len(RULES)
    assert metadata["synthetic"] == []
    assert "torch" in metadata["versions"]
    for text in (json.dumps(metadata), (result.out / "training.json").read_text()):
        assert str(study.parent) not in text  # no path of this machine


def test_a_synthetic_source_marks_the_model(made, tmp_path, backbone):
    shutil.copytree(made / "study", tmp_path / "study")
    source = tmp_path / "more.jsonl"
    source.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    from encore.data.ingestion import ingest

    ingest([f"synthetic-more={source}"], out=tmp_path / "study")
    result = train_study(
        tmp_path / "study",
        backbone=backbone,
        config=training_config(max_steps=1, objective="bradley-terry"),
        reporter=SilentReporter(),
    )
    assert load_model(result.model_dir).metadata["synthetic"] == ["source synthetic-more"]


@pytest.mark.parametrize("method", ["full", "lora", "probe"])
@pytest.mark.parametrize("objective", ["multi-head", "bradley-terry"])
def test_every_method_ends_in_a_model_for_every_objective(train, method, objective):
    result, heard = train(method=method, objective=objective, max_steps=2, lora_rank=4)
    model = load_model(result.model_dir).model
    assert model.head_ids == (("reward",) if objective == "bradley-terry" else tuple(sorted(RULES)))
    assert result.num_steps == (0 if method == "probe" else 2)
    assert result.final_evaluation.num_pairs == heard.of("started")[0].num_evaluation_pairs
    assert torch.isfinite(model.heads.weight).all()
    assert model.heads.weight.abs().sum() > 0


def test_nothing_held_out_means_no_evaluation(train):
    result, heard = train(evaluation_share=0.0, max_steps=2)
    assert heard.of("evaluated") == []
    assert result.final_evaluation is None


def test_training_may_begin_at_the_probes_heads(train, tmp_path):
    """At a negligible learning rate it then ends where the probe does, centres included."""
    probed, _ = train(out=tmp_path / "probe", method="probe")
    tuned, _ = train(out=tmp_path / "tuned", head_init="probe", learning_rate=1e-12, max_steps=2)
    ours, theirs = model_weights(tuned), model_weights(probed)
    assert torch.equal(ours["mean"], theirs["mean"])
    torch.testing.assert_close(ours["heads.weight"], theirs["heads.weight"])
    assert tuned.final_evaluation.loss == pytest.approx(probed.final_evaluation.loss, rel=1e-5)


# --- going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "head_init", "stop_after"),
    [
        ("full", "zero", 3),
        ("full", "zero", 4),
        ("full", "zero", 7),
        ("full", "probe", 5),
        ("lora", "zero", 5),
    ],
)
def test_an_interrupted_run_ends_as_an_undisturbed_one(
    train, tmp_path, method, head_init, stop_after
):
    settings = {"method": method, "head_init": head_init, "lora_rank": 4}
    undisturbed, _ = train(out=tmp_path / "undisturbed", **settings)
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "stopped", stop_after=stop_after, **settings)
    # Interrupted after the step and before its checkpoint: the last one is at an even step below.
    kept = checkpoint_steps(tmp_path / "stopped" / "checkpoints")
    assert kept[-1] == (stop_after - 1) // 2 * 2
    resumed, heard = train(out=tmp_path / "stopped", **settings)
    assert heard.of("started")[0].start_step == kept[-1]
    assert heard.of("stepped")[0].step == kept[-1] + 1
    assert same_weights(resumed, undisturbed)
    assert repeatable_log(resumed) == repeatable_log(undisturbed)
    assert resumed.final_evaluation.loss == undisturbed.final_evaluation.loss


@pytest.mark.parametrize("layout", ["packed", "sorted", "prefix-shared"])
def test_stochastic_rounding_goes_on_to_the_same_bits_in_every_layout(
    train, tmp_path, backbone, layout
):
    """Over the end of an epoch too: 5 steps of 16 pairs are one, step 7 is in the second."""
    settings = {
        "backbone": backbone.model_copy(update={"dtype": "bfloat16"}),
        "layout": layout,
        "batch_pairs": 16,
        "epochs": 2,
    }
    undisturbed, heard = train(out=tmp_path / "undisturbed", **settings)
    assert heard.of("started")[0].steps_per_epoch == 5
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "stopped", stop_after=7, **settings)
    resumed, _ = train(out=tmp_path / "stopped", **settings)
    assert same_weights(resumed, undisturbed)
    assert repeatable_log(resumed) == repeatable_log(undisturbed)


def test_other_weights_are_told_apart(train, tmp_path):
    """The comparison above can fail: one step less, another seed."""
    ten, _ = train(out=tmp_path / "ten")
    other, _ = train(out=tmp_path / "other", seed=1)
    assert not same_weights(ten, other)
    assert repeatable_log(ten) != repeatable_log(other)


def test_a_run_stopped_before_its_first_checkpoint_begins_anew(train, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", stop_after=1)
    result, heard = train(out=tmp_path / "run")
    assert heard.of("started")[0].start_step == 0
    assert [record["step"] for record in read_log(result.out / "log.jsonl")] == list(
        range(1, result.num_steps + 1)
    )


def test_a_finished_run_answers_at_once_and_loads_no_weights(train, monkeypatch):
    first, _ = train(max_steps=2)
    monkeypatch.setattr(fitting, "load_reward_model", lambda *_, **__: pytest.fail("loaded"))
    again, heard = train(max_steps=2)
    assert not again.is_new
    assert [event for event, _ in heard.events] == ["finished"]
    assert again.final_evaluation == first.final_evaluation
    assert (again.out, again.model_dir) == (first.out, first.model_dir)


def test_a_model_that_is_gone_is_saved_again_from_the_last_checkpoint(train):
    first, _ = train(max_steps=3)
    before = model_weights(first)
    shutil.rmtree(first.model_dir)
    again, heard = train(max_steps=3)
    assert again.is_new
    assert heard.of("stepped") == []
    assert again.final_evaluation == first.final_evaluation
    after = model_weights(again)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_probe_saved_again_is_evaluated_once(train):
    first, _ = train(method="probe")
    shutil.rmtree(first.model_dir)
    again, _ = train(method="probe")
    assert again.is_new
    assert [record["step"] for record in read_log(again.out / "evaluations.jsonl")] == [0]


def test_a_disk_that_fills_up_with_hidden_states_is_named(train, tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("encore.training.embeddings.save_file", full)
    with pytest.raises(NoRoomError, match="the disk was full while a piece of the hidden states"):
        train(out=tmp_path / "full", method="probe")


def test_a_probe_that_was_stopped_reads_what_it_had_embedded(train, tmp_path, monkeypatch):
    undisturbed, _ = train(out=tmp_path / "undisturbed", method="probe")
    monkeypatch.setattr("encore.training.embeddings.PAIRS_PER_CHUNK", 16)
    from encore.training import embeddings

    computed: list[int] = []
    compute = embeddings._compute

    def counted(work, rows):
        if len(computed) == 2:
            raise KeyboardInterrupt
        computed.append(rows.start)
        return compute(work, rows)

    monkeypatch.setattr(embeddings, "_compute", counted)
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "stopped", method="probe")
    assert computed == [0, 16]
    again: list[int] = []
    monkeypatch.setattr(
        embeddings, "_compute", lambda work, rows: again.append(rows.start) or compute(work, rows)
    )
    resumed, _ = train(out=tmp_path / "stopped", method="probe")
    assert again[0] == 32  # the first two files were read
    ours, theirs = model_weights(resumed), model_weights(undisturbed)
    torch.testing.assert_close(ours["heads.weight"], theirs["heads.weight"], rtol=1e-3, atol=1e-5)


# --- what stands in the way ---------------------------------------------------------------------


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(train, tmp_path, caplog):
    undisturbed, _ = train(out=tmp_path / "undisturbed")
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", stop_after=7)
    damaged = checkpoint_path(tmp_path / "run" / "checkpoints", 6)
    data = bytearray((damaged / "optimizer.safetensors").read_bytes())
    data[-1] ^= 4
    (damaged / "optimizer.safetensors").write_bytes(data)
    resumed, heard = train(out=tmp_path / "run")
    assert heard.of("started")[0].start_step == 4
    assert any(str(damaged) in message for message in caplog.messages)
    assert same_weights(resumed, undisturbed)
    assert repeatable_log(resumed) == repeatable_log(undisturbed)


def test_the_folder_of_another_config_is_refused_before_weights_are_loaded(
    train, tmp_path, monkeypatch
):
    train(out=tmp_path / "run", max_steps=2)
    monkeypatch.setattr(fitting, "load_reward_model", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(InputError, match=r"config\.learning_rate is 0\.001 there and 0\.002 here"):
        train(out=tmp_path / "run", max_steps=2, learning_rate=2e-3)


def test_a_checkpoint_of_other_data_is_refused_even_without_the_manifest(
    train, made, study, tmp_path, backbone
):
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", stop_after=3)
    (tmp_path / "run" / "training.json").unlink()
    other = write_ratings(study, tmp_path / "other.parquet", missing_share=0.3)
    with pytest.raises(InputError, match=r"step-00000002 belongs to another .*data_sha256 is"):
        train_study(
            study,
            backbone=backbone,
            config=training_config(),
            reporter=SilentReporter(),
            ratings=other,
            out=tmp_path / "run",
        )


def test_weights_of_another_format_are_refused(train, tmp_path, backbone, monkeypatch):
    """The same settings mean bfloat16 on a GPU and float32 here: neither continues the other."""
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", stop_after=3)
    load = fitting.load_reward_model

    def in_bfloat16(config, **settings):
        return load(config.model_copy(update={"dtype": "bfloat16"}), **settings)

    monkeypatch.setattr(fitting, "load_reward_model", in_bfloat16)
    with pytest.raises(InputError, match=r'weights\.dtype is "float32" there and "bfloat16" here'):
        train(out=tmp_path / "run")


def test_another_environment_goes_on_with_a_warning(train, tmp_path, caplog, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", stop_after=3)
    monkeypatch.setattr(
        "encore.training.keeper.environment_of", lambda _: {"device": "cpu", "num_threads": 99}
    )
    train(out=tmp_path / "run")
    assert any("num_threads is" in m and "last bits" in m for m in caplog.messages)


def test_the_same_environment_is_no_reason_for_a_warning(train, tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", stop_after=3)
    with caplog.at_level(logging.WARNING):
        train(out=tmp_path / "run")
    assert caplog.messages == []


def test_a_full_disk_is_seen_before_weights_are_loaded(train, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, (1 << 30) - 100, 100))
    monkeypatch.setattr(fitting, "load_reward_model", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(NoRoomError, match=r"this run \(its checkpoints and its model\) needs"):
        train(out=tmp_path / "run")


def test_a_disk_that_fills_up_keeps_the_last_checkpoint_and_the_run_goes_on(
    train, tmp_path, monkeypatch
):
    undisturbed, _ = train(out=tmp_path / "undisturbed")
    save = checkpoints.save_file

    def fails_at_step_6(content, path):
        if "step-00000006" in str(path):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(content, path)

    monkeypatch.setattr(checkpoints, "save_file", fails_at_step_6)
    with pytest.raises(NoRoomError, match="checkpoint of step 4 is kept"):
        train(out=tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == (2, 4)
    assert not list((tmp_path / "run").rglob(".step*"))
    monkeypatch.undo()
    resumed, _ = train(out=tmp_path / "run")
    assert same_weights(resumed, undisturbed)
    assert repeatable_log(resumed) == repeatable_log(undisturbed)


def test_a_disk_that_is_full_for_the_model_costs_no_step(train, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(driver, "save_model", full)
    with pytest.raises(NoRoomError, match="the trained model was written; the last checkpoint"):
        train(out=tmp_path / "run", max_steps=3)
    monkeypatch.undo()
    result, heard = train(out=tmp_path / "run", max_steps=3)
    assert heard.of("stepped") == []
    assert result.model_dir.is_dir()


def test_a_weight_that_is_no_number_is_never_checkpointed(train, tmp_path, monkeypatch):
    save = Keeper.save

    def poisoned(self, step, evaluation):
        if step == 4:
            with torch.no_grad():
                self._model.heads.weight[0, 0] = float("nan")
        return save(self, step, evaluation)

    monkeypatch.setattr(Keeper, "save", poisoned)
    with pytest.raises(TrainingDivergedError, match=r"weight heads\.weight .*at step 4"):
        train(out=tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == (2,)


def test_a_directory_that_is_no_study_is_refused_before_anything_else(tmp_path, backbone):
    with pytest.raises(InputError, match="no such directory"):
        train_study(
            tmp_path / "nowhere",
            backbone=backbone,
            config=training_config(),
            reporter=SilentReporter(),
        )


def test_a_study_without_ratings_is_refused_by_name(study, backbone):
    with pytest.raises(InputError, match="no ratings yet"):
        train_study(study, backbone=backbone, config=training_config(), reporter=SilentReporter())
