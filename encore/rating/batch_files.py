"""Provider batch files: write the requests of a run, read the answers back.

Most providers answer such a file within a day, at half the price. The ``custom_id`` of a request
identifies its answer: the run's key and a digest of the prompt.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from encore.core.errors import EncoreError, InputError
from encore.core.files import atomic_path
from encore.core.reporting import Reporter
from encore.judges import http_protocol as protocol
from encore.judges import open_judge
from encore.judges.base import (
    Decoding,
    JudgeIdentity,
    ProgressHook,
    Prompt,
    Reply,
    ReplyHook,
    ignore_reply,
    prompt_digest,
)
from encore.judges.http_protocol import UnreadableAnswerError, first_words
from encore.judges.judge_options import JudgeConfig
from encore.judges.model_names import advice_on_name, is_name_of
from encore.judges.server_options import ServerOptions
from encore.rating.rating_run import RatingRun
from encore.runs.shard_files import inspect_shards

#: Largest number of requests and bytes that providers accept in one file.
MAX_REQUESTS, MAX_BYTES = 50_000, 200_000_000
#: Hex digits of a prompt's SHA-256 in an id. With the run's key, an id stays below the 64
#: characters that some providers allow.
_DIGEST_LENGTH = 32


@dataclass(slots=True)
class BatchJudge:
    """Judge whose answers are read from files. Its identity is that of the provider's server.

    A run is opened with this judge; then the judge reads the results of the run's requests.

    Attributes:
        config: The judge that the files are for.
        how: Address of the provider's server.
        run_key: Key of the run whose prompts are asked; empty until `read_results`.
        replies: Replies in the files, by ``custom_id``.
        errors: The server's reason for a missing reply, by ``custom_id``.
    """

    config: JudgeConfig
    how: ServerOptions
    run_key: str = ""
    replies: dict[str, Reply] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    tokenizer: None = field(default=None, init=False)
    is_on_cpu: bool = field(default=True, init=False)  # nothing to wait for, so one shard at a time
    is_remote: bool = field(default=False, init=False)
    num_engines: int = field(default=1, init=False)
    wait_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Check that the server is asked for chat completions over HTTP.

        Raises:
            InputError: It is not.
        """
        config = self.config
        if config.backend != "http" or config.tokenizer is not None or config.api is not None:
            raise InputError(
                "batch files are chat completions for a server: they need --backend http and "
                "--base-url, and no --tokenizer or --api"
            )

    @property
    def identity(self) -> JudgeIdentity:
        """Return the server's identity: files and HTTP calls can share one run."""
        return open_judge(self.config, self.how).identity

    def check(self, decoding: Decoding) -> None:
        """Accept every way of answering: the server cannot be asked before."""

    def start(self) -> None:
        """Do nothing: there is no model to load."""

    def close(self) -> None:
        """Do nothing: there is no engine to release."""

    def read_results(self, run: RatingRun, paths: Sequence[Path]) -> None:
        """Take the answers to a run's prompts from a provider's result files.

        Args:
            run: The run, opened with this judge.
            paths: Result files; none if only requests are written.

        Raises:
            InputError: A file cannot be read, or is not a result of this run.
        """
        self.run_key = run.manifest.run_key
        for path in paths:
            _read_results(path, self, run.rater.decoding)

    def custom_id(self, prompt: Prompt) -> str:
        """Return the id that a prompt's request and its answer share."""
        return f"{self.run_key}-{prompt_digest(prompt)[:_DIGEST_LENGTH]}"

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        **_options: Any,
    ) -> list[Reply]:
        """Return the replies in the files, whose requests were written with all options.

        Raises:
            EncoreError: The files lack an answer.
        """
        ids = [self.custom_id(prompt) for prompt in prompts]
        missing_ids = [custom_id for custom_id in ids if custom_id not in self.replies]
        if missing_ids:
            reasons = (self.errors[missing] for missing in missing_ids if missing in self.errors)
            reason = next((f": {text}" for text in reasons), "")
            raise EncoreError(
                f"the batch results lack {len(missing_ids)} of {len(ids)} answers, the first is "
                f"{missing_ids[0]}{reason}; --batch-file together with --batch-results writes the "
                "requests that have none"
            )
        replies = [self.replies[custom_id] for custom_id in ids]
        for index, reply in enumerate(replies):
            on_reply(index, reply)
        on_progress(len(replies))
        return replies


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequests:
    """Result of `write_requests`: the run's key, and the number of requests by file."""

    run_key: str
    files: Mapping[Path, int]


def write_requests(run: RatingRun, path: Path, *, reporter: Reporter) -> BatchRequests:
    """Write the open requests of a run to one file, or to several if one cannot hold them.

    Requests that the run's judge has read an answer to are not open.

    Args:
        run: The run, opened with a `BatchJudge`.
        path: First file; the next ones have its name with -2, -3 and so on.
        reporter: Receiver of a message on the run.
    """
    num_requests_by_path: dict[Path, int] = {}
    with contextlib.ExitStack() as stack:
        file: IO[bytes] | None = None
        num_bytes = num_requests = 0
        for line in _request_lines(run, reporter=reporter):
            if file is None or num_requests == MAX_REQUESTS or num_bytes + len(line) > MAX_BYTES:
                number = len(num_requests_by_path) + 1
                part = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
                file = stack.enter_context(stack.enter_context(atomic_path(part)).open("wb"))
                num_bytes = num_requests = 0
            file.write(line)
            num_bytes, num_requests = num_bytes + len(line), num_requests + 1
            num_requests_by_path[part] = num_requests
    return BatchRequests(run_key=run.manifest.run_key, files=num_requests_by_path)


def _request_lines(run: RatingRun, *, reporter: Reporter) -> Iterator[bytes]:
    """Yield the open requests of a run as lines: one for each prompt without an answer."""
    judge, config, written_ids = run.judge, run.config.judge, set[str]()
    assert isinstance(judge, BatchJudge), "the run was opened with one"
    job = run.job()
    reporter.message(run.title(job.shards))
    states = inspect_shards(run.run_dir, run.manifest, job.shards)
    done = {state.index: state for state in states if state.state == "done"}
    job.stop_rule.update([*done.values()])
    for shard in job.open_shards(job.shards):
        if shard.index in done:
            continue
        questions = run.rater.prompts.questions(run.pairs.slice(shard.start, shard.num_pairs))
        earlier_rows = run.earlier.rows(question.pair.pair_id for question in questions)
        open_questions = [
            question for question in questions if not question.is_answered(earlier_rows)
        ]
        for prompt, _ in run.rater.prompts.make(open_questions):
            assert prompt is not None, "without a tokenizer no prompt is too long"
            custom_id = judge.custom_id(prompt)
            if custom_id in judge.replies or custom_id in written_ids:  # pairs may share a prompt
                continue
            written_ids.add(custom_id)
            body = protocol.chat_request(config.model, prompt, run.rater.decoding)
            request = {
                "custom_id": custom_id,
                "method": "POST",
                "url": f"/v1{protocol.CHAT}",
                "body": config.request_body(body),
            }
            yield f"{json.dumps(request, ensure_ascii=False)}\n".encode()


def _read_results(path: Path, judge: BatchJudge, decoding: Decoding) -> None:
    """Add the answers of a file to the judge's replies; an error counts as a missing answer."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    _read_result(line, f"{path}, line {number}", judge, decoding)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--batch-results {path}: it cannot be read ({error})") from error


def _read_result(line: str, location: str, judge: BatchJudge, decoding: Decoding) -> None:
    try:
        row: Any = json.loads(line)
        custom_id = str(row["custom_id"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{location}: no batch result ({first_words(line)[:60]}); expected the file that the "
            "provider made of the requests"
        ) from error
    run_key = custom_id.rpartition("-")[0]
    if run_key != judge.run_key:
        raise InputError(
            f"{location}: {custom_id} belongs to run {run_key or 'none'}, and these options are "
            f"run {judge.run_key}; give the options that the requests were written with"
        )
    reply = _reply(row, judge, decoding)
    if isinstance(reply, str):
        judge.errors[custom_id] = reply
        return
    first_reply = judge.replies.setdefault(custom_id, reply)
    if first_reply != reply:
        raise InputError(
            f"{location}: {custom_id} is answered twice, {first_reply.text[:40]!r} and "
            f"{reply.text[:40]!r}; leave one of the files out"
        )


def _reply(row: Mapping[str, Any], judge: BatchJudge, decoding: Decoding) -> Reply | str:
    """Return the reply in a row, or the reason why there is none.

    Raises:
        InputError: The answer is another model's.
    """
    answer, error = row.get("response"), row.get("error")
    answer = answer if isinstance(answer, dict) else {}
    status, body = answer.get("status_code"), answer.get("body")
    if error or status != 200:
        error = error or (body.get("error") if isinstance(body, dict) else body)
        known_status = status if isinstance(status, int) else 0
        body = protocol.answer_of_error(protocol.CHAT, known_status, error)
        if body is None:
            return f"status {status}: {first_words(error)}"
    config = judge.config
    model, name = config.model, body.get("model") if isinstance(body, dict) else None
    if name is not None and name not in config.served_models and not is_name_of(name, model):
        raise InputError(
            f"{row['custom_id']} is an answer by {name!r}, not {model!r}; "
            f"{advice_on_name(name, config)}"
        )
    try:
        [reply] = protocol.read_chat(body, decoding=decoding)
    except UnreadableAnswerError as unreadable:
        return str(unreadable)
    return reply
