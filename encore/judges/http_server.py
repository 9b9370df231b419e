"""One server that speaks OpenAI's protocol: send requests, name its errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.core.extras import install_command
from encore.judges import http_protocol as protocol
from encore.judges.http_protocol import (
    GatewayError,
    OtherModelError,
    PromptFailedError,
    ServerAwayError,
    UnreadableAnswerError,
    first_words,
)
from encore.judges.redaction import Redactor
from encore.judges.server_options import ServerOptions

try:
    import httpx2
    import openai
except ImportError as missing:
    raise JudgeUnavailableError(
        f"a judge over HTTP needs the package {missing.name}, which is not installed here: "
        f"{install_command('openai')}"
    ) from missing

#: Retries of a request that failed for a passing reason. The client waits 0.5 to 8 s between them,
#: or as long as the server says in `Retry-After`.
MAX_RETRIES = 5
#: Longest answer of a server, decompressed. 64 replies of 512 tokens have about 0.2 MB.
MAX_ANSWER_BYTES = 8 * 2**20
#: Header of an answer that stands for a connection that was not made, or broke: the reason.
_NO_CONNECTION = "X-Encore-No-Connection"
#: Bytes of an answer in another form that are looked at for its first words.
_NUM_SHOWN_BYTES = 10_000
#: Statuses below 500 that may be the fault of one prompt.
_PROMPT_STATUSES = (400, 413, 422)
#: Status of an interface that the server does not have for its model.
_NOT_IMPLEMENTED = 501
#: Statuses of a gateway whose server is away.
_AWAY_STATUSES = (502, 503, 504)
_Result = TypeVar("_Result")


@functools.cache
def _trusted_certificates() -> ssl.SSLContext:
    """Return what every client trusts; reading the file takes 40 ms, once and not per server."""
    return httpx2.create_ssl_context()


class _BoundedClient(openai.DefaultAsyncHttpxClient):
    """HTTP client with limits of the time and the length of a whole answer.

    httpx limits the time of each read, so an answer of one byte a second would never end.
    """

    def __init__(self, limit_seconds: float, *, retries_connections: bool) -> None:
        """Open no connection yet. The caller bounds their number.

        Args:
            limit_seconds: Time limit of a request.
            retries_connections: False if another server takes a request that found no connection
                or lost it; True if it is sent again here.
        """
        limits = httpx2.Limits(
            max_connections=None,
            max_keepalive_connections=None,
            # The next request closes all that expired; if it is cancelled then, they stay open.
            keepalive_expiry=60,
        )
        # An address without a machine takes no connection, and is told from a slow answer.
        connect_seconds = min(20, limit_seconds / 2)
        timeout = httpx2.Timeout(limit_seconds, connect=connect_seconds)
        super().__init__(timeout=timeout, limits=limits, verify=_trusted_certificates())
        self._limit_seconds = limit_seconds
        self._retries_connections = retries_connections

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request and read its answer to the end.

        Raises:
            httpx2.ReadTimeout: The answer was not complete in time.
            UnreadableAnswerError: The answer is too long.
        """
        content = bytearray()
        try:
            async with asyncio.timeout(self._limit_seconds):
                response = await super().send(request, **options | {"stream": True})
                try:
                    async for chunk in response.aiter_bytes():
                        content += chunk
                        if len(content) > MAX_ANSWER_BYTES:
                            size = f"{MAX_ANSWER_BYTES / 2**20:g} MiB"
                            raise UnreadableAnswerError(f"it is longer than {size}")
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("the answer is not complete", request=request) from None
        except (httpx2.NetworkError, httpx2.ProtocolError, httpx2.ConnectTimeout) as error:
            if self._retries_connections:
                raise
            reason = first_words(f"{type(error).__name__}: {error}")
            answer = {_NO_CONNECTION: reason, "X-Should-Retry": "false"}  # the client obeys it
            return httpx2.Response(503, headers=answer, request=request)
        headers = response.headers
        if response.is_error:
            text = content.decode(errors="replace")
            is_spent = protocol.is_quota_spent(response.status_code, text, headers=headers)
            if is_spent or response.status_code == 402:  # 402 with a time to wait passes
                headers["X-Should-Retry"] = str(not is_spent).lower()
            elif response.status_code == _NOT_IMPLEMENTED or (
                response.status_code in _AWAY_STATUSES and not self._retries_connections
            ):
                headers["X-Should-Retry"] = "false"
        for name in ("Content-Encoding", "Content-Length", "Transfer-Encoding"):
            headers.pop(name, None)  # of the answer as it was sent
        return httpx2.Response(
            response.status_code, headers=headers, content=bytes(content), request=request
        )


def _header_value(name: str, source: str) -> str:
    """Return the value of a header from the environment variable of ``ENV:VARIABLE``.

    Raises:
        JudgeUnavailableError: The variable is not set, or its text cannot be sent.
    """
    variable = source.removeprefix("ENV:")
    value = os.environ.get(variable, "").strip()
    if not value or not (value.isascii() and value.isprintable()):
        problem = "is no line of ASCII text" if value else "is not set"
        raise JudgeUnavailableError(
            f"--header {name}: the environment variable {variable} {problem}; set it to the "
            "header's value"
        )
    return value


class HttpServer:
    """Client of the server at one address.

    Attributes:
        url: Address, to which the paths of requests are appended.
    """

    def __init__(self, model: str, how: ServerOptions, url: str, *, is_only_one: bool) -> None:
        """Send nothing yet.

        Args:
            model: Name of the judge.
            how: Options with the key and the time limit of a request.
            url: Address of the server, with its path such as ``/v1``.
            is_only_one: False if another server takes the requests that this one cannot.
        """
        for name in ("openai", "httpx", "httpcore", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)  # lower levels log headers
        self.url = url
        self._model, self._how = model, how
        self._key = os.environ.get(how.api_key_env, "").strip()
        headers = {name: _header_value(name, source) for name, source in how.headers.items()}
        self._redactor = Redactor([self._key, *headers.values()])
        address = urlsplit(url)
        self._query = f"?{address.query}" if address.query else ""
        self._label = f"judge {model!r}: {address.hostname if is_only_one else address.netloc}"
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "EMPTY",  # the client needs a key, a server without keys does not
            base_url=address._replace(query="").geturl(),
            max_retries=MAX_RETRIES,
            default_headers=headers,
            http_client=_BoundedClient(
                how.request_timeout_seconds, retries_connections=is_only_one
            ),
        )

    async def request(
        self,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[Any], _Result],
        *,
        session: str = "",
    ) -> _Result:
        """Send a request and return what ``read`` makes of the answer.

        The client sends it again after errors that pass. A complete answer may be paid for, so the
        caller decides whether one that cannot be read is asked for again.

        Args:
            path: Path of the request.
            body: Body of a POST request; None sends a GET request.
            read: Function that reads the answer, without keys in it, or raises
                UnreadableAnswerError.
            session: Name by which a router chooses a server; empty for none.

        Raises:
            PromptFailedError: It did not answer, or the answer cannot be read; another prompt may
                be answered.
            EncoreError: The server is away, refuses the key, or lacks model or quota.
        """
        options: Any = {"follow_redirects": False}  # texts go to no other host
        options |= {"headers": {"X-Session-ID": session}} if session else {}
        arguments: dict[str, Any] = {"cast_to": httpx2.Response, "options": options}
        send = self._client.get if body is None else partial(self._client.post, body=body)
        try:
            answer = self._parsed(await send(path + self._query, **arguments))
            if (quota_error := protocol.quota_error_within(answer)) is not None:
                raise self._quota_error(200, quota_error)
            return read(answer)
        except openai.APIStatusError as error:
            status, response = error.status_code, error.response
            if protocol.is_quota_spent(status, response.text, headers=response.headers):
                raise self._quota_error(status, response.text) from None
            if (answer := self._answer_of_error(path, error)) is None:
                raise self._one_line_error(error) from None
            return read(answer)
        except openai.APIConnectionError as error:
            raise self._one_line_error(error) from None
        except OtherModelError:
            raise
        except UnreadableAnswerError as error:
            raise UnreadableAnswerError(
                f"{self._label} does not answer as the OpenAI protocol says: {error}; check "
                "--base-url (most servers need /v1 at its end), see the server's log",
                answer=error.answer,
            ) from None

    def _answer_of_error(self, path: str, error: openai.APIStatusError) -> dict[str, Any] | None:
        """Return the answer that an error is equivalent to; None for a failure."""
        with contextlib.suppress(RecursionError):
            details = self._redactor.value(error.body)
            return protocol.answer_of_error(path, error.status_code, details)
        return None

    def _parsed(self, response: httpx2.Response) -> Any:
        """Return the JSON value of an answer, without keys in it.

        Raises:
            UnreadableAnswerError: It is no JSON, or nested too deeply.
        """
        try:
            return self._redactor.value(json.loads(response.content))
        except RecursionError:
            raise UnreadableAnswerError("it is nested too deeply") from None
        except ValueError:
            text = response.content[:_NUM_SHOWN_BYTES].decode(errors="replace")
            raise UnreadableAnswerError(
                f"{first_words(self.redacted(text))} (no JSON object)"
            ) from None

    def redacted(self, text: str) -> str:
        """Return a text of the server without the key and the values of headers."""
        return self._redactor.text(text)

    async def ask_health(self) -> None:
        """Ask whether the server can work, as vLLM says at ``/health``.

        Raises:
            ServerAwayError: It says no, or takes no connection.
        """
        options: Any = {"max_retries": 0, "follow_redirects": False}
        try:
            await self._client.get(self._beside("health"), cast_to=httpx2.Response, options=options)
        except openai.APIStatusError as error:
            if error.status_code >= 500:
                raise ServerAwayError(str(self._one_line_error(error))) from None
        except openai.APIConnectionError as error:
            raise ServerAwayError(str(self._one_line_error(error))) from None

    async def tokens_of(self, text: str) -> list[int] | None:
        """Return the tokens that vLLM makes of a text; None if the server has no ``/tokenize``."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        with contextlib.suppress(EncoreError, LookupError, TypeError):
            return await self.request(
                self._beside("tokenize"), body, lambda answer: [*map(int, answer["tokens"])]
            )
        return None

    def _beside(self, name: str) -> str:
        """Return the address of vLLM's own pages, which stand beside the protocol's ``/v1``."""
        address = urlsplit(self.url)
        return address._replace(
            path=f"{address.path.rstrip('/').removesuffix('/v1')}/{name}", query=""
        ).geturl()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _quota_error(self, status: int, error: object) -> JudgeUnavailableError:
        """Return the error that ends a run because the service wants money first."""
        return JudgeUnavailableError(
            f"{self._label} answered {status}: {first_words(self.redacted(str(error)))}; the quota "
            "or the credit is spent: raise it at the service, then give the same command again, "
            "which asks for what is missing"
        )

    def _one_line_error(self, error: openai.APIError) -> EncoreError:
        """Return the client's error in one line with advice, without the key."""
        num_attempts = 1 + int(error.request.headers.get("x-stainless-retry-count", 0))
        attempts = f" ({num_attempts} attempts)" if num_attempts > 1 else ""
        can_wait = self._how.wait_for_server > 0
        wait_advice = "" if can_wait else "; --wait-for-server MINUTES waits for a server to return"
        if isinstance(error, openai.APIStatusError):
            if reason := error.response.headers.get(_NO_CONNECTION, ""):
                return ServerAwayError(f"{self._label} takes no connection: {reason}{wait_advice}")
            status = error.status_code
            reason = first_words(self.redacted(error.response.text))
            variable, is_set = self._how.api_key_env, "" if self._key else "not "
            key = f"the key comes from the environment variable {variable}, which is {is_set}set"
            address = "check --judge and --base-url (most servers need /v1 at its end)"
            # Errors that every request would meet end the run.
            lacking = "this server does not have the interface for this model"
            advice = {401: key, 403: key, 404: address, _NOT_IMPLEMENTED: lacking}.get(status)
            if error.response.has_redirect_location:  # texts go to no other host
                advice = f"the server redirects to another address; {address}"
            kind = EncoreError if advice is None else JudgeUnavailableError
            if status in _PROMPT_STATUSES or (status >= 500 and status != _NOT_IMPLEMENTED):
                kind = GatewayError if status in _AWAY_STATUSES else PromptFailedError
            is_busy = status == 429 or status >= 500
            advice = advice or (
                "see the server's log, or lower --concurrency" if is_busy else "see its log"
            )
            advice += wait_advice if kind is GatewayError else ""
            return kind(f"{self._label} answered {status}{attempts}: {reason}; {advice}")
        cause = error.__cause__ or error
        reason = first_words(self.redacted(f"{type(cause).__name__}: {cause}"))
        if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
            return ServerAwayError(
                f"{self._label} takes no connection{attempts}: {reason}{wait_advice}"
            )
        if isinstance(error, openai.APITimeoutError):
            limit = f"{self._how.request_timeout_seconds:g} s{attempts}"
            return EncoreError(
                f"{self._label} did not answer within {limit}; raise --request-timeout-seconds or "
                "lower --concurrency"
            )
        return EncoreError(f"{self._label} breaks the connection{attempts}: {reason}")
