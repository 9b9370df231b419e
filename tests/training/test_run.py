"""The folder of a run: its key, its log, who is at work in it, and whether it has ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import EncoreError, InputError
from encore.model.config import BackboneConfig
from encore.training.config import TrainingConfig
from encore.training.identity import first_difference
from encore.training.log import StepLog, cut_log, read_log
from encore.training.run import (
    RunResult,
    TrainingRun,
    identity_of,
    opened_run,
    read_result,
    run_folder,
    write_result,
)

BACKBONE_IDENTITY = {"name": "tiny", "revision": "sha256:ab"}
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS, lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3)
)


def identity(
    *, model: str = "/models/tiny", data_sha256: str = "d1", **settings: object
) -> dict[str, object]:
    return identity_of(
        TrainingConfig(**settings),
        backbone=BackboneConfig(model=model),
        backbone_identity=BACKBONE_IDENTITY,
        data_sha256=data_sha256,
    )


def run_in(folder: Path, **settings: object) -> TrainingRun:
    return TrainingRun(folder=folder, identity=identity(**settings))


# --- key ----------------------------------------------------------------------------------------


def test_the_key_does_not_depend_on_where_the_backbone_lies(tmp_path):
    here, there = identity(model="/models/tiny"), identity(model=str(tmp_path / "copy"))
    assert run_folder(tmp_path, here) == run_folder(tmp_path, there)
    assert str(tmp_path) not in json.dumps(there)


@pytest.mark.parametrize(
    "change", [{"learning_rate": 1e-5}, {"seed": 1}, {"data_sha256": "d2"}, {"method": "lora"}]
)
def test_the_key_depends_on_settings_and_data(change):
    assert run_in(Path(), **change).key != run_in(Path()).key


@given(VALUES)
def test_a_value_does_not_differ_from_itself(value):
    assert first_difference(value, json.loads(json.dumps(value))) is None


@given(VALUES, VALUES)
def test_unequal_values_differ_somewhere(left, right):
    assert (first_difference(left, right) is None) == (
        json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    )


def test_a_setting_that_only_one_side_has_is_a_difference():
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == "b is nothing there and 2 here"


# --- folder -------------------------------------------------------------------------------------


def test_a_run_says_what_it_is(tmp_path):
    run = run_in(tmp_path / "run")
    with opened_run(run, about={"versions": {"torch": "2"}}):
        pass
    content = json.loads(run.manifest_path.read_text())
    assert content["run_key"] == run.key
    assert content["identity"] == run.identity
    assert content["versions"] == {"torch": "2"}


def test_the_folder_of_another_run_is_refused_with_the_first_difference(tmp_path):
    with opened_run(run_in(tmp_path, learning_rate=2e-5), about={}):
        pass
    message = r"config\.learning_rate is 2e-05 there and 1e-05 here"
    with (
        pytest.raises(InputError, match=message),
        opened_run(run_in(tmp_path, learning_rate=1e-5), about={}),
    ):
        pass


def test_a_directory_with_other_things_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with (
        pytest.raises(EncoreError, match=r"other things in it \(thesis\.tex\)"),
        opened_run(run_in(tmp_path), about={}),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with (
        pytest.raises(EncoreError, match="this is a file"),
        opened_run(run_in(tmp_path / "out"), about={}),
    ):
        pass


def test_a_damaged_manifest_is_named_with_what_to_do(tmp_path):
    run = run_in(tmp_path)
    with opened_run(run, about={}):
        pass
    content = json.loads(run.manifest_path.read_text())
    content["identity"]["config"]["seed"] = 5
    run.manifest_path.write_text(json.dumps(content))
    with (
        pytest.raises(EncoreError, match=r"training\.json: damaged .*delete that file"),
        opened_run(run, about={}),
    ):
        pass


HOLD = """
import fcntl, sys, time
stream = open(sys.argv[1], "w")
fcntl.flock(stream, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    run = run_in(tmp_path)
    with opened_run(run, about={}):
        pass
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / ".lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(EncoreError, match="another process is training here"),
            opened_run(run, about={}),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with opened_run(run, about={}):  # killed, and its lock is gone with it
        pass


def test_what_a_killed_process_left_half_written_is_swept(tmp_path):
    run = run_in(tmp_path)
    with opened_run(run, about={}):
        pass
    run.checkpoints_dir.mkdir()
    (run.folder / ".model.tmp-123-abcd").mkdir()
    (run.folder / ".model.tmp-123-abcd" / "weights").write_bytes(b"half")
    (run.folder / ".result.json.tmp-123-abcd").write_bytes(b"half")
    (run.checkpoints_dir / ".step-00000020.tmp-123-abcd").mkdir()
    (run.checkpoints_dir / ".step-00000010.old-123-abcd").mkdir()
    with opened_run(run, about={}):
        assert not list(run.folder.rglob(".*-abcd"))


# --- result -------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> TrainingRun:
    run = run_in(tmp_path)
    run.model_dir.mkdir()
    (run.model_dir / "weights").write_bytes(b"1234")
    write_result(run, RunResult(num_steps=12, evaluation={"loss": 0.5}))
    return run


def test_a_finished_run_says_how_it_ended(finished):
    assert read_result(finished) == RunResult(num_steps=12, evaluation={"loss": 0.5})


@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.write_bytes(b"12")], ids=["gone", "cut-short"]
)
def test_a_run_without_its_whole_model_is_not_finished(finished, harm):
    harm(finished.model_dir / "weights")
    assert read_result(finished) is None


def test_a_run_is_not_finished_before_its_result_is_there(tmp_path):
    assert read_result(run_in(tmp_path)) is None


# --- log ----------------------------------------------------------------------------------------


def write_log(path: Path, steps: range) -> None:
    with StepLog(path) as log:
        for step in steps:
            log.append({"step": step, "loss": step / 3})


def test_a_record_is_on_disk_as_soon_as_it_is_appended(tmp_path):
    path = tmp_path / "log.jsonl"
    with StepLog(path) as log:
        log.append({"step": 1, "loss": 0.1})
        assert read_log(path) == [{"step": 1, "loss": 0.1}]


def test_a_log_is_cut_back_to_a_step(tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    write_log(path, range(1, 8))
    before = path.read_bytes().splitlines(keepends=True)
    cut_log(path, step=4, has_every_step=True)
    assert path.read_bytes() == b"".join(before[:4])  # byte for byte, floats too
    write_log(path, range(5, 8))
    assert path.read_bytes() == b"".join(before)
    assert caplog.text == ""


def test_half_a_line_of_a_killed_process_is_cut_off(tmp_path):
    path = tmp_path / "log.jsonl"
    write_log(path, range(1, 4))
    with path.open("a") as stream:
        stream.write('{"step": 4, "lo')
    assert [record["step"] for record in read_log(path)] == [1, 2, 3]
    cut_log(path, step=3, has_every_step=True)
    assert path.read_text().endswith('{"step": 3, "loss": 1.0}\n')


def test_a_log_with_a_step_missing_is_said_to_be_incomplete(tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    write_log(path, range(2, 6))
    cut_log(path, step=4, has_every_step=True)
    assert "has 3 of the 4 steps" in caplog.text


def test_not_a_number_never_gets_into_a_log(tmp_path):
    with StepLog(tmp_path / "log.jsonl") as log, pytest.raises(ValueError, match="JSON"):
        log.append({"step": 1, "loss": float("nan")})
