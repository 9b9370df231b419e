"""`encore train`: help that teaches, one clear line on bad input, and a model at the end."""

from __future__ import annotations

import json
import logging
import signal
import time
from pathlib import Path

import pytest

from encore.cli import train as module
from encore.cli.train import is_rank_zero, rank_zero_only
from encore.core.errors import EncoreError
from encore.core.terminal import console, out
from encore.training.checkpoints import checkpoint_steps
from encore.training.seed_runs import Spread, spread
from tests.golden.command_line import Finished, encore
from tests.signals import encore_process
from tests.worlds.trainings import RULES, make_world, one_thread, train_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("train"), num_pairs=24)


@pytest.fixture
def train(folder: Path, tmp_path: Path):
    def run(*, out: str = "run", evaluation_share: float = 0.2, **options: object) -> Finished:
        options |= {"batch_pairs": 4, "evaluation_share": evaluation_share}
        return encore(*train_command(folder, out=tmp_path / out, **options)[2:])

    return run


def test_a_training_ends_with_a_table_of_heads_and_json_says_it_is_done(train, tmp_path):
    finished = train(max_steps=3)
    assert finished.code == 0, finished.err
    assert all(text in finished.out for text in (*RULES, "R²", "accuracy"))
    assert f"model {tmp_path / 'run' / 'model'}" in finished.err
    assert "next: encore weights " in finished.err
    assert "step 3 of 3: loss" in finished.err
    again = train(max_steps=3, json=None)
    assert "finished before, nothing done" in again.err
    result = again.json
    assert (result["num_steps"], result["is_new"]) == (3, False)
    assert result["model"] == str(tmp_path / "run" / "model")
    assert set(result["evaluation"]["r2_by_head"]) == set(RULES)
    assert any("ratings are missing" in note for note in result["notes"])
    manifest = json.loads((tmp_path / "run" / "training.json").read_text())
    assert result["run_key"] == manifest["run_key"]


def test_options_that_change_nothing_are_named(train):
    probe = train(method="probe", lora_rank=4, out="probe")
    assert "method probe has no use for --epochs" in probe.err
    assert "method probe has no use for --lora-rank" in probe.err
    baseline = train(objective="bradley-terry", max_steps=1, out="baseline")
    assert "objective bradley-terry has no use for --ratings" in baseline.err
    assert "next: encore score " in baseline.err
    plain = train(max_steps=1, evaluation_share=0, out="plain")
    assert "changes nothing" not in plain.err
    assert "nothing was held out" in plain.err


@pytest.mark.services
def test_seeds_train_a_run_each_and_show_mean_and_range(train, tmp_path, monkeypatch):
    options = {"method": "probe", "seed": 3}
    answer = train(seeds=2, json=None, **options).json
    folders = [tmp_path / "run" / f"seed-{seed}" for seed in (3, 4)]
    assert [run["out"] for run in answer["runs"]] == [*map(str, folders)]
    [first, second] = answer["runs"]
    assert first["run_key"] != second["run_key"]
    alone = train(out="alone", json=None, **options).json
    assert (alone["run_key"], alone["evaluation"]["loss"]) == (
        first["run_key"],
        first["evaluation"]["loss"],
    )
    losses = sorted(run["evaluation"]["loss"] for run in answer["runs"])
    assert answer["over_seeds"]["loss"] == {
        "mean": pytest.approx(sum(losses) / 2),
        "lowest": losses[0],
        "highest": losses[1],
        "num_seeds": 2,
    }
    assert set(answer["over_seeds"]["accuracy_half_by_head"]) == set(RULES)
    again = train(seeds=2, **options)
    assert again.err.count("finished before, nothing done") == 2
    assert f"{losses[0]:.4f}…{losses[1]:.4f}" in again.out
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "--seeds 2 with several processes" in train(seeds=2, **options).err


def test_the_spread_over_seeds_leaves_out_missing_figures():
    # (0.25 + 0.75 + 0.5) / 3; a seed without the figure is not counted as 0.
    assert spread([0.25, None, 0.75, 0.5]) == Spread(
        mean=0.5, lowest=0.25, highest=0.75, num_seeds=3
    )
    assert spread([None]) is None


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.services),
        pytest.param(signal.SIGINT, marks=pytest.mark.full),
    ],
)
def test_a_stopped_training_keeps_its_checkpoint(folder, tmp_path, stop):
    """While it runs, a second one in the same folder is refused."""
    out = tmp_path / "run"
    command = train_command(folder, out=out, batch_pairs=4, max_steps=2000, checkpoint_every=4)
    with encore_process(*command[2:], env=one_thread()) as process:
        deadline = time.monotonic() + 120
        while not checkpoint_steps(out / "checkpoints"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second = encore(*command[2:])
        assert second.code == 1
        assert "another process is training here" in second.error
        process.send_signal(stop)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[stop]
    assert "stopping …" in errors  # at once, before what is at work has ended
    assert "; finished work is kept, the same command continues" in errors
    assert "Traceback" not in errors
    assert checkpoint_steps(out / "checkpoints")
    assert not list(out.rglob(".*.tmp-*"))


# --- several processes --------------------------------------------------------------------------


@pytest.fixture
def second_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.0)
    yield
    console.quiet = out.quiet = False
    logging.disable(logging.NOTSET)


def test_another_process_is_silent(second_process, capsys):
    assert not is_rank_zero()
    with rank_zero_only():
        out.print("not printed")
        logging.getLogger("encore").error("not logged")
    with pytest.raises(KeyboardInterrupt), rank_zero_only():
        raise KeyboardInterrupt  # rank 0 reports it
    assert console.quiet
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize(
    "error", [EncoreError("the disk is full"), PermissionError(13, "denied", "weights")]
)
def test_an_error_of_another_process_names_its_rank(second_process, error):
    message = r"process 1: (the disk is full|.*denied.*weights)"
    with pytest.raises(EncoreError, match=message), rank_zero_only():
        raise error
    assert not console.quiet
