"""Configuration of a judge: its model, its engine, and the server that it runs on."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from encore.core.config import StageConfig, option, unkeyed_option
from encore.core.errors import JudgeUnavailableError

_http = partial(unkeyed_option, group="Judge over HTTP")

EngineValue = bool | int | float | str


#: Ways in which a judge answers (`encore.judges.base.Decoding`).
Decode = Literal["text", "choice", "expected"]


class JudgeConfig(StageConfig):
    """Options of a judge: model, engine, or server."""

    model: str = option(name="judge", min_length=1)
    """Folder with a model (config, tokenizer with chat template, *.safetensors) or a hub id such as
    meta-llama/Meta-Llama-3-70B-Instruct. Over HTTP: the server's name for it."""
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
    """Address of the server or its router. Texts are sent there."""
    tokenizer: str | None = _http(None, identity=True, since=True, metavar="FOLDER_OR_ID")
    """The judge's tokenizer, if the server is vLLM: prompts are then sent as token ids and replies
    equal those of --backend vllm. Default: chat completions."""
    concurrency: int = _http(64, ge=1, le=4096)
    """Maximal number of simultaneous requests."""
    request_timeout_seconds: float = _http(120, gt=0)
    """Time limit of a request in seconds."""
    api_key_env: str = _http("OPENAI_API_KEY", min_length=1, metavar="NAME")
    """Environment variable that holds the server's key, if it needs one."""

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
            return self
        if self.backend != "http" or self.engine_args:
            raise ValueError(
                "--base-url belongs to --backend http, --engine-arg to an engine that starts here"
            )
        url = urlsplit(self.base_url)
        if "@" in url.netloc or url.query or url.fragment:
            raise JudgeUnavailableError(
                "--base-url has a user, a password or parameters in it; a key is read from the "
                f"environment variable {self.api_key_env} only: put it there, and give the plain "
                "URL such as https://host/v1"
            )
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"--base-url {self.base_url!r}: expected http://HOST:PORT/v1")
        return self
