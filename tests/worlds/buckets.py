"""A real S3 server on loopback, machines with a cache folder of their own, and stores that fail."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from encore.buckets.bucket_store import BucketStore
from encore.buckets.study_mirror import StudyMirror
from encore.core.errors import EncoreError
from encore.core.folder_watches import folder_watches, sending_studies
from tests.worlds.servers import background_process, free_port, wait_until

_bucket_numbers = count()
#: Calls that change a bucket.
_CHANGES = ("put", "remove")


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's server of S3 and yield its address.

    It is a process of its own: vLLM cannot start beside the objects of Flask, which it looks at.
    """
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/moto-api/", timeout=5).is_success
        return False

    with (
        tempfile.TemporaryDirectory() as folder,
        background_process(*command, environ=os.environ, log=Path(folder, "log")),
    ):
        wait_until(answers, seconds=120, event=f"an answer of {url}")
        yield url


def set_s3_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Set the variables of a store without encryption, with keys that are none."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATHEKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thesecret")


def new_bucket(url: str) -> str:
    """Make a bucket on a server and return its address."""
    name = f"bucket-{next(_bucket_numbers)}"
    httpx.put(f"{url}/{name}").raise_for_status()
    return f"s3://{name}"


@contextlib.contextmanager
def machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Work as a machine with this cache folder, and send everything at the end, as a command."""
    monkeypatch.setenv("ENCORE_CACHE_DIR", str(folder))
    with sending_studies():
        yield


@contextlib.contextmanager
def killed_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Work as a machine that is killed at the end: nothing is sent any more, no claim given up."""
    monkeypatch.setenv("ENCORE_CACHE_DIR", str(folder))
    try:
        yield
    finally:
        for mirror in open_mirrors():
            forget(mirror)
        folder_watches.clear()


def open_mirrors() -> list[StudyMirror]:
    """Return the local copies that this process works on."""
    return [watch for watch in folder_watches if isinstance(watch, StudyMirror)]


def forget(mirror: StudyMirror) -> None:
    """End a mirror's threads without anything more being sent."""
    mirror._record.waiting.clear()
    mirror._sender._thread.shutdown()
    mirror._in_use.close()
    for claim in mirror._claims.values():
        claim._is_released.set()


def fail_after(monkeypatch: pytest.MonkeyPatch, num_changes: int) -> list[str]:
    """Let a bucket take so many changes and refuse all later ones; return the names changed."""
    changed: list[str] = []

    def limited(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def change(store: BucketStore, name: str, *args: Any, **options: Any) -> Any:
            if len(changed) >= num_changes:
                raise EncoreError("the process was killed")
            changed.append(name)
            return call(store, name, *args, **options)

        return change

    for name in _CHANGES:
        monkeypatch.setattr(BucketStore, name, limited(getattr(BucketStore, name)))
    return changed


@contextlib.contextmanager
def refusing_server(status: int, code: str, *, refuses: str = "GETPUTHEADDELETE") -> Iterator[str]:
    """Run a server that answers every request of some methods with an error of S3."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    empty = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            is_refused = self.command in refuses
            content = body if is_refused else empty
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = 404 if self.command == "HEAD" else 200  # nothing is there
            self.send_response(status if is_refused else answer)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_DELETE = answer

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
