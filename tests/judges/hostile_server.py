"""A server of OpenAI's chat protocol, with the faults of real servers."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.judges.decision_answers import answer_to_decision
from tests.worlds.judges import hashed_score

MODEL = "some-judge"
KEY = "sk-test-0123456789abcdef"
#: Faults that count as an answer and are not retried, with the reason of the null rating.
ANSWERS = {
    "content_filter": "content_filter",
    "filtered_prompt": "content_filter",
    "invalid_prompt": "refused",
    "error_in_200": "refused",
    "refusal": "refusal",
    "reasoning": "only_thinking",
    "too_long": "prompt_too_long",
}
#: A slow answer takes so long that no test waits for its end, however slow the machine is.
SLOW_SECONDS = 600
#: Faults that may pass.
FAULTS = (
    *("429", "busy_credit", "500", "half", "half_chunked", "html", "another_model", "nothing"),
    *("error_inside", "error_choice", "large", "slow", "drip"),
)
#: Complete answers whose token counts nobody can believe: the rating is kept.
ODD_USAGES: dict[str, object] = {
    "negative": {"prompt_tokens": -5_000_000, "completion_tokens": -5_000_000},
    "huge": {"prompt_tokens": 10**9, "completion_tokens": 10**9},
    "not_finite": {"prompt_tokens": math.inf, "completion_tokens": math.nan},
    "texts": {"prompt_tokens": "100", "completion_tokens": True},
    "no_counts": {"prompt_tokens": None},
    "no_object": [100, 4],
    "missing": None,
}
#: Complete answers that cannot be read.
UNREADABLE = ("two_choices", "no_choices", "deep", "no_text", "not_json", "1e999")
#: Answers whose end is a word of a service of its own, all of them complete.
ENDS = ("eos_token", "STOP", "end_turn", "FINISH_REASON_STOP", "COMPLETE", None)
#: Levels of nesting of a deep answer.
DEPTH = 200_000
#: Two of them are answers that take longer than the limit of a request.
ENDLESS = ("slow", "drip")
#: Time between two bytes of an answer that drips. The whole takes 20 s and more.
DRIP_SECONDS = 0.1


@dataclass
class HostileServer:
    """Behaviour of a server, and the requests that it received.

    Attributes:
        fault: A key of `ANSWERS` or `QUOTAS`, one of `FAULTS`, 400, 503, redirect, compressed
            (10 MB in 10 kB), cut_off (a reply at its limit), no_logprobs, ignores_choice, or "".
        faults: Further faults, of which each meets a question in twenty.
        every: A question in so many meets the fault, selected by the question's hash.
        times: Number of requests for such a question that meet the fault.
        after: Number of requests before the first that meets the fault.
        spared: Question that meets no fault.
        redirect_url: Address that the fault ``redirect`` sends clients to.
        models: Names in the server's list of models.
        context: Context length in that list; None if it has none.
        tokens: Tokens that the server makes of every text; None if it has no page for that.
        is_silent: True while no request is answered.
        key: Key that the server requires; empty accepts every key.
        num_requests: Number of requests by path.
        num_asked: Number of requests by question.
        refused_fields: Fields of a body that the server does not know and refuses.
        queries: Parameters of the address of each request.
        sessions: Session ids of the requests.
        bodies: Bodies of the chat requests, in the order of arrival.
        gateway_keys: Values of the header X-Gateway-Key.
        waited: Seconds between a failed request and its retry.
        most_at_once: Largest number of simultaneous requests.
        base_url: Address of the running server.
    """

    fault: str = ""
    faults: tuple[str, ...] = ()
    every: int = 1
    times: int = 10**9
    after: int = 0
    spared: str = ""
    redirect_url: str = ""
    models: tuple[str, ...] = (MODEL,)
    context: int | None = None
    tokens: tuple[int, ...] | None = None
    is_silent: bool = False
    key: str = KEY
    num_requests: Counter[str] = field(default_factory=Counter)
    num_asked: Counter[str] = field(default_factory=Counter)
    refused_fields: frozenset[str] = frozenset()
    queries: list[str] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    gateway_keys: set[str] = field(default_factory=set)
    waited: list[float] = field(default_factory=list)
    most_at_once: int = 0
    base_url: str = ""
    _at_once: int = 0
    _tries: Counter[str] = field(default_factory=Counter)
    _failed_at: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_hit(self, question: str) -> bool:
        """Return True if a question meets the fault."""
        digest = int(hashlib.sha256(question.encode()).hexdigest(), 16)
        return digest % self.every == 0 and question != self.spared

    def lasting_fault_of(self, question: str) -> str:
        """Return which of ``faults`` a question meets; empty if it meets none."""
        number = int(hashlib.sha256(question.encode()).hexdigest(), 16) % 20
        is_spared = number >= len(self.faults) or question == self.spared
        return "" if is_spared else self.faults[number]

    def fault_of(self, question: str) -> str:
        """Return the fault that this request for a question meets."""
        if self.faults:
            return self.lasting_fault_of(question)
        if not self.is_hit(question) or self.num_asked.total() <= self.after:
            return ""
        with self._lock:
            self._tries[question] += 1
            if question in self._failed_at:
                self.waited.append(time.monotonic() - self._failed_at[question])
            self._failed_at[question] = time.monotonic()
            return self.fault if self._tries[question] <= self.times else ""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1


def question_of(body: dict[str, Any]) -> str:
    """Return the text that a chat or a request for decisions is about."""
    if "messages" in body:
        return str(body["messages"][0]["content"])
    return str(body.get("state") or body["input"])


def _text_of(body: dict[str, Any], fault: str) -> str:
    """Return a score that depends on the question alone, in the form that is asked for."""
    score = hashed_score(body["messages"][0]["content"])
    if fault == "ignores_choice":
        return score
    if fault == "grammar" and "grammar" in body:
        return str(json.loads(body["grammar"].removeprefix("root ::= ").split(" | ")[1]))
    if "response_format" in body:
        properties = body["response_format"]["json_schema"]["schema"]["properties"]
        labels = {key: values["enum"] for key, values in properties.items()}
        return json.dumps({key: labels[key][len(key) % 2] for key in labels})
    choices = body.get("structured_outputs", {}).get("choice") if not fault else None
    return choices[int(float(score) * 10) % len(choices)] if choices else score


#: Changes of an answer's choice by fault, and of its message.
_CHOICES: dict[str, dict[str, Any]] = {
    "content_filter": {"finish_reason": "content_filter"},
    "error_choice": {"finish_reason": "error", "error": {"code": 502, "message": "broke off"}},
    "cut_off": {"finish_reason": "length"},
    "reasoning": {"finish_reason": "length"},
}
_MESSAGES: dict[str, dict[str, Any]] = {
    "content_filter": {"content": ""},
    "refusal": {"content": None, "refusal": "I cannot judge this."},
    "large": {"content": "0" * 10_000_000},
    "compressed": {"content": "0" * 10_000_000},
    "error_choice": {"content": "0."},
    "surrogate": {"content": "0.31 \ud83d"},  # what a cut emoji leaves
    "reasoning": {"content": "", "reasoning_content": "Let me think about"},
    "no_text": {"content": 0.5},
    "key_in_reply": {"content": f"{KEY[:9]}***{KEY[-2:]} is your key"},
    "1e999": {"content": math.inf},
}


def answer_to(body: dict[str, Any], *, fault: str = "") -> dict[str, Any]:
    """Return the answer to a chat completion: a score that depends on the question alone."""
    if "messages" not in body:
        model = "another-judge" if fault == "another_model" else MODEL
        return {"model": model, **answer_to_decision(body, fault=fault)}
    score = _text_of(body, fault)
    text = f"<think>1/2</think>\n{score}" if fault == "thinking" else score
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    if body.get("logprobs") and fault != "no_logprobs":
        digit = str(round(float(score) * 10) % 10)
        top = [{"token": digit, "logprob": -0.25}, {"token": " odd", "logprob": -2.0}]
        message["content"] = digit
        choice["logprobs"] = {"content": [{"token": digit, "logprob": -0.25, "top_logprobs": top}]}
    choice |= _CHOICES.get(fault, {})
    message |= _MESSAGES.get(fault, {})
    usage: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 4, "total_tokens": 104}
    usage["prompt_tokens_details"] = {"cached_tokens": 60}
    choices = {"two_choices": [choice, choice], "no_choices": []}.get(fault, [choice])
    return {
        "object": "chat.completion",
        "model": "another-judge" if fault == "another_model" else MODEL,
        "choices": choices,
        "usage": ODD_USAGES.get(fault, usage),
    }


def answer_to_completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a completion of token ids: a score for each prompt, last one first."""
    choices = [
        {"index": index, "text": hashed_score(str(prompt)), "finish_reason": "stop"}
        for index, prompt in enumerate(body["prompt"])
    ]
    usage = {"prompt_tokens": 100, "completion_tokens": 4, "total_tokens": 104}
    return {"model": MODEL, "choices": choices[::-1], "usage": usage}


_CODES = {
    "filtered_prompt": "content_filter",
    "invalid_prompt": "invalid_prompt",
    "too_long": "context_length_exceeded",
    "400": "invalid_request_error",
}


#: Status and error of services whose user has to pay first, by fault.
QUOTAS: dict[str, tuple[int, dict[str, str | int]]] = {
    "quota": (429, {"type": "insufficient_quota", "code": "credit_balance_exhausted"}),
    "no_balance": (402, {"message": "Insufficient Balance", "code": "invalid_request_error"}),
    "billing_limit": (400, {"code": "billing_hard_limit_reached"}),
    "quota_inside": (200, {"code": 402, "message": "Insufficient credits"}),
}


def _answer_instead(
    fault: str, echo: str, redirect_url: str
) -> tuple[int, object, dict[str, str]] | None:
    """Return status, content and headers of an answer without a reply; None for other faults."""
    if fault in QUOTAS:
        status, error = QUOTAS[fault]
        return status, {"error": {"message": echo, **error}}, {}
    if fault in _CODES:
        return 400, {"error": {"code": _CODES[fault], "message": echo}}, {}
    page = f"<html><body>{echo}</body></html>"
    answers: dict[str, tuple[int, object, dict[str, str]]] = {
        "429": (429, {"error": {"message": echo}}, {"Retry-After": "1"}),
        "busy_credit": (402, {"error": {"message": echo}}, {"Retry-After": "1"}),
        "503": (503, {"error": {"message": echo}}, {}),
        "500": (500, {"error": {"message": echo}}, {}),
        "501": (501, {"error": {"message": echo}}, {}),
        "html": (200, page, {"Content-Type": "text/html"}),
        "not_json": (200, '{"choices": [', {}),
        "deep": (200, "[" * DEPTH + "]" * DEPTH, {}),
        "echo_plain": (400, {"error": {"code": "content_filter", "message": echo}}, {}),
        "echo_masked": (400, {"error": {"code": "content_filter", "message": echo}}, {}),
        "error_in_200": (200, {"error": {"code": 403, "metadata": {"flagged_input": echo}}}, {}),
        "error_inside": (200, {"error": {"message": echo, "code": 502}}, {}),
        "redirect": (307, "", {"Location": f"{redirect_url}/chat/completions"}),
    }
    return answers.get(fault)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        state = self.server.state
        self._note_query()
        if self._refuses_key():
            return
        self._wait_while_silent()
        facts = {} if state.context is None else {"max_model_len": state.context}
        models = [{"id": model, **facts} for model in state.models]
        self._send(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        state = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refuses_key():
            return
        self._note_query()
        state.num_requests[self.path.partition("?")[0]] += 1
        state.sessions.add(self.headers.get("X-Session-ID", ""))
        state.gateway_keys.add(self.headers.get("X-Gateway-Key", ""))
        state.bodies.append(body)
        with state.at_work():
            time.sleep(0.002)
            self._wait_while_silent()
            if self.path == "/tokenize":
                self._send(200 if state.tokens else 404, {"tokens": state.tokens})
                return
            if "prompt" in body:
                self._send(200, answer_to_completion(body))
                return
            question = question_of(body)
            state.num_asked[question] += 1
            self._answer(body, state.fault_of(question))

    def _answer(self, body: dict[str, Any], fault: str) -> None:
        state = self.server.state
        # Servers may repeat the request, and with it the key.
        keys = f"{self.headers['Authorization']} {self.headers['X-Gateway-Key']}"
        echo = f"failed on request with {keys}"
        if fault.startswith("echo_"):  # the key is at another position for each prompt
            key = KEY if fault == "echo_plain" else f"{KEY[:7]}********{KEY[-4:]}"
            echo = "." * (state.num_asked.total() % 210) + f" {key} is refused"
        if refused := state.refused_fields.intersection(body):
            message = f"Unsupported parameter: {', '.join(refused)}, {echo}"
            self._send(400, {"error": {"message": message, "code": "unsupported_parameter"}})
        elif fault == "nothing":
            self.close_connection = True
        elif fault in ("half", "half_chunked", "drip"):
            self._send_partly(json.dumps(answer_to(body)).encode(), fault)
        elif (answer := _answer_instead(fault, echo, state.redirect_url)) is not None:
            status, content, headers = answer
            self._send(status, content, **headers)
        else:
            if fault == "slow":
                self.server.stopped.wait(SLOW_SECONDS)
            self._send(200, answer_to(body, fault=fault), is_compressed=fault == "compressed")

    def _send_partly(self, answer: bytes, fault: str) -> None:
        """Send the first half of an answer, or all of it so slowly that no client waits."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if fault == "half_chunked":
            self.send_header("Transfer-Encoding", "chunked")
            answer = f"{len(answer):x}\r\n".encode() + answer
        else:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if fault == "drip":
            for byte in answer:
                self.wfile.write(bytes([byte]))
                self.server.stopped.wait(DRIP_SECONDS)
        else:
            self.wfile.write(answer[: len(answer) // 2])
            self.close_connection = True

    def _wait_while_silent(self) -> None:
        while self.server.state.is_silent and not self.server.stopped.wait(0.02):
            pass

    def _note_query(self) -> None:
        self.server.state.queries.append(self.path.partition("?")[2])

    def _refuses_key(self) -> bool:
        authorization = self.headers.get("Authorization", "")
        if self.server.state.key in ("", authorization.removeprefix("Bearer ")):
            return False
        message = f"Incorrect API key provided: {authorization}"
        self._send(401, {"error": {"message": message, "code": "invalid_api_key"}})
        return True

    def _send(
        self, status: int, content: object, *, is_compressed: bool = False, **headers: str
    ) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        if is_compressed:
            headers["Content-Encoding"], data = "gzip", gzip.compress(data)
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Echo", self.headers.get("Authorization", ""))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    state: HostileServer
    stopped: threading.Event

    def handle_error(self, *_: object) -> None:
        """Ignore clients that give up, which these tests provoke."""


@contextmanager
def serving(state: HostileServer, *, port: int = 0) -> Iterator[HostileServer]:
    """Run the server until the end of the block, on a free port or on the given one."""
    server = _Server(("127.0.0.1", port), _Handler)
    server.state, server.stopped = state, threading.Event()
    state.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        server.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()
