"""Journal of the replies to one shard's prompts, kept until the shard's file is written.

Replies cost money or hours. Each is appended to a file beside the run as it arrives. If the shard
is not finished (an error, Ctrl-C, a crash, a spent quota), the next call reads the file and asks
only for the rest. A line has a checksum, so a torn or damaged line is asked again. Lines are
appended in one write, so two processes may share a file. The file outlives its process; after a
power cut its last seconds may be missing.
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
from encore.judges.base import (
    NO_USAGE,
    SERVER_ERROR,
    AskedJudge,
    ProgressHook,
    Prompt,
    Reply,
    ReplyHook,
    Usage,
    ignore_reply,
    prompt_digest,
)

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
        new_replies: Replies of this call.
    """

    path: Path
    run_key: str
    earlier_replies: dict[str, Reply] = field(default_factory=dict)
    paid_replies: list[Reply] = field(default_factory=list)
    new_replies: list[Reply] = field(default_factory=list)
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
        if not self.earlier_replies:
            return {}
        replies = {
            position: self.earlier_replies.get(prompt_digest(prompt))
            for position, prompt in enumerate(prompts)
            if prompt is not None
        }
        return {position: reply for position, reply in replies.items() if reply is not None}

    def add(self, prompt: Prompt, reply: Reply) -> None:
        """Take a new reply. `flush` writes it.

        A prompt that failed is asked again in the next call. Its reply is kept for its cost alone,
        if it has one. A reply that was paid for is kept, whatever is wrong with it.
        """
        self.new_replies.append(reply)
        if reply.null_reason == SERVER_ERROR and reply.usage == NO_USAGE:
            return
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
        reply = _reply_of(record["reply"])
        if reply.null_reason != SERVER_ERROR:
            self.earlier_replies.setdefault(record["prompt_sha256"], reply)
        self.paid_replies.append(reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalledJudge:
    """A judge that is asked only for replies that a journal does not have, and writes them there.

    A reply is in the file a moment after it came, also before an exception.

    Attributes:
        judge: The judge that replies.
        journal: Journal of the shard whose prompts are asked.
    """

    judge: AskedJudge
    journal: ReplyJournal

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        sessions: Sequence[str] = (),
        num_answered: int | None = None,
        **options: Any,
    ) -> list[Reply]:
        """Return the replies in the order of the prompts, those in the journal first."""
        replies = self.journal.earlier_replies_to(prompts)
        num_kept = len(replies)
        for index, reply in replies.items():
            on_reply(index, reply)
        on_progress(num_kept)
        open_indices = [index for index in range(len(prompts)) if index not in replies]

        def keep(position: int, reply: Reply) -> None:
            index = open_indices[position]
            self.journal.add(prompts[index], reply)
            on_reply(index, reply)

        def flush_and_report(num_done: int) -> None:
            self.journal.flush()
            on_progress(num_kept + num_done)

        if not open_indices:
            return [replies[index] for index in range(len(prompts))]
        try:
            new_replies = self.judge.reply(
                [prompts[index] for index in open_indices],
                on_progress=flush_and_report,
                on_reply=keep,
                sessions=[sessions[index] for index in open_indices] if sessions else (),
                num_answered=None if num_answered is None else num_answered + num_kept,
                **options,
            )
        finally:
            self.journal.flush()
        replies |= zip(open_indices, new_replies, strict=True)
        return [replies[index] for index in range(len(prompts))]


def _reply_of(fields: dict[str, Any]) -> Reply:
    """Return the reply whose fields are in a line."""
    logprobs = fields["label_logprobs"]
    return Reply(
        **{
            **fields,
            "usage": Usage(*fields["usage"]),
            "remarks": tuple(fields.get("remarks", ())),
            "label_logprobs": None if logprobs is None else tuple(logprobs),
            "answers": tuple(map(_reply_of, fields.get("answers", ()))),
        }
    )


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
