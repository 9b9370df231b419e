"""Flow: from preference pairs to ENCORE weights.

As a command, with or without a Prefect server:
``python -m flows.pipeline SOURCE... --out STUDY --judge JUDGE``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from encore.cli import rating_options as options
from encore.config import RatingConfig
from encore.rating_driver import NUM_WORKERS
from encore.sources.pku import Prefer
from encore.weighting import SCHEMES, load_scheme
from encore.weighting.scheme import DEFAULT_K, DEFAULT_TAU, SchemeOptions
from flows.command import run_command, run_flow
from flows.rate_pairs import Retries, Seconds
from flows.rating_stage import completed, rate_study
from tasks.analyze import analyze_ratings
from tasks.artifacts import publish_statistics, publish_weights
from tasks.errors import log_expected_errors_in_one_line
from tasks.ingest import ingest_pairs
from tasks.rate import DEFAULT_RETRIES
from tasks.weigh import weigh_rules


@flow(
    name="pipeline",
    task_runner=ThreadPoolTaskRunner[Any](max_workers=NUM_WORKERS),
    persist_result=False,
)
def pipeline(
    sources: Annotated[list[str], Field(min_length=1)],
    study: Path,
    rating: RatingConfig,
    prefer: Prefer | None = None,
    scheme: str = "encore",
    tau: Annotated[float, Field(gt=0)] = DEFAULT_TAU,
    seed: Annotated[int, Field(ge=0)] = 0,
    k: Annotated[int, Field(ge=1)] = DEFAULT_K,
    rule: str | None = None,
    shard_timeout_seconds: Seconds | None = None,
    shard_retries: Retries = DEFAULT_RETRIES,
) -> State:
    """Ingest pairs, have a judge rate them, measure the rules and weigh them.

    Running it again does only what is not done.

    Args:
        sources: What to read, each as [LABEL=][FORMAT:]WHERE, e.g. hh-pku or pairs.jsonl.gz.
        study: The study's directory, made if it is not there; relative to the working directory.
        rating: Judge, rules and plan. Changing any of it makes a new run beside the old one.
        prefer: Which label of raw PKU-SafeRLHF says what is chosen; default: safer.
        scheme: How rules are weighed; `encore weights --help` lists all.
        tau: Temperature of scheme encore: large approaches uniform. The paper's is 2.
        seed: Of schemes random and random-k, and of the folds that hold out pairs.
        k: How many rules top-k and random-k select.
        rule: The rule of scheme single.
        shard_timeout_seconds: Give up on a shard whose generation takes longer.
        shard_retries: Further attempts for a shard that fails.
    """
    log_expected_errors_in_one_line()
    load_scheme(scheme)  # a name that does not exist must not cost hours of rating
    weighing = SchemeOptions(tau=tau, seed=seed, k=k, rule=rule)
    ingest_pairs(sources, study, prefer=prefer)
    plan, report, failed = rate_study(
        study,
        rating,
        only=None,
        shard_timeout_seconds=shard_timeout_seconds,
        shard_retries=shard_retries,
    )
    if failed is not None:
        return failed
    publish_statistics(analyze_ratings(plan.run_dir))
    weighed = weigh_rules(plan.run_dir, scheme=scheme, options=weighing)
    publish_weights(weighed)
    return completed(report, data=weighed.vector)


def main(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="What to read, each as [LABEL=][FORMAT:]WHERE; `encore ingest --help` lists all.",
        ),
    ],
    study: Annotated[
        Path,
        typer.Option(
            "--out", metavar="STUDY", help="The study directory; made if it is not there."
        ),
    ],
    judge: options.Judge,
    prefer: Annotated[
        Prefer | None, typer.Option(help="Which label of raw PKU-SafeRLHF says what is chosen.")
    ] = None,
    scheme: Annotated[
        str, typer.Option(help=f"How rules are weighed, one of: {', '.join(SCHEMES)}.")
    ] = "encore",
    tau: Annotated[
        float, typer.Option(min=0.0, help="Temperature of scheme encore: large nears uniform.")
    ] = DEFAULT_TAU,
    seed: Annotated[int, typer.Option(min=0, help="Of schemes random and random-k.")] = 0,
    k: Annotated[int, typer.Option("--k", min=1, help="Rules of top-k and random-k.")] = DEFAULT_K,
    rule: Annotated[
        str | None, typer.Option(metavar="RULE_ID", help="The rule of scheme single.")
    ] = None,
    rules: options.Rules = "encore-10",
    shard_size: options.ShardSize = 1000,
    limit: options.Limit = None,
    backend: options.Backend = "vllm",
    revision: options.Revision = None,
    dtype: options.Dtype = "auto",
    max_model_len: options.MaxModelLen = None,
    overlong: options.Overlong = "set-aside",
    max_reply_tokens: options.MaxReplyTokens = 16,
    engine_arg: options.EngineArgs = None,
    shard_timeout_seconds: options.ShardTimeout = None,
    shard_retries: options.ShardRetries = DEFAULT_RETRIES,
) -> None:
    """From preference pairs to weights under Prefect: ingest, rate, analyze, weigh.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifacts (progress, failed shards, rule statistics, rule weights) are kept on that server. Run
    the same command again to do only what is not done.

    Exit code 3: finished, but some shards failed.

    Example: python -m flows.pipeline hh=pairs.jsonl.gz --out study --judge ./my-judge --limit 200
    """
    rating = options.rating_config(
        judge=judge,
        rules=rules,
        shard_size=shard_size,
        limit=limit,
        backend=backend,
        revision=revision,
        dtype=dtype,
        max_model_len=max_model_len,
        overlong=overlong,
        max_reply_tokens=max_reply_tokens,
        engine_arg=engine_arg,
    )
    run_flow(
        pipeline,
        sources=sources,
        study=study,
        rating=rating,
        prefer=prefer,
        scheme=scheme,
        tau=tau,
        seed=seed,
        k=k,
        rule=rule,
        shard_timeout_seconds=shard_timeout_seconds,
        shard_retries=shard_retries,
    )


if __name__ == "__main__":
    run_command(main)
