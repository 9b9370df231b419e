"""Flow: from preference pairs to ENCORE weights, or with a recipe on to the benchmark's table.

As a command, with or without a Prefect server:
``python -m flows.pipeline SOURCE... --out STUDY --judge JUDGE``, or
``python -m flows.pipeline --recipe NAME --out STUDY``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from encore.cli import rating_options as options
from encore.cli.output import visible
from encore.config import RatingConfig
from encore.data.sources.pku import Prefer
from encore.rating_driver import NUM_WORKERS
from encore.recipes.changes import JudgeChanges, changed
from encore.recipes.recipe import Recipe
from encore.recipes.shipped import RecipeName, load_recipe
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
from tasks.tracking_uri import VARIABLE, has_secret
from tasks.weigh import weigh_rules

#: What may be said beside --recipe: where things are, how much of it, how hard to try. Everything
#: else is the recipe's.
_BESIDE_RECIPE = frozenset(
    {
        *("recipe", "study", "judge", "backend", "revision", "engine_arg", "shard_size", "limit"),
        *("benchmark_data", "shard_timeout_seconds", "shard_retries", "tracking_uri"),
    }
)
_OF_RECIPE_ONLY = frozenset({"benchmark_data", "tracking_uri"})


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


def _above_zero(value: float) -> float:
    if not value > 0:
        raise typer.BadParameter(f"{value:g} is not above 0")
    return value


def main(
    context: typer.Context,
    study: Annotated[
        Path,
        typer.Option(
            "--out", metavar="STUDY", help="The study directory; made if it is not there."
        ),
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="What to read, each as [LABEL=][FORMAT:]WHERE; `encore ingest --help` lists all.",
            show_default=False,
        ),
    ] = None,
    recipe: Annotated[
        RecipeName | None,
        typer.Option(
            help="Instead of SOURCE and --judge: a named run up to the benchmark's table. "
            "docs/recipes.md says what each one takes."
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="Folder with a model (config, tokenizer with chat template, *.safetensors) or a "
            "hub id such as meta-llama/Meta-Llama-3-70B-Instruct. With --recipe: in place of its "
            "own."
        ),
    ] = None,
    prefer: Annotated[
        Prefer | None, typer.Option(help="Which label of raw PKU-SafeRLHF says what is chosen.")
    ] = None,
    scheme: Annotated[
        str, typer.Option(help=f"How rules are weighed, one of: {', '.join(SCHEMES)}.")
    ] = "encore",
    tau: Annotated[
        float,
        typer.Option(
            callback=_above_zero, help="Temperature of scheme encore, above 0: large nears uniform."
        ),
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
    benchmark_data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="With --recipe: the benchmark's rows as local files. Default: the recipe's, or "
            "the hub.",
        ),
    ] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="With --recipe: MLflow's store. Default: MLFLOW_TRACKING_URI, or the file "
            "STUDY/mlflow.db.",
        ),
    ] = None,
    shard_timeout_seconds: options.ShardTimeout = None,
    shard_retries: options.ShardRetries = DEFAULT_RETRIES,
) -> None:
    """From preference pairs to weights under Prefect: ingest, rate, analyze, weigh.

    With --recipe further, to the table: train, the baselines, gate, score, benchmark, export.
    Recipes: hh_pku_encore_10 (the paper's main experiment), fsfairx (its second backbone),
    hh_full_8b_10 and hh_full_8b_20 (all of HH under an 8B judge, ten and twenty rules), top_5
    (its rule selection), probe (a frozen backbone), demo (small, offline, synthetic).

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifacts (progress, failed shards, rule statistics, rule weights) are kept on that server. Run
    the same command again to do only what is not done.

    Exit code 3: finished, but some shards failed.

    Example: python -m flows.pipeline hh=pairs.jsonl.gz --out study --judge ./my-judge --limit 200

    Example: python -m flows.pipeline --recipe demo --out demo-recipe

    Example: python -m flows.pipeline --recipe hh_pku_encore_10 --out study --limit 2000
    --engine-arg tensor_parallel_size=4
    """
    given = _given(context)
    _check_usage(given)
    shipped = None if recipe is None else load_recipe(recipe)
    own_judge = "" if shipped is None else shipped.rating.judge.model
    rating = options.rating_config(
        judge=judge or own_judge,
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
    if shipped is not None:
        changes = JudgeChanges(
            model=judge,
            backend=backend if "backend" in given else None,
            revision=revision,
            engine_args=rating.judge.engine_args,
            shard_size=shard_size if "shard_size" in given else None,
            limit=limit,
        )
        _run_recipe(
            changed(shipped, changes, benchmark_data=benchmark_data),
            study,
            tracking_uri=tracking_uri,
            shard_timeout_seconds=shard_timeout_seconds,
            shard_retries=shard_retries,
        )
        return
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


def _given(context: typer.Context) -> frozenset[str]:
    """The parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        name for name, source in sources.items() if source and source.name == "COMMANDLINE"
    )


def _check_usage(given: frozenset[str]) -> None:
    """Either a recipe, or sources and a judge; nothing that would be passed over."""
    if "recipe" in given:
        unused = sorted(given - _BESIDE_RECIPE)
        if unused:
            raise typer.BadParameter(f"{_option(unused[0])} is the recipe's to say; leave it out")
        return
    missing = [name for name in ("sources", "judge") if name not in given]
    if missing:
        raise typer.BadParameter(
            f"{_option(missing[0])} is missing; give SOURCE... and --judge, or --recipe"
        )
    stray = sorted(given & _OF_RECIPE_ONLY)
    if stray:
        raise typer.BadParameter(f"{_option(stray[0])} belongs to --recipe, which is not given")


def _option(name: str) -> str:
    return "SOURCE" if name == "sources" else f"--{name.replace('_', '-')}"


def _run_recipe(
    recipe: Recipe,
    study: Path,
    *,
    tracking_uri: str | None,
    shard_timeout_seconds: float | None,
    shard_retries: int,
) -> None:
    """Run it to its end and print the table."""
    # They need torch and MLflow; to rate and weigh, neither is wanted.
    from flows.recipe_stages import table_path
    from flows.recipes import run_recipe

    if tracking_uri is not None and has_secret(tracking_uri):
        # Parameters of a flow run are stored and shown; a password stays in this process.
        os.environ[VARIABLE] = tracking_uri
        tracking_uri = None
    run_flow(
        run_recipe,
        recipe=recipe,
        study=study,
        tracking_uri=tracking_uri,
        shard_timeout_seconds=shard_timeout_seconds,
        shard_retries=shard_retries,
    )
    sys.stdout.write(visible(table_path(study, recipe).read_text(encoding="utf-8")))


if __name__ == "__main__":
    run_command(main)
