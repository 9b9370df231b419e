"""Which stages of a recipe are finished, read from files: what went in, what came out.

A stage's record, ``STUDY/recipes/<recipe>/<stage>.json``, is written after everything that it
names. The stage is finished as long as it would get the same input and its files are as they were
left; a stage before it that comes out otherwise, a lost file or a changed setting make it due
again, and with it all that follow. One process at a time is at a recipe's stages in a study.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from encore.data.study import is_free
from encore.errors import EncoreError
from encore.files import atomic_write_bytes, file_sha256

#: In a study: a folder for each recipe that was run in it.
RECIPES_DIR = "recipes"
#: Longer files are known by their length, as a training run knows its model: a finished stage is to
#: answer at once. What they follow from is in the record's input.
_DIGEST_LIMIT = 64 << 20
_LOCK_FILE = ".lock"
_POLL_SECONDS = 0.5


class FileMark(BaseModel):
    """How a file was left; ``sha256`` is None for one that is known by its length alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_bytes: int
    sha256: str | None


class StageRecord(BaseModel):
    """A finished stage.

    Attributes:
        stage: Its name.
        inputs: All that its result follows from, as JSON.
        files: What it wrote, by path relative to the study.
        facts: What later stages and readers ask for, such as the model's folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    inputs: dict[str, Any]
    files: dict[str, FileMark]
    facts: dict[str, str]

    @property
    def token(self) -> str:
        """Stands for this result in the input of stages that follow: 64 hex digits."""
        content = self.model_dump_json(include={"stage", "inputs", "files"})
        canonical = json.dumps(json.loads(content), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """What the work of a stage left.

    Attributes:
        outputs: Files, and folders of which every file counts; all in the study.
        facts: See `StageRecord`.
    """

    outputs: tuple[Path, ...]
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class StageBook:
    """The stages of one recipe in one study.

    Attributes:
        study: The study's directory.
        recipe: Its name.
        on_stage: Told the name of each stage that is asked for, and whether it was finished before.
        on_wait: Told the name of a stage that waits for another process at the same recipe.
        done_now: Names of the stages whose work this book did.
        done_before: Names of those that were finished.
    """

    study: Path
    recipe: str
    on_stage: Callable[[str, bool], None] = lambda _stage, _is_finished: None
    on_wait: Callable[[str], None] = lambda _stage: None
    done_now: list[str] = field(default_factory=list)
    done_before: list[str] = field(default_factory=list)

    def once(
        self,
        stage: str,
        *,
        inputs: Mapping[str, Any],
        work: Callable[[], StageResult],
        is_one: bool = False,
    ) -> StageRecord:
        """The stage's record: the one that is there, or a new one after doing the work.

        Args:
            stage: Name.
            inputs: All that the result follows from: JSON values.
            work: Does the stage; not called for a finished one.
            is_one: Its files are one thing, such as a model's folder: none is kept without another.

        Raises:
            InputError: Something that is no study is in the study's place.
            EncoreError: The work left nothing; or whatever the work raises.
        """
        found = self.finished(stage, inputs=inputs)
        if found is None:
            with self._alone(stage):
                return self._finished_or_done(stage, inputs=inputs, work=work, is_one=is_one)
        return self._passed_over(found)

    def _finished_or_done(
        self,
        stage: str,
        *,
        inputs: Mapping[str, Any],
        work: Callable[[], StageResult],
        is_one: bool,
    ) -> StageRecord:
        """Looked at again, with the lock held: another process may have done it meanwhile."""
        found = self.finished(stage, inputs=inputs)
        if found is not None:
            return self._passed_over(found)
        self.on_stage(stage, False)
        self._remove_damaged(stage, inputs=inputs, is_one=is_one)
        result = work()
        record = StageRecord(
            stage=stage,
            inputs=_plain(inputs),
            files=self._marks(stage, result.outputs),
            facts=dict(result.facts),
        )
        content = record.model_dump_json(indent=1).encode() + b"\n"
        path = self.record_path(stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path, content)
        self.done_now.append(stage)
        return record

    def _passed_over(self, record: StageRecord) -> StageRecord:
        self.on_stage(record.stage, True)
        self.done_before.append(record.stage)
        return record

    def was_done_with(self, stage: str, *, inputs: Mapping[str, Any]) -> bool:
        """Whether it was finished with this input once, whatever its files are like now."""
        record = self.recorded(stage)
        return record is not None and record.inputs == _plain(inputs)

    def _remove_damaged(self, stage: str, *, inputs: Mapping[str, Any], is_one: bool) -> None:
        """What the stage is known to have left otherwise must not pass for its result.

        Some work knows a finished file by its length, or trusts what it finds.
        """
        record = self.recorded(stage)
        if record is None or not self.was_done_with(stage, inputs=inputs):
            return
        for name, mark in record.files.items():
            path = self.study / name
            if is_one or not _is_as_left(path, mark):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    path.parent.rmdir()  # only where nothing is left in it

    def finished(self, stage: str, *, inputs: Mapping[str, Any]) -> StageRecord | None:
        """The record of a finished stage with this input; None if it is due."""
        record = self.recorded(stage)
        if record is None or record.inputs != _plain(inputs):
            return None
        is_whole = all(_is_as_left(self.study / name, mark) for name, mark in record.files.items())
        return record if is_whole else None

    def recorded(self, stage: str) -> StageRecord | None:
        """The record as it stands, whatever its files are like now; None without a readable one."""
        try:
            record = StageRecord.model_validate_json(self.record_path(stage).read_bytes())
        except (OSError, ValidationError):
            return None
        return record if record.stage == stage else None

    def record_path(self, stage: str) -> Path:
        """Where the record of a stage is."""
        return self.folder / f"{stage}.json"

    @property
    def folder(self) -> Path:
        """Of the records, and of the results that have no folder elsewhere."""
        return self.study / RECIPES_DIR / self.recipe

    @contextlib.contextmanager
    def _alone(self, stage: str) -> Iterator[None]:
        """Hold the recipe's lock, the operating system's: released even when its holder is killed.

        Waits for another process, however long its stage takes; Ctrl-C ends the wait. A study that
        is not there yet needs no lock: it appears by one rename.
        """
        if is_free(self.study):
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK_FILE).open("w") as stream:
            is_told = False
            while not _locked(stream.fileno()):
                if not is_told:
                    self.on_wait(stage)
                is_told = True
                time.sleep(_POLL_SECONDS)
            yield

    def _marks(self, stage: str, outputs: tuple[Path, ...]) -> dict[str, FileMark]:
        marks = {
            _relative(path, self.study): _mark(path)
            for output in outputs
            for path in _files(output)
        }
        if not marks:
            raise EncoreError(
                f"recipe {self.recipe}, stage {stage}: it ended without a file, so it cannot be "
                "known to be finished; run it again"
            )
        return marks


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _files(output: Path) -> list[Path]:
    """A file, or the files of a folder; no locks and nothing half-written."""
    if not output.is_dir():
        return [output]
    return sorted(
        path
        for path in output.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(output).parts)
    )


def _relative(path: Path, study: Path) -> str:
    """Of a study that was given by another way to the same place too."""
    return Path(os.path.relpath(path, study)).as_posix()


def _mark(path: Path) -> FileMark:
    num_bytes = path.stat().st_size
    return FileMark(
        num_bytes=num_bytes, sha256=file_sha256(path) if num_bytes <= _DIGEST_LIMIT else None
    )


def _is_as_left(path: Path, mark: FileMark) -> bool:
    try:
        return _mark(path) == mark
    except OSError:
        return False


def _plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same as it comes back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(inputs, sort_keys=True))
    return plain
