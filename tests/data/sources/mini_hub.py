"""A Hugging Face hub of a few data sets on this machine, with the requests of `datasets`.

The real client libraries speak to it over HTTP, so commits, files and errors reach our code as
they do from the real hub.
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
        if revision in ("", "main"):
            return self.commits[0]
        return revision if revision in self.commits else None

    def tree(self) -> list[dict[str, object]]:
        folders = {str(folder) for path in self.files for folder in PurePath(path).parents} - {"."}
        entries = [("directory", folder, b"") for folder in folders]
        entries += [("file", path, content) for path, content in self.files.items()]
        return [
            {"type": kind, "path": path, "size": len(content), "oid": _oid(content)}
            for kind, path, content in entries
        ]


def _oid(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def mini_hub(*repos: HubRepo) -> Iterator[str]:
    """Run a hub and yield its endpoint."""
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


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        for repo in self.server.repos:
            api, files = f"/api/datasets/{repo.repo_id}", f"/datasets/{repo.repo_id}/resolve/"
            if path.startswith(files):
                revision, _, name = path.removeprefix(files).partition("/")
                return self._file(repo, revision, name)
            if path == api or path.startswith(api + "/"):
                return self._api(repo, path.removeprefix(api).strip("/"), body)
        return self._error("RepoNotFound")

    do_HEAD = do_POST = do_GET  # the names that the base class calls

    def _api(self, repo: HubRepo, call: str, body: bytes) -> None:
        kind, _, argument = call.partition("/")
        revision, _, folder = argument.partition("/")
        commit = repo.commit_of(revision)
        if commit is None:
            return self._error("RevisionNotFound")
        response: object
        if kind == "commits":
            details = {"title": "", "message": "", "authors": [], "date": "2024-05-08T00:00:00Z"}
            response = [{"id": commit_id, **details} for commit_id in repo.commits]
        elif kind == "tree":
            response = [entry for entry in repo.tree() if str(entry["path"]).startswith(folder)]
        elif kind == "paths-info":
            paths = json.loads(body)["paths"]
            response = [entry for entry in repo.tree() if entry["path"] in paths]
        else:
            siblings = [{"rfilename": path} for path in repo.files]
            response = {"id": repo.repo_id, "sha": commit, "siblings": siblings}
        return self._send(200, json.dumps(response).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: HubRepo, revision: str, name: str) -> None:
        commit = repo.commit_of(revision)
        if commit is None or name not in repo.files:
            return self._error("RevisionNotFound" if commit is None else "EntryNotFound")
        content = part = repo.files[name]
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": commit}
        if byte_range := self.headers.get("Range"):
            start, _, end = byte_range.removeprefix("bytes=").partition("-")
            part = content[int(start) : int(end or len(content)) + 1]
            last = int(start) + len(part) - 1
            headers["Content-Range"] = f"bytes {start}-{last}/{len(content)}"
        return self._send(206 if byte_range else 200, part, headers)

    def _error(self, code: str) -> None:
        self._send(404, b"", {"X-Error-Code": code})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
