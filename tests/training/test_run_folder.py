"""The folder of a run: run key, lock, manifest, logs and result."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from encore.core.errors import EncoreError
from encore.model.backbone_options import BackboneConfig
from encore.training.run_folder import (
    MANIFEST_FILE,
    EvaluationRecord,
    StepRecord,
    TrainingRun,
    append_record,
    opened_run,
    read_log,
    read_result,
    run_identity,
    sync_logs,
    truncate_logs,
    write_result,
)
from encore.training.training_options import TrainingRunConfig


def run_in(folder: Path = Path(), **changes: object) -> TrainingRun:
    backbone = {"model": "/models/tiny", **changes.pop("backbone", {})}
    backbone_identity = {"name": "tiny", "revision": "sha256:ab", **changes.pop("identity", {})}
    data_sha256 = changes.pop("data_sha256", "d1")
    identity = run_identity(
        TrainingRunConfig(backbone=BackboneConfig(**backbone), **changes),
        backbone=backbone_identity,
        data_sha256=data_sha256,
    )
    return TrainingRun(folder=folder, identity=identity)


# --- key ----------------------------------------------------------------------------------------


INGREDIENTS = {
    "rate": {"learning_rate": 1e-3},
    "betas": {"adam_betas": (0.8, 0.9)},
    "clipping": {"clip_gradient": 1.0},
    "seed": {"seed": 1},
    "data": {"data_sha256": "d2"},
    "weights": {"identity": {"revision": "sha256:cd"}},
    "init": {"backbone": {"init": "random"}},
    "dtype": {"backbone": {"dtype": "bfloat16"}},
    "max_length": {"backbone": {"max_length": 99}},
}


@pytest.mark.parametrize("name", INGREDIENTS)
def test_every_ingredient_changes_the_key(name):
    assert run_in(**INGREDIENTS[name]).key != run_in().key


def test_paths_do_not_change_the_key_and_keys_stay():
    copy = {"model": "/elsewhere/copy", "revision": "main", "chat_template": "here.jinja"}
    assert run_in(backbone=copy, identity={"name": "copy"}).key == run_in().key
    # A key changes for no option that is added: only a default that changed makes another one.
    assert run_in().key == "cfe425bbf5509358"


# --- folder -------------------------------------------------------------------------------------


def open_once(run: TrainingRun) -> None:
    with opened_run(run, metadata={"versions": {"torch": "2"}}):
        pass


def test_a_folder_with_other_files_or_a_damaged_manifest_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for folder in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(EncoreError, match=r"it is or holds thesis\.tex"):
            open_once(run_in(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    run = run_in(tmp_path / "run")
    open_once(run)
    text = (run.folder / MANIFEST_FILE).read_text()
    content = json.loads(text)
    assert (content["run_key"], content["versions"]) == (run.key, {"torch": "2"})
    (run.folder / MANIFEST_FILE).write_text(text.replace('"d1"', '"d2"'))
    with pytest.raises(EncoreError, match=r"training\.json: damaged .*delete that file"):
        open_once(run)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    run = run_in(tmp_path)
    with (
        opened_run(run, metadata={}),
        pytest.raises(EncoreError, match="another process is training"),
    ):
        open_once(run)
    for name in (".model.tmp-123-abcd", "checkpoints/.step-00000020.tmp-123-abcd"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "weights").write_bytes(b"half")
    (tmp_path / ".result.json.tmp-123-abcd").write_bytes(b"half")
    with opened_run(
        run, metadata={}
    ):  # after a kill: the lock is free, and incomplete files are deleted
        assert not list(tmp_path.rglob(".*-abcd"))


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"1235")])
def test_a_run_has_finished_unless_its_model_is_damaged(tmp_path, damage):
    run = run_in(tmp_path)
    assert read_result(run) is None
    run.model_dir.mkdir()
    (run.model_dir / "weights").write_bytes(b"1234")
    write_result(run, num_steps=12, evaluation={"loss": 0.5})
    result = read_result(run)
    assert (result["num_steps"], result["evaluation"]) == (12, {"loss": 0.5})
    damage(run.model_dir / "weights")
    assert read_result(run) is None


# --- logs ---------------------------------------------------------------------------------------


def step_record(step: int, **changes: object) -> StepRecord:
    values = {"epoch": step / 7, "loss": step / 3, "learning_rate": 1e-3, "num_tokens": 10}
    values |= {"num_computed": 11, "seconds": 0.5, "tokens_per_second": 20.0, "mfu": None}
    values |= {"peak_memory_bytes": 2**30, "grad_norm": 1.5}
    return StepRecord(step=step, **(values | changes))


def evaluation_record(step: int) -> EvaluationRecord:
    r2_by_head = {"calm": 0.5, "kind": None}
    return EvaluationRecord(
        step=step, loss=0.25, r2_by_head=r2_by_head, accuracy_half=None, num_pairs=3
    )


def write_logs(folder: Path, steps: range) -> None:
    for step in steps:
        append_record(folder, step_record(step))
        if step % 2 == 0:
            append_record(folder, evaluation_record(step))


def test_logs_are_cut_back_to_a_step_byte_for_byte(tmp_path):
    truncate_logs(tmp_path, step=0)
    write_logs(tmp_path, range(1, 8))
    before = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)
    with (tmp_path / "log.jsonl").open("a") as stream:
        stream.write('{"step": 8, "lo')  # left by a killed process
    assert [record["step"] for record in read_log(tmp_path / "log.jsonl")] == list(range(1, 8))
    truncate_logs(tmp_path, step=4)
    assert (tmp_path / "log.jsonl").read_bytes() == b"".join(before[:4])
    assert [record["step"] for record in read_log(tmp_path / "evaluations.jsonl")] == [2, 4]
    write_logs(tmp_path, range(5, 8))
    assert (tmp_path / "log.jsonl").read_bytes() == b"".join(before)


def test_logs_are_flushed_to_the_disk_and_contain_no_nan(tmp_path, monkeypatch):
    synced: list[int] = []
    truncate_logs(tmp_path, step=0)
    with pytest.raises(ValueError, match="JSON"):
        append_record(tmp_path, step_record(2, loss=float("nan")))
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    sync_logs(tmp_path)
    files = [tmp_path / name for name in ("log.jsonl", "evaluations.jsonl")]
    assert sorted(synced) == sorted(path.stat().st_ino for path in files)
