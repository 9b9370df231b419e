"""Measure `encore serve` under load: many small requests against one large one, and its memory.

    python -m tests.perf.serving_load [--requests 20000]

The server is a process of its own with a random Llama of 20 million weights. Clients send one text
a request, as OpenRLHF's rollout workers do, in turn with one request that holds all texts. Then
they send short texts, and the server's memory is read after every 1/40 of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from encore.core.settings import prepare_environment
from tests.perf import harness

#: Throughput of small requests over that of one large request, at least.
REQUIRED_SHARE = 0.9
#: Memory during the second half of the requests over that during the first, at most.
ALLOWED_GROWTH = 1.02
MAX_LENGTH = 1024


def main() -> int:
    """Measure and print both tables; return 1 if a bound is missed."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("--num-pairs", type=int, default=96)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=20_000)
    options = parser.parse_args()
    prepare_environment()
    with tempfile.TemporaryDirectory() as temporary, harness.worker_process() as process:
        model = process.submit(harness.write_llama, Path(temporary) / "model").result()
        texts = process.submit(rendered_texts, model, options.num_pairs).result()
        with serving(model) as (url, process_id):
            share = measure_throughput(options, url, texts)
            growth = measure_memory(options, url, process_id)
    load = os.getloadavg()[0]
    print(f"\nshare {share:.2f} (at least {REQUIRED_SHARE}), memory {growth:.3f} times", end="")
    print(f" (at most {ALLOWED_GROWTH}), load of the machine {load:.1f}")
    return int(share < REQUIRED_SHARE or growth > ALLOWED_GROWTH)


def measure_throughput(options: argparse.Namespace, url: str, texts: Sequence[str]) -> float:
    """Print texts a second on both sides; return the share that small requests reach."""
    small, large = f"{options.clients} clients, one text a request", "one request with all texts"

    def seconds_of(bodies: Sequence[Sequence[str]], num_clients: int) -> float:
        return harness.seconds_of(lambda: asyncio.run(ask(url, bodies, num_clients)))

    sides = {
        small: partial(seconds_of, [[text] for text in texts], options.clients),
        large: partial(seconds_of, [texts], 1),
    }
    seconds_of_sides = harness.measure_in_turn(sides, rounds=options.rounds)
    rows = [
        {
            "side": name,
            "texts/s": harness.median_and_range([len(texts) / seconds for seconds in rounds]),
        }
        for name, rounds in seconds_of_sides.items()
    ]
    harness.print_table(f"throughput of {len(texts)} texts", rows)
    return statistics.median(seconds_of_sides[large]) / statistics.median(seconds_of_sides[small])


def measure_memory(options: argparse.Namespace, url: str, process_id: int) -> float:
    """Print the server's memory over many requests; return how far its second half grew."""
    num_steps = 40
    bodies = [[f"Text {number}."] for number in range(options.requests // num_steps)]
    asyncio.run(ask(url, bodies, options.clients))  # warms up
    sizes_mib, started = [], time.perf_counter()
    for _ in range(num_steps):
        asyncio.run(ask(url, bodies, options.clients))
        sizes_mib.append(resident_mib(process_id))
    seconds = time.perf_counter() - started
    rows = [
        {"requests": f"{(step + 1) * len(bodies):,}", "MiB": f"{sizes_mib[step]:.1f}"}
        for step in range(3, num_steps, 4)
    ]
    harness.print_table(f"memory of the server; {options.requests / seconds:.0f} requests/s", rows)
    half = num_steps // 2
    return statistics.fmean(sizes_mib[half:]) / statistics.fmean(sizes_mib[:half])


async def ask(url: str, bodies: Sequence[Sequence[str]], num_clients: int) -> None:
    """Send one request for each list of texts, from clients that keep their connections."""
    host, port = url.removeprefix("http://").split(":")
    waiting = iter(bodies)

    async def send_all() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for texts in waiting:
            body = json.dumps({"query": texts}).encode()
            head = (
                f"POST /get_reward HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            )
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer_head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(answer_head.partition("content-length: ")[2].partition("\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
            assert len(answer["rewards"]) == len(texts), answer
        writer.close()

    await asyncio.gather(*(send_all() for _ in range(num_clients)))


@contextlib.contextmanager
def serving(model: Path) -> Iterator[tuple[str, int]]:
    """Run `encore serve` in a process; yield its URL and its process id."""
    command = [sys.executable, "-m", "encore.cli", "serve", str(model), "--port", "0", "--json"]
    length = ["--max-length", str(MAX_LENGTH), "--dtype", "float32"]
    with subprocess.Popen(
        [*command, *length], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("}"):
            lines.append(server.stdout.readline())
            assert server.poll() is None, "the server ended"
        try:
            yield json.loads("".join(lines))["url"], server.pid
        finally:
            server.terminate()


def resident_mib(process_id: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def rendered_texts(model: Path, num_pairs: int) -> list[str]:
    """Return the texts of both responses of some pairs, as the model's template renders them."""
    from encore.data.records import RESPONSES
    from encore.model.open_model import open_reward_model

    tokenizer = open_reward_model(model, dtype="float32", max_length=MAX_LENGTH).tokenizer
    return [
        tokenizer.render(pair.prompt, pair.response_text(response))
        for pair in harness.sample_pairs(None, num_pairs)
        for response in RESPONSES
    ]


if __name__ == "__main__":
    sys.exit(main())
