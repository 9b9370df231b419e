"""`encore serve`: serve a reward model over HTTP."""

from __future__ import annotations

import sys

from encore.cli.output import warn_of_unused
from encore.core.command_parser import JsonOption, command
from encore.core.extras import require_packages
from encore.core.model_files import refuse_missing_folder
from encore.core.terminal import print_json, say, say_next
from encore.serving.serve_options import ServeConfig

#: Body of a request to try the server with.
_EXAMPLE = (
    '{"conversations": [{"messages": [{"role": "user", "content": "Hi."}], "response": "Hello."}]}'
)


@command
def serve(config: ServeConfig, *, json: JsonOption = False) -> None:
    """Serve a model's rewards over HTTP, with the contribution of every rule.

    A model of one head needs no weights. A model of several heads needs --weights, --rule or
    --scheme, since a reward is one number.

    POST /get_reward (or /) speaks the protocol of OpenRLHF's remote reward model: {"query":
    [texts]} in, {"rewards": [...]} out. A query is a rendered text; its special tokens are read as
    special tokens.

    POST /score takes {"conversations": [{"messages": [...], "response": "…"}]} and answers with
    the score, weight and centred contribution of every rule; contributions sum to the reward,
    reward_shown has the rules' means added back. GET /health, /metrics (for Prometheus) and /model.

    POST /guard says which conversations are safe. verl, LLaMA-Factory, slime and NeMo Gym are
    answered in their own shapes.

    Requests of all clients are scored together. On Ctrl-C or SIGTERM the server answers the
    requests in progress and stops. It asks for no password: with another --host than the default,
    every machine that reaches it can use it.

    Example: encore serve study/training/KEY/model --weights weights.json
    """
    refuse_missing_folder("reward model", config.model)
    require_packages("torch", "transformers", "prometheus_client", work="encore serve")
    warn_of_unused(config.composition.unused_options(), who=f"scheme {config.composition.scheme}")
    from encore.core.listening import listen, make_server, url_of
    from encore.serving.open_app import open_app
    from encore.serving.reward_app import RewardApp

    with listen(config.host, config.port) as listener:
        url = url_of(listener)

        def on_ready(app: RewardApp) -> None:
            """Print the address and the model, now that the server answers requests."""
            name, digest, composition = app.opened.name, app.opened.digest, app.composition
            if json:
                print_json({"url": url, "model": name, "digest": digest})
                sys.stdout.flush()
            weights = f"{len(composition.weights)} rules, weights of scheme {composition.scheme}"
            if "beta" in composition.params:
                rules = f"{len(composition.weights) - 1} rules of scheme {composition.scheme}"
                weights = f"head 0 and {rules}, beta {composition.params['beta']:g}"
            say(f"serving {name} on {url}: {weights}; stop with Ctrl-C")
            if composition.note:
                say(f"note: {composition.note}")
            header = ("-H", "content-type: application/json")
            say_next(f"{url}/score", *header, "-d", _EXAMPLE, program="curl")

        make_server(open_app(config, on_ready=on_ready)).run(sockets=[listener])
