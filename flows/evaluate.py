"""Flow: a benchmark's table of a study's reward models, every row compared in MLflow.

As a command, with or without a Prefect server: ``python -m flows.evaluate STUDY --model MODEL``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.utilities.annotations import quote
from pydantic import Field

from encore.benchmarks.benchmark_config import (
    DEFAULT_TAUS,
    BenchmarkConfig,
    PairsConfig,
    RowsConfig,
)
from encore.benchmarks.comparison import MARGIN
from encore.cli.benchmark_options import (
    DEFAULT_BENCHMARK,
    AllowPartial,
    BenchmarkData,
    BenchmarkName,
)
from encore.cli.output import RunOption, StudyArgument
from encore.cli.score import Dtype, MaxLength
from encore.weighting import SCHEMES
from encore.weighting.draws import NUM_RANDOM
from encore.weighting.scheme import DEFAULT_K
from flows.command import run_command, run_flow
from tasks.benchmark import (
    DEFAULT_RETRIES,
    benchmark_study,
    evaluated_study,
    publish_candidate,
    publish_table,
    publish_tracked,
    register,
    track_benchmark,
    trainings_of,
)
from tasks.errors import log_expected_errors_in_one_line
from tasks.model_registry import DEFAULT_MODEL, check_name
from tasks.tracking_uri import VARIABLE, choose_tracking_uri, has_secret, refuse_secret

_MARGIN_POINTS = 100 * MARGIN
_Positive = Annotated[int, Field(ge=1)]
_Name = Annotated[str, Field(min_length=1)]


@flow(name="evaluate", persist_result=False)
def evaluate(
    study: Path,
    model: str | None = None,
    reward_models: dict[str, str] | None = None,
    gate: Path | None = None,
    results: list[str] | None = None,
    benchmark: str = DEFAULT_BENCHMARK,
    data: Path | None = None,
    allow_partial: bool = False,
    schemes: list[str] | None = None,
    taus: list[float] | None = None,
    k: _Positive = DEFAULT_K,
    seed: Annotated[int, Field(ge=0)] = 0,
    num_random: _Positive = NUM_RANDOM,
    ratings: str | None = None,
    run: str | None = None,
    judge: str | None = None,
    paper: Literal["main", "fsfairx", "none"] = "main",
    out: Path | None = None,
    max_length: Annotated[int, Field(ge=16)] | None = None,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    revision: str | None = None,
    tracking_uri: str | None = None,
    experiment: _Name | None = None,
    candidate: _Name | None = None,
    registered_model: _Name = DEFAULT_MODEL,
    margin_points: Annotated[float, Field(ge=0)] = _MARGIN_POINTS,
    scoring_retries: Annotated[int, Field(ge=0, le=10)] = DEFAULT_RETRIES,
) -> State:
    """Benchmark a study's reward models and log every row; running it again adds what is missing.

    Args:
        study: The training study's directory; relative to the working directory.
        model: With several heads, to be weighed: a training run, its model folder or an export.
        reward_models: With one head each, by the name of their row; folders or hub ids.
        gate: A folder of `encore gate` over the heads of the model.
        results: Files of results of every pair, such as a judge's: rows of their own; NAME=FILE
            gives one a name.
        benchmark: rewardbench-safety, rewardbench-2-safety, generic, or a TOML file.
        data: The benchmark's rows as local files; default: the hub.
        allow_partial: Accept other counts than the definition's: marked everywhere.
        schemes: Only rows of these schemes, beside uniform; default: all.
        taus: Temperatures of scheme encore.
        k: Rules that top-k and random-k select.
        seed: Of draws and bootstrap.
        num_random: Draws in the rows of chance.
        ratings: Training ratings, if not the study's own.
        run: Which rating run, when there are several: a unique prefix of its key.
        judge: Which judge's ratings, when there are several.
        paper: Which backbone's figures of the paper stand beside ours.
        out: The folder of table and results; default: STUDY/benchmarks/<key>.
        max_length: Tokens of a conversation; default: as the model was trained.
        dtype: Number format of the models.
        revision: Of the hub id given as model.
        tracking_uri: MLflow's store, without a password; default: MLFLOW_TRACKING_URI, or a file in
            the study.
        experiment: MLflow's; default: the benchmark's name with the digest of its pairs.
        candidate: A row to register as candidate, and as champion if it may be.
        registered_model: Whose aliases move.
        margin_points: How much worse than the champion the lower end of the 95 % interval may be.
        scoring_retries: Further attempts when a network or a device fails.
    """
    log_expected_errors_in_one_line()
    refuse_secret(tracking_uri)
    check_name(registered_model)
    uri = choose_tracking_uri(study, given=tracking_uri)
    config = BenchmarkConfig(
        model=model,
        reward_models=tuple(f"{name}={one}" for name, one in (reward_models or {}).items()),
        gate=gate,
        results=tuple(results or ()),
        pairs=PairsConfig(benchmark=benchmark, data=data, allow_partial=allow_partial),
        rows=RowsConfig(
            schemes=tuple(schemes) if schemes else tuple(SCHEMES),
            taus=tuple(taus) if taus else DEFAULT_TAUS,
            k=k,
            seed=seed,
            num_random=num_random,
        ),
        ratings=None if ratings is None else Path(ratings),
        run=run,
        judge=judge,
        paper=paper,
        max_length=max_length,
        dtype=dtype,
        revision=revision,
        out=out,
    )
    benchmarked = benchmark_study.with_options(retries=scoring_retries)(
        study, config=config, candidate=candidate
    )
    publish_table(benchmarked)
    # Quoted: Prefect would look for futures in every pair.
    tracked = track_benchmark(
        quote(benchmarked),
        study=study,
        uri=uri,
        experiment=experiment,
        trainings=trainings_of(config),
    )
    publish_tracked(tracked)
    registered = None
    if candidate is not None:
        registered = register(
            quote(benchmarked),
            tracked,
            row=candidate,
            uri=uri,
            model=registered_model,
            margin=margin_points / 100,
        )
        publish_candidate(registered)
    evaluated = evaluated_study(benchmarked, tracked=tracked, registered=registered)
    return Completed(message=evaluated.summary, data=evaluated)


def main(
    study: StudyArgument,
    model: Annotated[
        str | None,
        typer.Option(metavar="FOLDER_OR_ID", help="The multi-head model whose heads are weighed."),
    ] = None,
    reward_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER_OR_ID",
            help="A row of its own for a reward model with one head; repeatable.",
        ),
    ] = None,
    gate: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A gate of `encore gate` over MODEL's heads."),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE", help="Results of every pair, such as a judge's; repeatable."
        ),
    ] = None,
    benchmark: BenchmarkName = DEFAULT_BENCHMARK,
    data: BenchmarkData = None,
    allow_partial: AllowPartial = False,
    scheme: Annotated[
        list[str] | None,
        typer.Option(help=f"Only these schemes; repeatable. Of: {', '.join(SCHEMES)}."),
    ] = None,
    tau: Annotated[
        list[float] | None, typer.Option(help="Temperatures of scheme encore; repeatable.")
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Of top-k and random-k.")] = DEFAULT_K,
    seed: Annotated[int, typer.Option(min=0, help="Of draws and bootstrap.")] = 0,
    num_random: Annotated[
        int, typer.Option(min=1, help="Draws in the rows of chance.")
    ] = NUM_RANDOM,
    ratings: Annotated[
        str | None,
        typer.Option(metavar="RATINGS", help="Training ratings, if not the study's own."),
    ] = None,
    run: RunOption = None,
    judge: Annotated[
        str | None, typer.Option(help="Which judge's ratings, when there are several.")
    ] = None,
    paper: Annotated[
        Literal["main", "fsfairx", "none"],
        typer.Option(help="Which backbone's figures of the paper stand beside ours."),
    ] = "main",
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Of table and results. Default: in the study."),
    ] = None,
    max_length: MaxLength = None,
    dtype: Dtype = "auto",
    revision: Annotated[str | None, typer.Option(help="Of the hub id given as --model.")] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="MLflow's store. Default: MLFLOW_TRACKING_URI, or the file STUDY/mlflow.db.",
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(help="MLflow's. Default: the benchmark's name with its pairs' digest."),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="Register this row, e.g. 'encore (τ 2)', under the alias candidate, and under "
            "champion if it is not worse than the champion by the margin.",
        ),
    ] = None,
    registered_model: Annotated[
        str, typer.Option(help="The registered model whose aliases move.")
    ] = DEFAULT_MODEL,
    margin: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="POINTS",
            help="The candidate is promoted only if the lower end of the 95 % interval of its "
            "difference to the champion, on the same pairs, is above minus this.",
        ),
    ] = _MARGIN_POINTS,
    scoring_retries: Annotated[
        int, typer.Option(min=0, max=10, help="Attempts after a network or a device failed.")
    ] = DEFAULT_RETRIES,
) -> None:
    """Benchmark a study under Prefect and compare every row in MLflow.

    The same files as `encore benchmark`. Every row is a run, with the same parameters and metrics
    as every other, inside the study's run: select some and compare. Without PREFECT_API_URL a
    temporary server is started for this run; with it, the run and its table are kept on that
    server. Run the same command again after a crash or Ctrl-C: nothing is scored or logged twice.

    Example: python -m flows.evaluate study --model study/training/KEY --candidate "encore (τ 2)"
    """
    if tracking_uri is not None and has_secret(tracking_uri):
        # Parameters of a flow run are stored and shown; a password stays in this process.
        os.environ[VARIABLE] = tracking_uri
        tracking_uri = None
    run_flow(
        evaluate,
        study=study,
        model=model,
        reward_models=dict(BenchmarkConfig(reward_models=tuple(reward_model or ())).named_models),
        gate=gate,
        results=results,
        benchmark=benchmark,
        data=data,
        allow_partial=allow_partial,
        schemes=scheme,
        taus=tau,
        k=k,
        seed=seed,
        num_random=num_random,
        ratings=ratings,
        run=run,
        judge=judge,
        paper=paper,
        out=out_dir,
        max_length=max_length,
        dtype=dtype,
        revision=revision,
        tracking_uri=tracking_uri,
        experiment=experiment,
        candidate=candidate,
        registered_model=registered_model,
        margin_points=margin,
        scoring_retries=scoring_retries,
    )


if __name__ == "__main__":
    run_command(main)
