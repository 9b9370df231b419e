"""One opened run for all shard tasks of a flow run, closed on every way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.config import JudgeConfig, RatingConfig
from encore.errors import JudgeUnavailableError
from encore.rating import RatingRun
from tasks import shared_run as module
from tasks.errors import RatingStoppedError
from tasks.shared_run import keep_run_open, shared_run


class OpenedRuns:
    """Stands in for `open_run`: counts, and remembers what was closed."""

    def __init__(self) -> None:
        self.opened: list[FakeRun] = []

    def open(self, *_args: object) -> FakeRun:
        self.opened.append(FakeRun())
        return self.opened[-1]


class FakeRun:
    def __init__(self) -> None:
        self.is_closed = False
        self.judge = self
        self.cancelled = RatingRun.__dataclass_fields__["cancelled"].default_factory()

    def close(self) -> None:
        assert self.cancelled.is_set()
        self.is_closed = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> OpenedRuns:
    runs = OpenedRuns()
    monkeypatch.setattr(module, "open_study", lambda path: path)
    monkeypatch.setattr(module, "open_run", runs.open)
    return runs


STUDY = Path("study")
CONFIG = RatingConfig(judge=JudgeConfig(model="j"))


def test_tasks_of_one_flow_run_get_the_same_run(runs: OpenedRuns) -> None:
    with keep_run_open(STUDY, CONFIG):
        assert shared_run(STUDY, CONFIG).get() is shared_run(STUDY.resolve(), CONFIG).get()
    assert len(runs.opened) == 1


def test_another_config_is_another_run(runs: OpenedRuns) -> None:
    other = CONFIG.model_copy(update={"limit": 5})
    with keep_run_open(STUDY, CONFIG), keep_run_open(STUDY, other):
        assert shared_run(STUDY, CONFIG).get() is not shared_run(STUDY, other).get()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_judge_is_closed_on_any_way_out(
    runs: OpenedRuns, error: type[BaseException] | None
) -> None:
    def flow() -> None:
        with keep_run_open(STUDY, CONFIG):
            shared_run(STUDY, CONFIG).get()
            if error is not None:
                raise error

    if error is None:
        flow()
    else:
        with pytest.raises(error):
            flow()
    assert runs.opened[0].is_closed


def test_the_last_of_two_flow_runs_closes_the_judge(runs: OpenedRuns) -> None:
    with keep_run_open(STUDY, CONFIG):
        with keep_run_open(STUDY, CONFIG):
            shared_run(STUDY, CONFIG).get()
        assert not runs.opened[0].is_closed
    assert runs.opened[0].is_closed


def test_a_task_that_comes_after_the_end_opens_nothing(runs: OpenedRuns) -> None:
    with keep_run_open(STUDY, CONFIG):
        shared_run(STUDY, CONFIG).get()
    with pytest.raises(RatingStoppedError, match="is over"):
        shared_run(STUDY, CONFIG)
    assert len(runs.opened) == 1


def test_a_fatal_error_is_met_by_every_later_task_at_once(runs: OpenedRuns) -> None:
    with keep_run_open(STUDY, CONFIG):
        shared = shared_run(STUDY, CONFIG)
        shared.fatal = JudgeUnavailableError("no engine")
        with pytest.raises(JudgeUnavailableError, match="no engine"):
            shared_run(STUDY, CONFIG).get()
    assert runs.opened == []
