"""Of several processes one speaks, and an error that another one alone has is not lost."""

from __future__ import annotations

import logging

import pytest

from encore.cli import rank_zero as module
from encore.cli.rank_zero import is_rank_zero, rank_zero_only
from encore.errors import EncoreError
from encore.terminal import console, out


@pytest.fixture
def second_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.0)
    yield
    console.quiet = out.quiet = False
    logging.disable(logging.NOTSET)


def test_alone_everything_is_said(monkeypatch, capsys):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with rank_zero_only():
        out.print("heard")
    assert is_rank_zero()
    assert "heard" in capsys.readouterr().out


def test_another_process_is_silent(second_process, capsys):
    assert not is_rank_zero()
    with rank_zero_only():
        out.print("not heard")
        logging.getLogger("encore").error("nor this")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize(
    "error", [EncoreError("the disk is full"), PermissionError(13, "denied", "weights")]
)
def test_an_error_of_its_own_is_told_with_the_number_of_the_process(second_process, error):
    told = r"process 1: (the disk is full|.*denied.*weights)"
    with pytest.raises(EncoreError, match=told), rank_zero_only():
        raise error
    assert not console.quiet


def test_ctrl_c_is_not_told_once_a_process(second_process):
    with pytest.raises(KeyboardInterrupt), rank_zero_only():
        raise KeyboardInterrupt
    assert console.quiet
