"""Rating through the product against a bare `vllm.LLM.generate`: same engine, prompts and order.

The bare side gets all prompts as text in one call; the product plans, renders, tokenises, drains
the engine between shards, parses, writes and verifies. Both are warm, and the prefix cache is
emptied before each round.

    python -m tests.perf.rating_throughput [--pairs hh=FILE] [--judge FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import count
from pathlib import Path

from encore.config import JudgeConfig, RatingConfig
from encore.data.ingestion import ingest
from encore.data.pairs import records_of
from encore.data.records import RESPONSES
from encore.data.study import open_study
from encore.demo import data_paths, judge_path
from encore.judges import open_judge
from encore.rating.prompts import render_conversation, render_rating_prompt
from encore.rating.rating_run import RatingRun, open_run, rate_run
from tests.perf.harness import in_turn, seconds_of, show, spread

MAX_REPLY_TOKENS = 16


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", help="what `encore ingest` takes; default: demo's")
    parser.add_argument("--judge", type=Path, default=judge_path(), help="default: the demo's")
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--pairs-per-shard", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    judge_config = JudgeConfig(model=str(options.judge))
    config = RatingConfig(
        judge=judge_config,
        shard_size=options.pairs_per_shard,
        limit=options.pairs_per_shard * options.shards,
        max_reply_tokens=MAX_REPLY_TOKENS,
    )
    judge = open_judge(judge_config)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sources = options.pairs or [f"{label}={path}" for label, path in data_paths().items()]
        names = count()

        def fresh_run() -> RatingRun:
            """A run of a new study: nothing is rated there."""
            study = folder / f"study-{next(names)}"
            ingest(sources, out=study)
            return open_run(open_study(study), config, judge=judge)

        texts = texts_of(fresh_run())
        judge.start()
        try:
            from vllm import SamplingParams

            parameters = SamplingParams(temperature=0.0, max_tokens=MAX_REPLY_TOKENS)

            def bare() -> float:
                judge._engine.reset_prefix_cache()
                return seconds_of(lambda: judge._engine.generate(texts, parameters, use_tqdm=False))

            def product() -> float:
                run = fresh_run()
                judge._engine.reset_prefix_cache()
                return seconds_of(lambda: rate_run(run))

            found = in_turn({"bare": bare, "product": product}, rounds=options.rounds)
        finally:
            judge.close()
    rates = {name: [len(texts) / seconds for seconds in found[name]] for name in found}
    rows = [{"side": name, "ratings/s": spread(values)} for name, values in rates.items()]
    show(f"{len(texts)} prompts, {options.shards} shards, {options.rounds} rounds", rows)
    ratios = [own / bare for own, bare in zip(rates["product"], rates["bare"], strict=True)]
    print(f"product / bare throughput: {spread(ratios)}, median {statistics.median(ratios):.3f}")


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
