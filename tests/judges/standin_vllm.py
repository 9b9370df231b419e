"""A server with the answers of vLLM's that starts at once, and does as a test orders.

    python standin_vllm.py FOLDER PORT NAME HOST

The folder has the orders, and gets a line for each start (`starts`) and each prompt (`prompts`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CONTEXT = 2048


def text_of(token_ids: list[int]) -> str:
    """Return the reply to a prompt."""
    return f"0.{sum(token_ids) % 10}"


class Standin:
    """Orders of a test to its servers, and the record of what they did.

    Attributes:
        folder: Folder that all servers of a test share.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def order(self, **orders: Any) -> None:
        """Order something from all servers: ``seconds`` a request, ``seconds_of_even`` ones if they
        differ, ``prints`` and ``ends`` a start, ``stalls`` for an engine that computes nothing,
        ``dies_at`` a number of requests.
        """
        path = self.folder / "new.json"
        path.write_text(json.dumps(orders))
        path.replace(self.folder / "orders.json")

    @property
    def orders(self) -> dict[str, Any]:
        """Return the orders of now."""
        path = self.folder / "orders.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def note(self, name: str, *lines: object) -> None:
        """Add lines to a file in one write."""
        with (self.folder / name).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def pids(self) -> list[int]:
        """Return the process of each start so far."""
        return [int(line) for line in self.lines("starts")]

    def command(
        self, _judge: object, *, port: int, served_name: str, host: str = "127.0.0.1"
    ) -> list[str]:
        """Return the command of a server, in place of `server_command`."""
        return [sys.executable, "-P", __file__, str(self.folder), str(port), served_name, host]


def serve(standin: Standin, port: int, model: str, host: str) -> None:
    """Answer requests until the process ends."""
    counts = {"requests": 0, "asked": 0, "prompts": 0, "tokens": 0, "load": 0}

    def complete(body: dict[str, Any]) -> dict[str, Any]:
        counts["load"] += 1
        number = counts["requests"] = counts["requests"] + 1
        orders = standin.orders
        if number == orders.get("dies_at"):
            os._exit(1)
        while standin.orders.get("stalls") == os.getpid():
            time.sleep(0.05)
        seconds = orders.get("seconds", 0)
        time.sleep(seconds if number % 2 else orders.get("seconds_of_even", seconds))
        prompts = body["prompt"]
        standin.note("prompts", *(f"{os.getpid()} {sum(ids)} {len(ids)}" for ids in prompts))
        counts["prompts"] += len(prompts)
        counts["tokens"] += sum(map(len, prompts))
        counts["load"] -= 1
        choices = [
            {"index": index, "text": text_of(ids), "finish_reason": "stop"}
            for index, ids in enumerate(prompts)
        ]
        num_tokens = sum(map(len, prompts))
        usage = {"prompt_tokens": num_tokens, "completion_tokens": 3 * len(prompts)}
        return {"model": model, "choices": choices, "usage": usage}

    gets: dict[str, Callable[[], object]] = {
        "/health": lambda: "",
        "/load": lambda: {"server_load": counts["load"]},
        "/v1/models": lambda: {"data": [{"id": model, "max_model_len": CONTEXT}]},
        "/metrics": lambda: (
            f'http_requests_total{{handler="all"}} {counts["asked"]}.0\n'
            f'vllm:prompt_tokens_total{{model_name="my judge"}} {counts["tokens"]}.0\n'
            'vllm:request_success_total{finished_reason="error",model_name="my judge"} 9.0\n'
            'vllm:request_success_total{finished_reason="stop",model_name="my judge"} '
            f"{counts['prompts']}.0\n"
        ),
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            counts["asked"] += self.path.startswith("/v1/")
            get = gets.get(self.path)
            self._answer(get and get(), status=200 if get else 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            counts["asked"] += 1
            is_known = self.path == "/v1/completions"
            self._answer(complete(body) if is_known else {}, status=200 if is_known else 404)

        def _answer(self, content: object, *, status: int) -> None:
            key = os.environ.get("VLLM_API_KEY")
            if (
                key
                and self.path.startswith("/v1")
                and self.headers["Authorization"] != f"Bearer {key}"
            ):
                content, status = {"error": {"message": "Unauthorized"}}, 401
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer.request_queue_size = 128  # many connections are made at once
    ThreadingHTTPServer((host, port), Handler).serve_forever()


def main() -> None:
    """Start as ordered, and serve."""
    standin = Standin(Path(sys.argv[1]))
    standin.note("starts", os.getpid())
    orders = standin.orders
    sys.stdout.write(orders.get("prints", ""))
    sys.stdout.flush()
    if standin.pids.index(os.getpid()) + 1 in orders.get("ends", []):
        sys.exit(3)
    serve(standin, int(sys.argv[2]), *sys.argv[3:])


if __name__ == "__main__":
    main()
