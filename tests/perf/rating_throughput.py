"""Rating through the product against a bare `vllm.LLM.generate`: same prompts, order and settings.

    python -m tests.perf.rating_throughput [--pairs hh=FILE] [--judge FOLDER]

The bare side gets all prompts as text in one call; the product plans, renders, tokenises, drains
the engine between shards, parses, writes and verifies. Each side has an engine in a process of its
own, for on a CPU the threads of one engine slow another in the same process; the bare side starts
and generates in one thread. Both are warm, one waits while the other works, and the prefix cache is
emptied before each round. The engine's prefill bounds both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from encore.config import JudgeConfig, RatingConfig
from encore.data.ingestion import ingest
from encore.data.pairs import records_of
from encore.data.records import RESPONSES
from encore.data.study import open_study
from encore.demo import DATA_PATHS, JUDGE_PATH
from encore.judges import open_judge
from encore.rating.prompts import render_conversation, render_rating_prompt
from encore.rating.rating_run import RatingRun, open_run
from encore.settings import prepare_environment
from encore.shard_runner import work_through
from tests.perf.harness import in_turn, seconds_of, show, worker

MAX_REPLY_TOKENS = 16
#: Two engines share a GPU.
ENGINE_ARGS = {"gpu_memory_utilization": 0.45}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", help="what `encore ingest` takes; default: demo's")
    parser.add_argument("--judge", type=Path, default=JUDGE_PATH, help="default: the demo's")
    parser.add_argument("--shards", type=int, default=5)
    parser.add_argument("--pairs-per-shard", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    prepare_environment()  # as a command does before its imports, for both sides
    config = RatingConfig(
        judge=JudgeConfig(model=str(options.judge), engine_args=ENGINE_ARGS),
        shard_size=options.pairs_per_shard,
        limit=options.pairs_per_shard * options.shards,
        max_reply_tokens=MAX_REPLY_TOKENS,
    )
    judge = open_judge(config.judge)
    with tempfile.TemporaryDirectory() as folder, worker() as other, closing(judge):
        sources = options.pairs or [f"{label}={path}" for label, path in DATA_PATHS.items()]

        def fresh_run() -> RatingRun:
            """A run of a new study: nothing is rated there."""
            study = Path(tempfile.mkdtemp(dir=folder)) / "study"
            ingest(sources, out=study)
            return open_run(open_study(study), config, judge=judge)

        def bare() -> float:
            return other.submit(bare_seconds, str(options.judge), texts).result()

        def product() -> float:
            run = fresh_run()
            judge._engine.reset_prefix_cache()
            return seconds_of(lambda: work_through(run.job()))

        texts = texts_of(fresh_run())
        judge.start()
        found = in_turn({"bare": bare, "product": product}, rounds=options.rounds)
    seconds, num = list(zip(*found.values(), strict=True)), len(texts)
    rows = [
        {"round": n, "bare/s": num / bare_s, "product/s": num / own_s, "ratio": bare_s / own_s}
        for n, (bare_s, own_s) in enumerate(seconds, start=1)
    ]
    show(f"{num:,} ratings, {options.shards} shards", rows)
    median = statistics.median(bare_s / own_s for bare_s, own_s in seconds)
    print(f"product / bare throughput, median of the rounds: {median:.3f}")


@cache
def bare_engine(judge: str) -> Any:
    """The judge's engine, started by the thread that calls."""
    return open_judge(JudgeConfig(model=judge, engine_args=ENGINE_ARGS))._load()


def bare_seconds(judge: str, texts: list[str]) -> float:
    """One call of `generate` with all prompts; for a process of its own."""
    from vllm import SamplingParams

    engine = bare_engine(judge)
    engine.reset_prefix_cache()
    parameters = SamplingParams(temperature=0.0, max_tokens=MAX_REPLY_TOKENS)
    return seconds_of(lambda: engine.generate(texts, parameters, use_tqdm=False))


def texts_of(run: RatingRun) -> list[str]:
    """The prompts of a run, in its order."""
    tokenizer = run.judge.tokenizer
    return [
        tokenizer.render(render_rating_prompt(conversation, rating_rule=rule.rating_rule))
        for pair in records_of(run.pairs)
        for response in RESPONSES
        for conversation in [render_conversation(pair.prompt, pair.response_text(response))]
        for rule in run.rule_set.rules
    ]


if __name__ == "__main__":
    main()
