"""Measure ways to ask a judge for ratings, through the product and through the bare engine.

    python -m tests.perf.rating_throughput [--pairs hh=FILE] [--rules encore-20] [--judge FOLDER]

The first way is the paper's: its prompt, a number as text, the engine's default settings (on a CPU
its cache shares blocks of 128 tokens). The default judge has 40M random weights and the demo
judge's tokenizer; its replies are numbers of three tokens. Both sides of a way use one engine in
turn, with an empty prefix cache: the bare one gets the token ids in one call of ``generate``; the
product plans, renders, tokenises, drains the engine between shards, reads, writes and verifies.
The forward pass of tokens that are not in the cache bounds all ways. Seconds of the processor are
those of the process, which the engine is part of: they vary less than seconds of the clock.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from encore.core.settings import prepare_environment
from encore.data.ingestion import ingest
from encore.data.study import open_study
from encore.demo import DATA_PATHS, JUDGE_PATH
from encore.judges import open_judge
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from encore.rating.rating_run import RatingRun, open_run
from encore.runs.worker import work_through
from tests.perf import harness
from tests.worlds.tiny_judge import make_tiny_judge


class Way(NamedTuple):
    """A way to ask the judge: the prompt's layout, the reply's kind, the size of cache blocks."""

    layout: str
    decode: str
    block: int


WAYS = (
    Way("paper", "text", 128),
    Way("paper", "choice", 32),
    Way("conversation-first", "choice", 32),
    Way("conversation-first", "expected", 32),
    Way("demand-first", "choice", 32),
    Way("demand-first", "expected", 32),
    Way("all-rules", "choice", 32),
)


class Cost(NamedTuple):
    """Cost of rating all prompts of a way once."""

    seconds: float
    cpu_seconds: float
    computed_tokens: int = 0


def main() -> None:
    """Measure and print the tables."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("--pairs", nargs="+", help="what `encore ingest` takes; default: demo's")
    parser.add_argument("--judge", type=Path, help="default: one of 40M random weights")
    parser.add_argument("--rules", default="encore-10")
    parser.add_argument("--num-pairs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--memory", type=int, metavar="PROMPTS", help="print the memory of this many"
    )
    options = parser.parse_args()
    prepare_environment()  # as a command does before its imports, for both sides
    with tempfile.TemporaryDirectory() as folder:
        judge = options.judge or random_judge(Path(folder) / "judge")
        sources = options.pairs or [f"{label}={path}" for label, path in DATA_PATHS.items()]
        study = Path(folder) / "study"
        ingest(sources, out=study)
        bench = Bench(study, judge, options.rules, options.num_pairs)
        if options.memory:
            with harness.worker_process() as process:
                harness.print_table("memory", process.submit(bench.memory, options.memory).result())
            return
        print_ways(bench, rounds=options.rounds)


def print_ways(bench: Bench, *, rounds: int) -> None:
    """Measure and print all ways, with the share of time that preparing prompts takes."""
    with (
        harness.worker_process() as plain,
        harness.worker_process() as shared,
    ):  # all blocks of an engine have one size

        def side(name: str, way: Way) -> Callable[[], Any]:
            process = plain if way.block == WAYS[0].block else shared
            return lambda: process.submit(getattr(bench, name), way).result()

        for way in WAYS:
            side("warm_up", way)()
        sides = {(name, way): side(name, way) for way in WAYS for name in ("product", "bare")}
        results = harness.measure_in_turn(sides, rounds=rounds, is_warm=True)
        prepared = {way: side("preparation", way)() for way in WAYS}
    rows = []
    for way in WAYS:
        product, bare = results["product", way], results["bare", way]
        cpu_seconds = median_of("cpu_seconds", product)
        rows.append(
            {
                "way": f"{way.layout}, {way.decode}",
                "block": way.block,
                "ratings/s": bench.num_ratings / median_of("seconds", product),
                "ratings/CPU s": bench.num_ratings / cpu_seconds,
                "of the first": median_of("cpu_seconds", results["product", WAYS[0]]) / cpu_seconds,
                "product/bare": median_of("cpu_seconds", bare) / cpu_seconds,
                "computed tokens a rating": product[0].computed_tokens / bench.num_ratings,
                "preparing, of the time": prepared[way] / median_of("seconds", product),
            }
        )
    harness.print_table(f"{bench.num_ratings:,} ratings, {rounds} rounds, medians", rows)


def median_of(name: str, costs: Sequence[Cost]) -> float:
    """Return the median of one cost over the rounds."""
    return statistics.median(getattr(cost, name) for cost in costs)


class Bench:
    """A study and a judge; every method measures in the process to which the bench is sent."""

    def __init__(self, study: Path, judge: Path, rules: str, num_pairs: int) -> None:
        self.study, self.judge, self.rules, self.num_pairs = study, judge, rules, num_pairs

    @property
    def num_ratings(self) -> int:
        """Return the number of ratings of one round; only ``all-rules`` has fewer prompts."""
        return 2 * self.num_pairs * (20 if self.rules == "encore-20" else 10)

    def warm_up(self, way: Way) -> None:
        """Rate five pairs, so that the engine has started and has compiled for such prompts."""
        num_pairs, self.num_pairs = self.num_pairs, 5
        self.product(way)
        self.num_pairs = num_pairs

    def product(self, way: Way) -> Cost:
        """Rate a study without ratings in five shards."""
        run = self._run(way)
        _engine(run).reset_prefix_cache()
        began, cpu_began = time.perf_counter(), time.process_time()
        report = work_through(run.job())
        return Cost(
            time.perf_counter() - began,
            time.process_time() - cpu_began,
            report.total("computed_tokens"),
        )

    def bare(self, way: Way) -> Cost:
        """Give the engine the token ids of all prompts in one call."""
        from vllm.inputs import TokensPrompt

        run = self._run(way)
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in _token_ids(run)]
        sampling, engine = run.judge._sampling(run.rater.decoding), _engine(run)
        engine.reset_prefix_cache()
        began, cpu_began = time.perf_counter(), time.process_time()
        engine.generate(prompts, sampling, use_tqdm=False)
        return Cost(time.perf_counter() - began, time.process_time() - cpu_began)

    def preparation(self, way: Way) -> float:
        """Render, tokenise and order the prompts only; return the seconds."""
        run = self._run(way)
        return harness.seconds_of(lambda: _token_ids(run))

    def memory(self, num_ratings: int) -> list[dict[str, object]]:
        """Return the process's peak memory after each fifth of this many prompts."""
        self.num_pairs = num_ratings * self.num_pairs // self.num_ratings
        run, rows = self._run(WAYS[3]), []
        for part in range(5):
            fifth = [shard.index for shard in run.manifest.shards[part::5]]
            work_through(replace(run.job(), shard_indices=fifth))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            rows.append({"prompts": (part + 1) * num_ratings // 5, "peak MiB": peak})
        return rows

    def _run(self, way: Way) -> RatingRun:
        study = open_study(self.study)
        config = RatingConfig(
            judge=JudgeConfig(model=str(self.judge), engine_args={"block_size": way.block}),
            rules=self.rules,
            limit=self.num_pairs,
            shard_size=max(1, self.num_pairs // 5),
            layout=way.layout,
            decode=way.decode,
            min_label_mass=1e-9,
        )
        judge = _JUDGES.setdefault(way.block, open_judge(config.judge))
        how = RatingRunOptions(allow_nulls=True)  # random weights
        run = open_run(study, config, how, judge=judge)
        fresh = Path(tempfile.mkdtemp(dir=self.study.parent)) / run.run_dir.name
        return type(run)(**{**vars(run), "run_dir": fresh})


#: The judges of this process, by the size of a block.
_JUDGES: dict[int, Any] = {}


def _engine(run: RatingRun) -> Any:
    run.judge.start()
    return run.judge._engine


def _token_ids(run: RatingRun) -> list[Sequence[int]]:
    prompts = run.rater.prompts.make(run.rater.prompts.questions(run.pairs))
    return [list(token_ids) for token_ids, _ in prompts]


def random_judge(folder: Path) -> Path:
    """Write a judge of about 40M random weights; return its folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(JUDGE_PATH)
    return make_tiny_judge(folder, hidden_size=512, num_layers=9, tokenizer=tokenizer)


if __name__ == "__main__":
    main()
