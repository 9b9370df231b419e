"""`encore serve`: a reward model behind a port."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from encore.cli import weight_choice as choice
from encore.cli.output import JsonOption, print_json, say, warn
from encore.cli.score import Dtype
from encore.cli.stopping import stopped_by_sigterm
from encore.errors import EncoreError

if TYPE_CHECKING:
    from encore.serving.composer import Composer

_INTERRUPTED = 130
_PACKAGES = ("prometheus_client", "starlette", "uvicorn")
_LOGGERS = ("encore.serving", "uvicorn.error")


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="What `encore train` or `encore export` wrote, or a reward model's hub id.",
        ),
    ],
    weights: choice.Weights = None,
    rule: choice.Rule = None,
    scheme: choice.Scheme = None,
    ratings: choice.Ratings = None,
    tau: choice.Tau = None,
    seed: choice.Seed = None,
    k: choice.K = None,
    run: choice.Run = None,
    judge: choice.Judge = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any free one.")] = 5000,
    max_batch_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that are computed together.")
    ] = 8_192,
    max_queue_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that may wait; default: 64 full batches."),
    ] = None,
    max_request_bytes: Annotated[int, typer.Option(min=1, help="Of a request's body.")] = 8 << 20,
    max_queries: Annotated[int, typer.Option(min=1, help="Texts in one request.")] = 1024,
    max_length: Annotated[
        int | None,
        typer.Option(min=16, help="Tokens of a text; default: as the model was trained."),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Of a hub id.")] = None,
    device: Annotated[str | None, typer.Option(help="Default: the GPU where there is one.")] = None,
    dtype: Dtype = "auto",
    as_json: JsonOption = False,
) -> None:
    """Serve a model's rewards over HTTP, with what every rule contributes to them.

    Without weights a model of one head is served; one of several heads is
    refused, since a reward is one number: give --weights, --rule or --scheme.

    POST /get_reward (or /) speaks the protocol of OpenRLHF's remote reward
    model: {"query": [texts]} in, {"rewards": [...]} out. A query is a rendered
    text; its special tokens are read as such.

    POST /score takes {"conversations": [{"messages": [...], "response": "…"}]}
    and answers with the score, weight and centred contribution of every rule;
    contributions sum to the reward, reward_shown has the rules' means added
    back. GET /health, /metrics (for Prometheus) and /model.

    Requests of all clients are scored together. Ctrl-C or SIGTERM answers what
    is under way and stops. The server asks nobody who they are: another --host
    than the default lets in whoever reaches it.

    For example:

    encore weights study --json > weights.json

    encore serve study/training/KEY/model --weights weights.json
    """
    chosen = choice.WeightChoice(
        weights=weights,
        rule=rule,
        scheme=scheme,
        ratings=ratings,
        tau=tau,
        seed=seed,
        k=k,
        run=run,
        judge=judge,
    )
    chosen.check()
    if ratings is not None and scheme is None:
        raise typer.BadParameter("--ratings belongs to --scheme, which is not given")
    _check_packages()
    from encore.serving.config import ServerConfig

    config = ServerConfig(
        max_batch_tokens=max_batch_tokens,
        max_queue_tokens=max_queue_tokens,
        max_request_bytes=max_request_bytes,
        max_queries=max_queries,
    )
    from encore.model.opening import open_reward_model
    from encore.serving.composer import make_composer
    from encore.serving.server import RewardServer, bind, is_loopback

    with stopped_by_sigterm(), _logging(), bind(host, port) as listener:
        if not is_loopback(listener):
            warn(
                f"--host {host}: whoever reaches this machine's port can use this server, it asks "
                "for no password; put it behind something that does"
            )
        opened = open_reward_model(
            model, device=device, dtype=dtype, max_length=max_length, revision=revision
        )
        head_ids = opened.model.head_ids
        composition = chosen.composition(head_ids)
        composer = make_composer(
            composition, head_ids=head_ids, mean_R=opened.model.mean_R.tolist()
        )

        def on_ready(url: str) -> None:
            if as_json:
                print_json({"url": url, "model": opened.name, "digest": opened.digest})
                sys.stdout.flush()
            say(f"serving {opened.name} on {url}: {_told(composer)}; stop with Ctrl-C")

        server = RewardServer(
            opened, composer=composer, listener=listener, config=config, on_ready=on_ready
        )
        stopped_by = server.run()
    if stopped_by == signal.SIGINT:
        say("stopped; what was under way is answered")
        raise typer.Exit(_INTERRUPTED)


def _check_packages() -> None:
    absent = [package for package in _PACKAGES if find_spec(package) is None]
    if absent:
        raise EncoreError(
            f"serving needs {', '.join(absent)}, not installed here; install what is missing with "
            "pip install 'encore-reward[train,serve]'"
        )


def _told(composer: Composer) -> str:
    if len(composer.head_ids) == 1:
        return f"the head {composer.head_ids[0]}"
    params = composer.origin["params"].items()
    shown = "".join(f", {name} {value}" for name, value in params)
    return f"{len(composer.head_ids)} rules, weights of scheme {composer.origin['scheme']}{shown}"


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """One line a request on stderr, and what goes wrong.

    uvicorn's warnings are about requests too, which have their line already.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger, level in zip(loggers, (logging.INFO, logging.ERROR), strict=True):
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
