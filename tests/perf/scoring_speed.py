"""Measure scoring and serving of one random Llama on the same pairs, in warm rounds in turn.

    python -m tests.perf.scoring_speed [--pairs hh-harmless-dev.jsonl.gz]

Offline sides go from texts to scores, tokenising included, packed and with a pair's common prompt
computed once. The server is asked by concurrent clients in another process, one text a request, as
OpenRLHF's rollout workers send them. tokens/s counts the tokens of the data, every response as if
it stood alone. Forward passes bound all sides. Offline sides have a process of their own: on a CPU
the threads of the server's model would slow them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from encore.core.settings import prepare_environment
from encore.data.records import RESPONSES, PreferencePair
from encore.model.model_options import ComputingOptions
from tests.perf import harness

MAX_LENGTH = 1024
TIMEOUT_SECONDS = 600.0


def main() -> None:
    """Measure and print the table."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("--pairs", type=Path, help="raw hh-rlhf, .jsonl.gz; default: synthetic")
    parser.add_argument("--num-pairs", type=int, default=96)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    prepare_environment()
    with tempfile.TemporaryDirectory() as temporary, harness.worker_process() as process:
        _measure(options, Path(temporary), process)


def _measure(options: argparse.Namespace, folder: Path, process: Executor) -> None:
    from tests.serving.servers import running

    process.submit(harness.write_llama, folder / "model").result()
    opened = opened_model(folder / "model")
    num_weights = sum(parameter.numel() for parameter in opened.model.parameters())
    pairs = harness.sample_pairs(options.pairs, options.num_pairs)
    latencies: list[float] = []
    scores: dict[str, Any] = {}

    def offline(layout: Any) -> float:
        scores[layout], seconds = process.submit(score, folder / "model", layout, pairs).result()
        return seconds

    texts = [
        opened.tokenizer.render(pair.prompt, pair.response_text(response))
        for pair in pairs
        for response in RESPONSES
    ]
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")

    def served(url: str) -> float:
        code = "import tests.perf.scoring_speed as speed; speed.ask_all()"
        text, _, _ = harness.run_python("-c", code, url, folder / "texts.json", options.clients)
        answer = json.loads(text)
        latencies[:] = answer["latencies"]
        scores["served"] = np.array(answer["rewards"])[:, None]
        return float(answer["seconds"])

    sides: dict[str, Callable[[], float]] = {
        f"offline, {layout}": partial(offline, layout) for layout in ("packed", "prefix-shared")
    }
    encoded = opened.tokenizer.encode_pairs(pairs)
    num_tokens = sum(len(p.chosen.token_ids) + len(p.rejected.token_ids) for p in encoded)
    with running(opened, weights=dict.fromkeys(opened.model.head_ids, 1.0)) as server:
        sides[f"served to {options.clients} clients"] = partial(served, server.url)
        seconds_of_sides = harness.measure_in_turn(sides, rounds=options.rounds)
    rows = [
        {
            "side": name,
            "tokens/s": harness.median_and_range(
                [num_tokens / seconds for seconds in seconds_of_rounds]
            ),
            "pairs/s": len(pairs) / statistics.median(seconds_of_rounds),
        }
        for name, seconds_of_rounds in seconds_of_sides.items()
    ]
    harness.print_table(
        f"{num_weights / 1e6:.1f}M weights, {len(pairs)} pairs, {num_tokens:,} tokens", rows
    )
    quantiles = [1000 * latency for latency in statistics.quantiles(latencies, n=20)]
    difference = max(np.abs(scores["packed"] - side).max() for side in scores.values())
    print(
        f"a request takes {quantiles[9]:.0f} ms, 95 % at most {quantiles[18]:.0f} ms; largest "
        f"difference of a score between sides {difference:.0e}"
    )


@cache
def opened_model(folder: Path) -> Any:
    """Open the model, once in each process."""
    from encore.model.open_model import open_reward_model

    return open_reward_model(folder, dtype="float32", max_length=MAX_LENGTH)


def score(folder: Path, layout: Any, pairs: list[PreferencePair]) -> tuple[Any, float]:
    """Score pairs from their texts; return the scores and the seconds."""
    from encore.scoring.scoring_run import score_encoded

    started = time.perf_counter()
    opened, computing = opened_model(folder), ComputingOptions(layout=layout)
    scores, _ = score_encoded(opened, opened.tokenizer.encode_pairs(pairs), computing=computing)
    return scores, time.perf_counter() - started


def ask_all() -> None:
    """Send all texts from concurrent clients and print the measurement as JSON.

    Called in a new process with the server's URL, the file of texts and the number of clients.
    """
    import httpx

    url, path, num_clients = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    texts: list[str] = json.loads(path.read_text(encoding="utf-8"))
    limits = httpx.Limits(max_connections=num_clients, max_keepalive_connections=num_clients)
    with (
        httpx.Client(timeout=TIMEOUT_SECONDS, limits=limits) as client,
        ThreadPoolExecutor(num_clients) as pool,
    ):

        def ask(text: str) -> tuple[float, float]:
            started = time.perf_counter()
            answer = client.post(f"{url}/get_reward", json={"query": [text]}).raise_for_status()
            return answer.json()["rewards"][0], time.perf_counter() - started

        for _ in pool.map(lambda _: client.get(f"{url}/health"), range(num_clients)):
            pass  # opens the connections
        started = time.perf_counter()
        answers = list(pool.map(ask, texts))
        seconds = time.perf_counter() - started
    rewards, latencies = zip(*answers, strict=True)
    print(json.dumps({"seconds": seconds, "rewards": rewards, "latencies": latencies}))


if __name__ == "__main__":
    main()
