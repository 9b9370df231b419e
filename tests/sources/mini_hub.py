"""A Hugging Face hub of a few data sets, on this machine: what `datasets` asks for when it streams.

The real client libraries speak to it over HTTP, so commits, files and errors take the same way
through our code as they do with the real hub.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePath
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepo:
    """A data set with its commits, newest first; every commit has the same files."""

    repo_id: str
    commits: tuple[str, ...]
    files: Mapping[str, bytes]

    def commit_of(self, revision: str) -> str | None:
        if revision == "main":
            return self.commits[0]
        return revision if revision in self.commits else None


@contextmanager
def mini_hub(*repos: HubRepo) -> Iterator[str]:
    """The endpoint of a running hub."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.repos = repos
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    repos: tuple[HubRepo, ...]


def _tree(repo: HubRepo) -> list[dict[str, object]]:
    folders = {str(parent) for path in repo.files for parent in PurePath(path).parents} - {"."}
    return [
        *({"type": "directory", "path": folder, "size": 0, "oid": "0" * 40} for folder in folders),
        *(_entry(path, content) for path, content in repo.files.items()),
    ]


def _entry(path: str, content: bytes) -> dict[str, object]:
    oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": path, "size": len(content), "oid": oid}


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def _answer(self, body: bytes = b"") -> None:
        path = unquote(urlsplit(self.path).path)
        for repo in self.server.repos:
            api, files = f"/api/datasets/{repo.repo_id}", f"/datasets/{repo.repo_id}/resolve/"
            if path.startswith(files):
                revision, _, name = path.removeprefix(files).partition("/")
                return self._file(repo, revision, name)
            if path == api or path.startswith(api + "/"):
                return self._api(repo, path.removeprefix(api).strip("/"), body)
        return self._error(404, "RepoNotFound")

    def _api(self, repo: HubRepo, call: str, body: bytes) -> None:
        kind, _, rest = call.partition("/")
        revision, _, folder = (rest or "main").partition("/")
        commit = repo.commit_of(revision)
        if commit is None:
            self._error(404, "RevisionNotFound")
        elif kind == "commits":
            self._json([_commit(one) for one in repo.commits])
        elif kind == "tree":
            self._json([one for one in _tree(repo) if str(one["path"]).startswith(folder)])
        elif kind == "paths-info":
            wanted = json.loads(body)["paths"]
            self._json([one for one in _tree(repo) if one["path"] in wanted])
        else:
            siblings = [{"rfilename": path} for path in repo.files]
            self._json({"id": repo.repo_id, "sha": commit, "siblings": siblings})

    def _file(self, repo: HubRepo, revision: str, name: str) -> None:
        commit = repo.commit_of(revision)
        if commit is None:
            self._error(404, "RevisionNotFound")
        elif name not in repo.files:
            self._error(404, "EntryNotFound")
        else:
            self._content(repo.files[name], commit)

    def _content(self, content: bytes, commit: str) -> None:
        status, part = 200, content
        headers = {"ETag": f'"{_entry("", content)["oid"]}"', "X-Repo-Commit": commit}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            stop = min(int(last) + 1, len(content)) if last else len(content)
            status, part = 206, content[int(first) : stop]
            headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(content)}"
        self._send(status, part, headers)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _commit(commit: str) -> dict[str, object]:
    return {"id": commit, "title": "", "message": "", "authors": [], "date": "2024-05-08T00:00:00Z"}
