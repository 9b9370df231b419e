"""Configuration of a judge: its model, its engine, and what a server is asked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from encore.core.chat_tokenizer import ChatOptions
from encore.core.config import StageConfig, option
from encore.core.errors import InputError, JudgeUnavailableError, first_problem
from encore.judges.judge_file import ENDING, read_judge_file
from encore.judges.server_options import ServerOptions, http_option

EngineValue = bool | int | float | str | dict[str, JsonValue] | list[JsonValue]

#: Fields of a request's body that hold the prompt, or change how many replies come and in which
#: form. Encore sets them or cannot read what comes with them.
_FIXED_FIELDS = frozenset(
    {
        *("model", "messages", "prompt", "prompt_embeds", "chat_template", "suffix", "echo"),
        *("truncate_prompt_tokens", "n", "best_of", "stream", "stream_options"),
        *("state", "input", "questions"),
    }
)

#: Fields of a request that change its cost, its speed or its record at the service but no reply.
_FIELDS_WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
        *("priority", "cache_salt"),
    }
)

#: Ways in which a judge answers (`encore.judges.base.Decoding`).
Decode = Literal["text", "choice", "expected"]
#: Interfaces of decision models, and the largest number of questions in a request: that of vLLM,
#: and that of OpenAI.
DecisionApi = Literal["systemone", "decisions"]
MAX_QUESTIONS: dict[DecisionApi, int] = {"systemone": 64, "decisions": 400}


def _is_file(text: str) -> bool:
    """Return True if a text is the path of a file; most texts are too long for one."""
    with contextlib.suppress(OSError, ValueError):
        return Path(text).is_file()
    return False


def _text_of(path: Path, name: str) -> str:
    """Return the content of an option's file.

    Raises:
        JudgeUnavailableError: It cannot be read as UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JudgeUnavailableError(
            f"{name} {str(path)!r}: {error}; expected a text file in UTF-8"
        ) from error


class JudgeConfig(StageConfig):
    """A judge: its model, its engine, or what its server is asked (`ServerOptions`: how)."""

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
    """Number format of the judge; auto is what its own config says, or float32 on a processor that
    has no units for it."""
    max_model_len: Annotated[int, Field(ge=64)] | None = option(None)
    """Context length in tokens; default: the judge's own, at most 8192."""
    engine_args: dict[str, EngineValue] = option(dict, name="engine-arg", beside_recipe=True)
    """Passed to vLLM, e.g. tensor_parallel_size=4, quantization=fp8 or
    hf_overrides='{"max_position_embeddings": 4096}'; repeatable."""
    system: str | None = option(None, metavar="TEXT_OR_FILE")
    """System message before each prompt: its text, or the path of a file that holds it. A path of a
    file that is missing is told by its first character: a dot, a slash or ~."""
    chat_template: Path | None = option(None, metavar="FILE")
    """Chat template (Jinja) in place of the judge's own, where prompts are tokenised here: on the
    local engines, and over HTTP with --tokenizer."""
    chat_template_args: dict[str, JsonValue] = option(
        dict, name="chat-template-arg", metavar="NAME=JSON"
    )
    """Argument of the judge's chat template, e.g. enable_thinking=false; repeatable. Over HTTP it
    is sent as chat_template_kwargs."""
    served_models: tuple[Annotated[str, Field(min_length=1)], ...] = http_option(
        (), name="served-model", metavar="NAME"
    )
    """Accept answers under this name too, as deployments and gateways give them; repeatable. The
    judge's name, with a prefix or a date, is accepted without it."""
    tokenizer: str | None = http_option(None, metavar="FOLDER_OR_ID")
    """The judge's tokenizer, if the server is vLLM: prompts are then sent as token ids and replies
    equal those of --backend vllm. Default: chat completions."""
    api: DecisionApi | None = http_option(None)
    """The judge is a decision model, which answers questions with probabilities: at /v1/systemone
    (vLLM) or at /v1/decisions (OpenAI). It goes with --decode expected, and --layout all-rules asks
    all rules of a response in one request. Default: the judge writes its replies."""
    request_fields: dict[str, JsonValue] = http_option(
        dict, name="request-field", metavar="NAME=JSON"
    )
    """Adds a field to the body of each request, or replaces it, e.g. top_p=0.9; repeatable."""
    omit_fields: tuple[str, ...] = http_option((), name="omit-field", metavar="NAME")
    """Leaves a field out of the body of each request, e.g. temperature; repeatable."""
    _server_of_file: ServerOptions = PrivateAttr(default_factory=ServerOptions)

    @model_validator(mode="wrap")
    @classmethod
    def _read_file(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Take the options of a file in place of the model; those given beside it count."""
        model = values.get("model") if isinstance(values, Mapping) else None
        if not (isinstance(model, str | Path) and str(model).endswith(ENDING)):
            return handler(values)
        server_names = ServerOptions.model_fields.keys()
        options = read_judge_file(Path(model), names=[*cls.model_fields, *server_names])
        of_server = {name: options.pop(name) for name in server_names & options.keys()}
        beside = {name: value for name, value in values.items() if name != "model"}
        try:
            judge = handler(options | beside)
            judge._server_of_file = ServerOptions.model_validate(of_server)
        except ValidationError as error:
            problem = first_problem(error)
            name = str(next(iter(problem.location), ""))
            if name not in options | of_server or name in beside:
                raise
            # Without the value, in which a secret may be.
            message = f"judge {str(model)!r}: {name}: {problem.message}"
            raise JudgeUnavailableError(message) from None
        return judge

    @cached_property
    def chat(self) -> ChatOptions:
        """Return what the judge's chat has beside the user's message; files are read here.

        Raises:
            JudgeUnavailableError: A file cannot be read.
        """
        template = None
        if self.chat_template is not None:
            template = _text_of(self.chat_template, "--chat-template")
        system = self.system or ""
        if system.startswith((".", "/", "~")) or (system and _is_file(system)):
            system = _text_of(Path(system).expanduser(), "--system")
        return ChatOptions(system=system, template=template, template_args=self.chat_template_args)

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
    def keyed_request(self) -> dict[str, str]:
        """Return what a judge's identity has of its requests: given fields and names of the model.

        Headers are no part: they hold keys and accounts, which change while the model stays.
        """
        fields = self.request_fields
        added = {name: fields[name] for name in fields.keys() - _FIELDS_WITHOUT_EFFECT}
        omitted = sorted({*self.omit_fields} - _FIELDS_WITHOUT_EFFECT)
        served = sorted(self.served_models)
        keyed = {"request_fields": added, "omit_fields": omitted, "served_models": served}
        return {name: json.dumps(value, sort_keys=True) for name, value in keyed.items() if value}

    def request_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a request with the fields of the user added and left out.

        A chat and a decision also get the system message, and the arguments of the template.
        """
        chat = self.chat
        system = {"role": "system", "content": chat.system}
        if "messages" in body and chat.system:
            body = {**body, "messages": [system, *body["messages"]]}
        if "state" in body and chat.system:
            body = {**body, "instructions": chat.system}
        if "input" in body and chat.system:
            body = {**body, "input": [system, {"role": "user", "content": body["input"]}]}
        if "prompt" not in body and chat.template_args:
            body = {**body, "chat_template_kwargs": dict(chat.template_args)}
        fields = {**body, **self.request_fields}
        return {name: fields[name] for name in fields if name not in self.omit_fields}

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if fixed := _FIXED_FIELDS.intersection([*self.request_fields, *self.omit_fields]):
            raise ValueError(
                f"--request-field and --omit-field cannot change {', '.join(sorted(fixed))}: it "
                "holds the prompt or the form of the answer; give other fields"
            )
        if self.api is not None and (self.backend != "http" or self.tokenizer is not None):
            raise ValueError(
                f"--api {self.api} belongs to --backend http without --tokenizer: the server makes "
                "a prompt of each question"
            )
        if both := sorted(set(self.omit_fields).intersection(self.request_fields)):
            raise ValueError(f"{both[0]} is given to --request-field and --omit-field: choose one")
        if self.chat_template is not None and self.backend == "http" and self.tokenizer is None:
            raise ValueError(
                "--chat-template belongs to prompts that are tokenised here: give --tokenizer, or "
                "start the server with the template"
            )
        return self

    def server(self, how: ServerOptions) -> ServerOptions:
        """Return the options of the judge's server: those given, else those of the judge's file.

        Raises:
            InputError: The judge is on a server and has no address, or the other way round, or the
                addresses do not say which model replies.
        """
        names = ServerOptions.model_fields.keys() & how.model_fields_set
        server = self._server_of_file.model_copy(
            update={name: getattr(how, name) for name in names}
        )
        if server.base_url is None:
            if self.backend == "http":
                raise InputError("--backend http needs --base-url")
            if self.request_fields or self.omit_fields or server.headers or self.served_models:
                raise InputError(
                    "--request-field, --omit-field, --served-model and --header belong to "
                    "--backend http"
                )
            return server
        if self.backend != "http" or self.engine_args:
            raise InputError(
                "--base-url belongs to --backend http, --engine-arg to an engine that starts here"
            )
        num_hosts = len(server.host.split(", "))
        if num_hosts > 1 and self.revision is None:
            raise InputError(
                f"--base-url names {num_hosts} hosts, so none tells which model replies; give "
                "--revision NAME: any text that stands for this model, the same in every call"
            )
        return server
