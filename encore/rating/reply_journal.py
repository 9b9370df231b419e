"""Journal of the replies to one shard's prompts, kept until the shard's file is written.

A server's replies cost money or hours. Each is appended to a file beside the run as it arrives. If
the shard is not finished (an error, Ctrl-C, a crash, a spent quota), the next call reads the file
and asks only for the rest. A line has a checksum, so a torn or damaged line is asked again. Lines
are appended in one write, so two processes may share a file. The file outlives its process; after
a power cut its last seconds may be missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.core.number_text import counted
from encore.judges.base import SERVER_ERROR, Prompt, Reply, Usage, prompt_digest

logger = logging.getLogger(__name__)

#: Version of the lines. A reader refuses lines of another version.
_FORMAT = 1
_CHECKSUM_DIGITS = 16
_CHECKSUM_FIELD = b', "sha256": "'


@dataclass(slots=True, kw_only=True)
class ReplyJournal:
    """Journal of the replies to one shard's prompts. One thread uses it; `read` opens it.

    Attributes:
        path: File of the journal, which the first reply creates.
        run_key: Key of the run, which every line has.
        earlier_replies: Replies of earlier calls by the digest of their prompt. The first counts.
        paid_replies: All replies of earlier calls, for their cost: those to equal prompts too, and
            those that only say what a prompt without an answer cost.
    """

    path: Path
    run_key: str
    earlier_replies: dict[str, Reply] = field(default_factory=dict)
    paid_replies: list[Reply] = field(default_factory=list)
    _new_lines: list[bytes] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, *, run_key: str) -> ReplyJournal:
        """Read the journal of a shard; it is empty if there is no file.

        Raises:
            InputError: The file holds replies of another run or version, or something else.
        """
        journal, num_damaged, line = cls(path=path, run_key=run_key), 0, b""
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            for line in file:
                if (record := _intact_record(line)) is not None:
                    journal._take(record)
                else:
                    num_damaged += line not in (b"", b"\n")
        if line and not line.endswith(b"\n"):
            journal._new_lines.append(b"\n")  # ends the torn line
        if num_damaged and line.endswith(b"\n") and not journal.paid_replies:
            raise InputError(f"{path}: no line is a reply as expected; move the file away")
        if num_damaged:
            lines = counted(num_damaged, "damaged line")
            logger.warning("%s: %s ignored; their prompts are asked again", path, lines)
        return journal

    def earlier_replies_to(self, prompts: Sequence[Prompt | None]) -> dict[int, Reply]:
        """Return the replies of earlier calls by the position of their prompt."""
        replies = {
            position: self.earlier_replies.get(prompt_digest(prompt))
            for position, prompt in enumerate(prompts)
            if prompt is not None
        }
        return {position: reply for position, reply in replies.items() if reply is not None}

    def add(self, prompt: Prompt, reply: Reply) -> None:
        """Take a new reply. `flush` writes it.

        A prompt that failed is asked again in the next call. Its reply is kept for its cost alone.
        """
        record = {
            "format": _FORMAT,
            "run_key": self.run_key,
            "prompt_sha256": prompt_digest(prompt),
        }
        body = json.dumps(record | {"reply": asdict(reply)}).encode()
        self._new_lines.append(body[:-1] + _CHECKSUM_FIELD + _checksum(body) + b'"}\n')

    def flush(self) -> None:
        """Append the new replies to the file, in one write."""
        data = b"".join(self._new_lines)
        if data.strip():
            self._new_lines.clear()
            with self.path.open("ab", buffering=0) as file:
                while data:  # a disk that is nearly full takes a part, and refuses the next
                    data = data[file.write(data) :]

    def _take(self, record: dict[str, Any]) -> None:
        """Take a reply of an earlier call.

        Raises:
            InputError: It is of another run, or of another version.
        """
        version, run_key = record["format"], record["run_key"]
        if (version, run_key) != (_FORMAT, self.run_key):
            raise InputError(
                f"{self.path}: it holds replies of run {run_key} in format {version}, expected run "
                f"{self.run_key} in format {_FORMAT}; move it to the folder of its run, or away"
            )
        fields = record["reply"]
        logprobs = fields.pop("label_logprobs")
        reply = Reply(
            **{
                **fields,
                "usage": Usage(*fields["usage"]),
                "remarks": tuple(fields.get("remarks", ())),
                "label_logprobs": None if logprobs is None else tuple(logprobs),
            }
        )
        if reply.null_reason != SERVER_ERROR:
            self.earlier_replies.setdefault(record["prompt_sha256"], reply)
        self.paid_replies.append(reply)


def _intact_record(line: bytes) -> dict[str, Any] | None:
    """Return the content of a line; None if its checksum does not fit."""
    start, field_name, end = line.rpartition(_CHECKSUM_FIELD)
    body = start + b"}"
    if not field_name or end != _checksum(body) + b'"}\n':
        return None
    record: dict[str, Any] = json.loads(body)
    return record


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_CHECKSUM_DIGITS].encode()
