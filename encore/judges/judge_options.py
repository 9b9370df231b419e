"""Configuration of a judge: its model, its engine, and the server that it runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, JsonValue, ModelWrapValidatorHandler, ValidationError, model_validator

from encore.core.config import StageConfig, option, unkeyed_option
from encore.core.errors import JudgeUnavailableError, first_problem
from encore.judges.judge_file import ENDING, read_judge_file

_http = partial(unkeyed_option, group="Judge over HTTP")

EngineValue = bool | int | float | str

#: Fields of a request's body that hold the prompt, or change how many replies come and in which
#: form. Encore sets them or cannot read what comes with them.
_FIXED_FIELDS = frozenset(
    {
        *("model", "messages", "prompt", "prompt_embeds", "chat_template", "suffix", "echo"),
        *("truncate_prompt_tokens", "n", "best_of", "stream", "stream_options"),
    }
)
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[A-Za-z0-9_-]+"), re.compile(r"ENV:[A-Za-z_]\w*")

#: Parts of the names of parameters that hold secrets: api-key, subscriptionKey, access_token, sig.
_SECRET_WORDS = frozenset(
    {
        *(
            "key",
            "apikey",
            "token",
            "accesstoken",
            "sig",
            "signature",
            "secret",
            "password",
            "pass",
        ),
        *("passwd", "pwd", "auth", "authorization", "credential", "credentials", "jwt", "sas"),
        *("bearer", "session", "code"),
    }
)
_SECRET_VALUE = re.compile(r"(sk|pk|rk|hf|gsk|xai|ghp|eyJ)[-_A-Za-z0-9.]{16,}|[0-9a-fA-F]{32,}")

#: Ways in which a judge answers (`encore.judges.base.Decoding`).
Decode = Literal["text", "choice", "expected"]


def _secret_parameter(name: str, value: str) -> str | None:
    """Return the name of a URL's parameter that looks like a secret, else None.

    The name itself may be the secret; it is not shown then.
    """
    name_parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    if _SECRET_VALUE.fullmatch(name):
        return "without a name"
    is_secret = _SECRET_WORDS.intersection([name.lower(), *map(str.lower, name_parts)])
    return repr(name) if is_secret or _SECRET_VALUE.fullmatch(value) else None


class JudgeConfig(StageConfig):
    """Options of a judge: model, engine, or server."""

    model: str = option(name="judge", min_length=1)
    """Folder with a model (config, tokenizer with chat template, *.safetensors), a hub id such as
    meta-llama/Meta-Llama-3-70B-Instruct, or a file judge.toml with these and all options of the
    judge; an option beside it counts instead. Over HTTP: the server's name for it."""
    backend: Literal["vllm", "transformers", "http"] = option("vllm", beside_recipe=True)
    """The engine that runs the judge; http: a server that speaks the OpenAI protocol."""
    revision: str | None = option(None, beside_recipe=True)
    """Hub revision of the judge; the commit it resolves to is recorded. Over HTTP: any text that
    distinguishes two models of the same name; default: the server's host."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto")
    """Number format of the judge; auto is what its own config says."""
    max_model_len: Annotated[int, Field(ge=64)] | None = option(None)
    """Context length in tokens; default: the judge's own, at most 8192."""
    engine_args: dict[str, EngineValue] = option(dict, name="engine-arg", beside_recipe=True)
    """Passed to vLLM, e.g. tensor_parallel_size=4 or quantization=fp8; repeatable."""
    base_url: str | None = _http(
        None, metavar="URL", examples=["http://127.0.0.1:8000/v1", "https://api.openai.com/v1"]
    )
    """Address of the server or its router, or several with commas between them, which share the
    work. Texts are sent there. Parameters such as ?api-version=2024-10-21 are sent with every
    request."""
    served_models: tuple[Annotated[str, Field(min_length=1)], ...] = _http(
        (), name="served-model", identity=True, metavar="NAME"
    )
    """Accept answers under this name too, as deployments and gateways give them; repeatable. The
    judge's name, with a prefix or a date, is accepted without it."""
    tokenizer: str | None = _http(None, identity=True, metavar="FOLDER_OR_ID")
    """The judge's tokenizer, if the server is vLLM: prompts are then sent as token ids and replies
    equal those of --backend vllm. Default: chat completions."""
    concurrency: int = _http(64, ge=1, le=4096)
    """Maximal number of simultaneous requests."""
    request_timeout_seconds: float = _http(120, gt=0)
    """Time limit of a request in seconds, from the connection to the end of the answer."""
    wait_for_server: float = _http(0, ge=0, metavar="MINUTES")
    """Wait so long for a server that is away: it takes no connection, or answers 502, 503 or 504.
    0: do not wait."""
    api_key_env: str = _http("OPENAI_API_KEY", min_length=1, metavar="NAME")
    """Environment variable that holds the server's key, if it needs one."""
    request_fields: dict[str, JsonValue] = _http(
        dict, name="request-field", identity=True, metavar="NAME=JSON"
    )
    """Adds a field to the body of each request, or replaces it, e.g. top_p=0.9; repeatable."""
    omit_fields: tuple[str, ...] = _http((), name="omit-field", identity=True, metavar="NAME")
    """Leaves a field out of the body of each request, e.g. temperature; repeatable."""
    headers: dict[str, str] = _http(dict, name="header", metavar="NAME=ENV:VARIABLE")
    """Sends a header whose value is read from an environment variable; repeatable."""

    @model_validator(mode="wrap")
    @classmethod
    def _read_file(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Take the options of a file in place of the model; those given beside it count."""
        model = values.get("model") if isinstance(values, Mapping) else None
        if not (isinstance(model, str | Path) and str(model).endswith(ENDING)):
            return handler(values)
        options = read_judge_file(Path(model), names=[*cls.model_fields])
        beside = {name: value for name, value in values.items() if name != "model"}
        try:
            return handler(options | beside)
        except ValidationError as error:
            problem = first_problem(error)
            name = str(next(iter(problem.location), ""))
            if name not in options or name in beside:
                raise
            # Without the value, in which a secret may be.
            message = f"judge {str(model)!r}: {name}: {problem.message}"
            raise JudgeUnavailableError(message) from None

    @property
    def num_devices(self) -> int:
        """Return the number of devices of one engine: tensor times pipeline parallel size.

        Raises:
            JudgeUnavailableError: One of the sizes is not a positive whole number.
        """
        product = 1
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            value = self.engine_args.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise JudgeUnavailableError(
                    f"engine argument {name}: {value!r}, expected a whole number of devices"
                )
            product *= value
        return product

    @property
    def base_urls(self) -> tuple[str, ...]:
        """Return the addresses of the servers."""
        urls = map(str.strip, re.split(r",\s*(?=https?:|$)", self.base_url or ""))
        return tuple(dict.fromkeys(url for url in urls if url))

    def request_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a request with the fields of the user added and left out."""
        fields = {**body, **self.request_fields}
        return {name: fields[name] for name in fields if name not in self.omit_fields}

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if fixed := _FIXED_FIELDS.intersection([*self.request_fields, *self.omit_fields]):
            raise ValueError(
                f"--request-field and --omit-field cannot change {', '.join(sorted(fixed))}: it "
                "holds the prompt or the form of the answer; give other fields"
            )
        if both := sorted(set(self.omit_fields).intersection(self.request_fields)):
            raise ValueError(f"{both[0]} is given to --request-field and --omit-field: choose one")
        for name, value in self.headers.items():
            # No ValueError, and neither name nor value in the message: a secret may be in either.
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
                raise JudgeUnavailableError(
                    "--header: expected NAME=ENV:VARIABLE, e.g. X-Api-Key=ENV:GATEWAY_KEY; the "
                    "value is read from the environment variable and given nowhere else"
                )
        return self

    @model_validator(mode="after")
    def _is_reachable(self) -> Self:
        # No ValueError where a key may be in a value: pydantic would show the value.
        if not self.api_key_env.isidentifier():
            raise JudgeUnavailableError(
                "--api-key-env is not the name of an environment variable; give the name, not the "
                "key"
            )
        if self.base_url is None:
            if self.backend == "http":
                raise ValueError("--backend http needs --base-url")
            if self.request_fields or self.omit_fields or self.headers or self.served_models:
                raise ValueError(
                    "--request-field, --omit-field, --served-model and --header belong to "
                    "--backend http"
                )
            return self
        if self.backend != "http" or self.engine_args:
            raise ValueError(
                "--base-url belongs to --backend http, --engine-arg to an engine that starts here"
            )
        if not self.base_urls:
            raise ValueError(f"--base-url {self.base_url!r}: expected http://HOST:PORT/v1")
        for url in self.base_urls:
            self._check_address(url)
        hosts = {urlsplit(url).hostname for url in self.base_urls}
        if len(hosts) > 1 and self.revision is None:
            raise ValueError(
                f"--base-url names {len(hosts)} hosts, so none tells which model replies; give "
                "--revision NAME: any text that stands for this model, the same in every call"
            )
        return self

    def _check_address(self, address: str) -> None:
        """Refuse an address that is none, or that holds a secret."""
        url = urlsplit(address)
        if "@" in url.netloc or url.fragment:
            raise JudgeUnavailableError(
                "--base-url has a user, a password or a part after # in it; a key is read from the "
                f"environment variable {self.api_key_env} only: put it there, and give the plain "
                "URL such as https://host/v1"
            )
        parameters = parse_qsl(url.query, keep_blank_values=True)
        if secret := next(filter(None, starmap(_secret_parameter, parameters)), None):
            raise JudgeUnavailableError(
                f"--base-url: its parameter {secret} looks like a key, which is read from the "
                f"environment variable {self.api_key_env}, or sent as a header: --header "
                "NAME=ENV:VARIABLE; leave the parameter out"
            )
        if url.scheme not in ("http", "https") or not url.hostname or "," in url.netloc + url.path:
            raise ValueError(f"--base-url {address!r}: expected http://HOST:PORT/v1")
