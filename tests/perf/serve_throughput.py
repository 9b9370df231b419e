"""What does a server cost? Prints one table; asserts nothing.

The same texts and the same model, twice: scored offline in one call of `score_sequences` (tokens
ready, no text to read), and asked of a server by concurrent clients in another process, one text a
request as OpenRLHF's rollout workers send them. Rounds alternate; the last line is the ratio of
the medians.

    python -m tests.perf.serve_throughput --pairs hh-harmless-dev.jsonl.gz

Texts are the responses of a sample of pairs, rendered. Latency is a request's, as its client sees
it: with so many clients it is mostly waiting for the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 600.0


def main() -> None:
    """Measure, print; or be the clients."""
    options = _options()
    if options.client:
        print(json.dumps(_ask_all(options.client, options.texts, clients=options.clients)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        _measure(options, Path(temporary))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=Path, help="raw hh-rlhf, .jsonl.gz; default: synthetic")
    parser.add_argument("--num-texts", type=int, default=192)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--texts", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """All texts once."""

    seconds: float
    latencies: tuple[float, ...] = ()


def _measure(options: argparse.Namespace, folder: Path) -> None:
    import numpy as np

    from encore.demo import data_paths
    from encore.model.opening import open_reward_model
    from encore.model.scoring import score_sequences
    from tests.perf.training.model_folder import write_model
    from tests.serving.conversations import real
    from tests.serving.models import running

    num_weights = write_model(folder / "model", hidden=options.hidden, layers=options.layers)
    opened = open_reward_model(folder / "model", dtype="float32", max_length=1024)
    conversations = real(options.pairs or data_paths()["synthetic-hh"], options.num_texts)
    texts = [opened.tokenizer.render(*one) for one in conversations]
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    sequences = [opened.tokenizer.encode(*one).token_ids for one in conversations]
    num_tokens = sum(map(len, sequences))
    print(
        f"{num_weights / 1e6:.1f}M weights on {opened.model.heads.weight.device}, {len(texts)} "
        f"texts, {num_tokens} tokens, {options.clients} clients"
    )

    def offline() -> tuple[_Round, Any]:
        started = time.perf_counter()
        scores = score_sequences(
            opened.model, sequences, pad_token_id=opened.tokenizer.pad_token_id
        )
        return _Round(seconds=time.perf_counter() - started), scores

    [head_id] = opened.model.head_ids
    with running(opened, weights={head_id: 1.0}) as server:

        def served() -> tuple[_Round, Any]:
            answer = _clients(server.url, folder / "texts.json", clients=options.clients)
            found = _Round(seconds=answer["seconds"], latencies=tuple(answer["latencies"]))
            return found, np.array(answer["rewards"])[:, None]

        rounds: dict[str, list[_Round]] = {"offline": [], "served": []}
        print(f"{'round':>5} {'':>8} {'tokens/s':>9} {'texts/s':>8} {'p50 ms':>7} {'p95 ms':>7}")
        for number in range(options.rounds + 1):
            scores = {}
            for name, side in (("offline", offline), ("served", served)):
                found, scores[name] = side()
                if number:  # the first warms both up
                    rounds[name].append(found)
                    _print_round(number, name, found, num_texts=len(texts), num_tokens=num_tokens)
        batches = server.metric("encore_batch_texts_count")
        asked = server.metric("encore_texts_total")
    medians = {
        name: statistics.median(found.seconds for found in side) for name, side in rounds.items()
    }
    difference = float(np.abs(scores["offline"] - scores["served"]).max())
    print(
        f"texts in a batch: {asked / batches:.1f}; largest difference of a score {difference:.0e}"
    )
    print(f"served / offline throughput: {medians['offline'] / medians['served']:.2f}")


def _print_round(number: int, name: str, found: _Round, *, num_texts: int, num_tokens: int) -> None:
    rates = f"{num_tokens / found.seconds:>9.0f} {num_texts / found.seconds:>8.1f}"
    waits = ""
    if found.latencies:
        quantiles = statistics.quantiles(found.latencies, n=20)
        waits = f" {1000 * quantiles[9]:>7.0f} {1000 * quantiles[18]:>7.0f}"
    print(f"{number:>5} {name:>8} {rates}{waits}", flush=True)


def _clients(url: str, texts: Path, *, clients: int) -> dict[str, Any]:
    """The clients' own measurement; they are a process of their own, as a trainer's workers are."""
    command = [
        *(sys.executable, "-m", "tests.perf.serve_throughput", "--client", url),
        *("--texts", str(texts), "--clients", str(clients)),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return dict(json.loads(finished.stdout))


def _ask_all(url: str, path: Path, *, clients: int) -> dict[str, Any]:
    import httpx

    texts: list[str] = json.loads(path.read_text(encoding="utf-8"))
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    with (
        httpx.Client(timeout=PATIENCE, limits=limits) as client,
        ThreadPoolExecutor(clients) as pool,
    ):

        def ask(text: str) -> tuple[float, float]:
            started = time.perf_counter()
            answer = client.post(f"{url}/get_reward", json={"query": [text]}).raise_for_status()
            return answer.json()["rewards"][0], time.perf_counter() - started

        list(pool.map(lambda _: client.get(f"{url}/health"), range(clients)))  # connections stand
        started = time.perf_counter()
        found = list(pool.map(ask, texts))
        seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "rewards": [reward for reward, _ in found],
        "latencies": [latency for _, latency in found],
    }


if __name__ == "__main__":
    main()
