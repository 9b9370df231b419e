"""Which stages of a recipe are finished: a record says what went in and what came out.

``STUDY/recipes/NAME/STAGE.json`` is written last. The stage is finished as long as it would get the
same input and its files are as they were left, so a lost file or a changed setting makes it due.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from encore.files import atomic_write_bytes, file_sha256
from encore.model_files import folder_digest

#: Longer files are known by their length: a finished stage is to answer at once.
_DIGEST_LIMIT = 64 << 20


def once(
    path: Path,
    *,
    study: Path,
    inputs: Mapping[str, Any],
    work: Callable[[], Sequence[Path]],
    is_one: bool = False,
) -> StageRecord:
    """The record of a stage: the one that is there, or a new one after doing the work.

    Args:
        path: Of the record.
        study: The study's directory; files are recorded relative to it.
        inputs: All that the result follows from: JSON values.
        work: Does the stage and says which files and folders it left; the first one is the main
            result, or in its folder. Not called for a finished stage.
        is_one: The files are one thing, such as a model: none is kept without another.
    """
    record = StageRecord(path, study=study, inputs=inputs)
    if not record.is_finished:
        record.remove_damaged(is_one=is_one)
        record.write(work())
    return record


class StageRecord:
    """The record of one stage.

    Attributes:
        out: The stage's main result, once it is finished.
        token: Stands for the result in the input of later stages.
    """

    def __init__(self, path: Path, *, study: Path, inputs: Mapping[str, Any]) -> None:
        """Read the record, if it is there and of these inputs.

        Args:
            path: Of the record.
            study: The study's directory; files are recorded relative to it.
            inputs: All that the result follows from: JSON values.
        """
        self._path, self._study = path, study
        self._inputs = json.loads(json.dumps(inputs, sort_keys=True))
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = {}
        is_same = content.get("inputs") == self._inputs
        self._content: dict[str, Any] = content if is_same else {}

    @property
    def is_finished(self) -> bool:
        """Whether the stage was finished with these inputs and no file has changed since."""
        return bool(self._content) and not any(self._changed())

    @property
    def out(self) -> Path:
        """A path in the study."""
        return self._study / str(self._content["out"])

    @property
    def token(self) -> str:
        """64 hex digits."""
        canonical = json.dumps([self._content["inputs"], self._content["files"]], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def remove_damaged(self, *, is_one: bool) -> None:
        """What is known to be damaged must not pass for a result.

        Args:
            is_one: The files are one thing, such as a model: none is kept without another.
        """
        damaged = list(self._changed())
        for path in map(self._study.joinpath, self._content.get("files", ())):
            if path in damaged or (damaged and is_one):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    path.parent.rmdir()  # only where nothing is left in it

    def write(self, outputs: Sequence[Path]) -> None:
        """Record a finished stage by its files; of a folder every file counts."""
        out = outputs[0] if outputs[0].is_dir() else outputs[0].parent
        files = {
            path.relative_to(self._study).as_posix(): _mark(path)
            for output in outputs
            for path in _files(output)
        }
        where = out.relative_to(self._study).as_posix()
        self._content = {"inputs": self._inputs, "files": files, "out": where}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(self._path, json.dumps(self._content, indent=1).encode() + b"\n")

    def _changed(self) -> Iterable[Path]:
        for name, mark in self._content.get("files", {}).items():
            path = self._study / name
            if not path.is_file() or _mark(path) != mark:
                yield path


def known_by_content(value: Any) -> Any:
    """A config as JSON, with the digest of what lies there in place of each path."""
    if isinstance(value, Mapping):
        return {name: known_by_content(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [known_by_content(one) for one in value]
    path = Path(value).expanduser() if isinstance(value, str) and value else None
    if path is None or not path.exists():
        return value
    if (path / "config.json").is_file():
        return f"sha256:{folder_digest(path)}"
    return [[file.relative_to(path).as_posix(), file_sha256(file)] for file in _files(path)]


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


def _mark(path: Path) -> list[Any]:
    """Length, and the digest of what is not too long."""
    num_bytes = path.stat().st_size
    return [num_bytes, file_sha256(path) if num_bytes <= _DIGEST_LIMIT else None]
