"""Rating through the product against a bare `vllm.LLM.generate`, side by side in one run.

Same engine, same prompts, same order. Both sides are warmed up with one round that does not count;
then rounds alternate, and the prefix cache is emptied before each.
The bare side gets all prompts as text in one call; the product plans, renders, tokenises, drains
the engine between shards, parses, writes and verifies. Run:

    python -m tests.perf.rating_throughput [--pairs FILE] [--judge FOLDER]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from encore.config import JudgeConfig, RatingConfig
from encore.data.ingestion import ingest
from encore.data.pairs import records_of
from encore.data.records import RESPONSES
from encore.data.study import Study, open_study
from encore.demo import data_paths, judge_path
from encore.judges import open_judge
from encore.rating.prompts import render_conversation, render_rating_prompt
from encore.rating.rating_run import RatingRun, open_run, rate_run

MAX_REPLY_TOKENS = 16


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sources = arguments.pairs or [f"{label}={path}" for label, path in data_paths().items()]
        ingest(sources, out=folder / "study")
        judge_config = JudgeConfig(model=str(arguments.judge))
        judge = open_judge(judge_config)
        config = RatingConfig(
            judge=judge_config,
            shard_size=arguments.pairs_per_shard,
            limit=arguments.pairs_per_shard * arguments.shards,
            max_reply_tokens=MAX_REPLY_TOKENS,
        )
        run = open_run(open_study(folder / "study"), config, judge=judge)
        judge.start()
        try:
            _measure(run, judge, repeats=arguments.repeats)
        finally:
            judge.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pairs", nargs="+", help="what `encore ingest` takes; default: the demo's"
    )
    parser.add_argument("--judge", type=Path, default=judge_path(), help="default: the demo's")
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--pairs-per-shard", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def _measure(run: RatingRun, judge: Any, *, repeats: int) -> None:
    texts = _texts(run)
    print(f"{len(texts)} prompts, {len(run.manifest.shards)} shards, judge {run.manifest.judge}")
    print(f"{'repeat':>6} {'bare /s':>9} {'product /s':>11} {'ratio':>6}")
    ratios = []
    for side in (_bare_seconds, _product_seconds):  # W5: the bare side was timed cold
        side(run, judge, texts)
    for repeat in range(repeats):
        order = (_bare_seconds, _product_seconds)[:: 1 if repeat % 2 == 0 else -1]
        seconds = {side.__name__: side(run, judge, texts) for side in order}
        bare, product = seconds["_bare_seconds"], seconds["_product_seconds"]
        ratios.append(bare / product)
        rates = f"{len(texts) / bare:>9.1f} {len(texts) / product:>11.1f}"
        print(f"{repeat:>6} {rates} {ratios[-1]:>6.3f}")
    print(f"median product / bare throughput: {statistics.median(ratios):.3f}")


def _texts(run: RatingRun) -> list[str]:
    tokenizer = run.judge.tokenizer
    return [
        tokenizer.render(render_rating_prompt(conversation, rating_rule=rule.rating_rule))
        for pair in records_of(run.pairs)
        for response in RESPONSES
        for conversation in [render_conversation(pair.prompt, pair.response_text(response))]
        for rule in run.rule_set.rules
    ]


def _bare_seconds(_run: RatingRun, judge: Any, texts: list[str]) -> float:
    from vllm import SamplingParams

    judge._engine.reset_prefix_cache()
    parameters = SamplingParams(temperature=0.0, max_tokens=MAX_REPLY_TOKENS)
    started = time.perf_counter()
    judge._engine.generate(texts, parameters, use_tqdm=False)
    return time.perf_counter() - started


def _product_seconds(run: RatingRun, judge: Any, _texts: list[str]) -> float:
    judge._engine.reset_prefix_cache()
    with tempfile.TemporaryDirectory() as temporary:
        fresh = _copy_of_study(run, Path(temporary) / "study")
        started = time.perf_counter()
        opened = open_run(fresh, run.config, judge=judge)
        report = rate_run(opened)
        seconds = time.perf_counter() - started
    assert report.count("rated") == len(run.manifest.shards), report.summary
    return seconds


def _copy_of_study(run: RatingRun, path: Path) -> Study:
    original = run.run_dir.parent.parent
    shutil.copytree(original, path, ignore=shutil.ignore_patterns("ratings"))
    return open_study(path)


if __name__ == "__main__":
    main()
