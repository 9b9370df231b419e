"""What a stage runs with: frozen pydantic models, the only declaration of each option.

From a stage's config the command line and the Prefect form are generated, and from it come recipes,
the run's identity, MLflow's parameters and the reference page. A config stands beside its stage;
this module has what all of them share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from encore.core.errors import JudgeUnavailableError

_ABOUT = "encore"

EngineValue = bool | int | float | str
#: A reply to a rating prompt is a number: more tokens than this are none.
MAX_RATING_REPLY_TOKENS = 512

Layout = Literal["auto", "packed", "prefix-shared", "sorted", "single"]
#: How a judge's answer becomes a rating.
Decode = Literal["text", "choice", "expected"]
PromptLayout = Literal["paper", "conversation-first"]
#: Labels of a scale that none is given for, the lowest first. The paper's judge answers in tenths;
#: a digit is one token of most tokenizers.
DEFAULT_SCALES: dict[str, tuple[str, ...]] = {
    "text": (),
    "choice": tuple(f"{tenth / 10:.1f}" for tenth in range(11)),
    "expected": tuple("0123456789"),
}


class StageConfig(BaseModel):
    """The options of one stage."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), defer_build=True
    )


def option(
    default: Any = ...,
    *,
    help: str,  # noqa: A002  # the word that every parser uses
    group: str | None = None,
    name: str | None = None,
    alias: str | None = None,
    positional: bool = False,
    hidden: bool = False,
    identity: bool = True,
    since: bool = False,
    only_for: Mapping[str, Sequence[str]] | None = None,
    source: str | None = None,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    **bounds: Any,
) -> Any:
    """A field of a stage's config.

    Args:
        default: Its default; left out: the option is required.
        help: What it says, for the command line, the Prefect form and the reference page.
        group: Panel of the help text.
        name: Option name on the command line, if not the field's.
        alias: A second option name.
        positional: An argument instead of an option.
        hidden: No option on the command line.
        identity: Whether it changes results and so is part of a run's key.
        since: Added after runs existed: at its default it is left out of the key.
        only_for: The values of another field with which this option is read, by that field's name,
            e.g. ``{"method": ("lora",)}``; see `unused_options`. None: it is always read.
        source: Where the default comes from, e.g. a section of the paper.
        metavar: What stands for the value in the help text.
        choices: What the Prefect form offers; the stage itself refuses another value by name.
        **bounds: Passed to `pydantic.Field`: ``ge``, ``le``, ``gt``, ``lt``, ``min_length``,
            ``examples``, ….
    """
    about: dict[str, Any]
    about = {"group": group, "name": name, "alias": alias, "source": source, "metavar": metavar}
    about |= {"positional": positional, "hidden": hidden, "since": since}
    about["only_for"] = {name: [*values] for name, values in (only_for or {}).items()}
    said = {key: value for key, value in about.items() if value}
    if not identity:
        said["identity"] = False
    extra: dict[str, Any] = {_ABOUT: said}
    if choices:
        extra["enum"] = [*choices]
    default_is = "default_factory" if isinstance(default, type) else "default"
    return Field(description=help, json_schema_extra=extra, **{default_is: default}, **bounds)


#: An option that changes no result; and such ones of a panel of the help text.
_free = partial(option, identity=False)
_engines = partial(_free, group="Engines")
_http = partial(_free, group="Judge over HTTP")
_limits = partial(_free, group="Limits")
_prices = partial(_free, group="Prices")
_computing = partial(option, group="Reading and computing")


def about_option(field: FieldInfo) -> Mapping[str, Any]:
    """What `option` was told of a field beside its default, help and bounds."""
    extra = field.json_schema_extra
    about = extra.get(_ABOUT) if isinstance(extra, dict) else None
    return about if isinstance(about, dict) else {}


def unused_options(config: BaseModel, *, because_of: str) -> dict[str, Any]:
    """Return the options that were set but are not read with the value of another field.

    Args:
        config: The config; only its own fields are looked at, not those of nested configs.
        because_of: Name of the other field, as in `option`'s ``only_for``.
    """
    value = getattr(config, because_of)
    options = {}
    for name, field in type(config).model_fields.items():
        readers = about_option(field).get("only_for", {}).get(because_of, (value,))
        if name in config.model_fields_set and value not in readers:
            options[name] = getattr(config, name)
    return options


def identity_of(config: BaseModel) -> dict[str, Any]:
    """The part of a config that a run's key is made of, as JSON values.

    Fields that change no result are left out, and fields that were added later while they have
    their default, so that the keys of existing runs stay.
    """
    dumped = config.model_dump(mode="json")
    identity: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        about = about_option(field)
        value = getattr(config, name)
        is_default = about.get("since") and value == field.get_default(call_default_factory=True)
        if about.get("identity", True) and not is_default:
            identity[name] = identity_of(value) if isinstance(value, BaseModel) else dumped[name]
    return identity


class IngestConfig(StageConfig):
    """`encore ingest`: which pairs go into which study."""

    sources: tuple[str, ...] = option(
        positional=True,
        metavar="SOURCE...",
        min_length=1,
        help="What to read, each as [LABEL=][FORMAT:]WHERE. WHERE is hh, hh/harmless-base, pku or "
        "hh-pku (the paper's data, from the Hugging Face hub at a pinned commit), a hub id "
        "OWNER/NAME or OWNER/NAME@REVISION, or a local .jsonl, .json (both also .gz) or .parquet "
        "file or a folder of such files. FORMAT is hh, pku, rlhflow or pairs; without it, it is "
        "told from the first record. LABEL becomes the `source` column.",
    )
    out: Path = _free(metavar="STUDY", help="The study directory; made if it is not there.")
    prefer: Literal["safer", "better"] | None = option(
        None,
        help="Which label of raw PKU-SafeRLHF says what is chosen: safer (harmlessness, the "
        "default) or better (helpfulness).",
    )
    split: str | None = option(
        None,
        examples=["train", "test", "train+test"],
        help="Split of the hub sources: train (the default), test or train+test.",
    )
    replace: bool = _free(False, help="Put other pairs in the place of a label's.")


class StudyConfig(StageConfig):
    """What a stage of a study works on."""

    study: Path = _free(positional=True, help="The study directory (made by `encore ingest`).")


class RunKeyConfig(StageConfig):
    """Which rating run of a study."""

    run: str | None = _free(
        None,
        metavar="RUN_KEY",
        help="Which run, when there are several (a unique prefix of its key is enough).",
    )


class RunChoice(RunKeyConfig):
    """Which ratings of a study are read."""

    judge: str | None = _free(None, metavar="NAME", help="Which judge, when there are several.")


class RatingsConfig(RunChoice):
    """Which ratings are read, by stages that look at ratings from anywhere."""

    ratings: Path = _free(
        positional=True,
        help="A study, a Parquet file, or a folder of them (with subfolders), with the columns "
        "pair_id, source, response (chosen or rejected), rule_id and rating (0 to 1, or null).",
    )


class ReportConfig(RatingsConfig):
    """One page about some ratings."""

    out: Path | None = option(
        None,
        metavar="FOLDER",
        help="Where the report goes. Default: STUDY/reports/RUN_KEY, or `report` in this "
        "directory for ratings that are not of a study.",
    )


class JudgeConfig(StageConfig):
    """Which model judges, and how it is loaded."""

    model: str = option(
        name="judge",
        min_length=1,
        help="Folder with a model (config, tokenizer with chat template, *.safetensors) or a hub "
        "id such as meta-llama/Meta-Llama-3-70B-Instruct. Over HTTP: the server's name for it.",
    )
    backend: Literal["vllm", "transformers", "http"] = option(
        "vllm",
        help="The engine that runs the judge; http: a server that speaks the OpenAI protocol.",
    )
    revision: str | None = option(
        None,
        help="Hub revision of the judge; the commit it resolves to is recorded. Over HTTP: what "
        "tells two models of one name apart; default: the server's host.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", help="Number format of the judge; auto is what its own config says."
    )
    max_model_len: Annotated[int, Field(ge=64)] | None = option(
        None, help="Context length in tokens; default: the judge's own, at most 8192."
    )
    engine_args: dict[str, EngineValue] = option(
        dict,
        name="engine-arg",
        help="Passed to vLLM, e.g. tensor_parallel_size=4 or quantization=fp8; repeatable.",
    )
    base_url: str | None = _http(
        None,
        metavar="URL",
        examples=["http://127.0.0.1:8000/v1", "https://api.openai.com/v1"],
        help="Where the server or its router listens. Texts are sent there.",
    )
    tokenizer: str | None = _http(
        None,
        identity=True,
        since=True,
        metavar="FOLDER_OR_ID",
        help="The judge's own tokenizer, where the server is vLLM: prompts are sent as token ids, "
        "and replies are those of --backend vllm. Default: chat completions.",
    )
    concurrency: int = _http(64, ge=1, le=4096, help="Requests under way at once.")
    request_timeout_seconds: float = _http(
        120, gt=0, help="How long one answer may take (seconds)."
    )
    api_key_env: str = _http(
        "OPENAI_API_KEY",
        min_length=1,
        metavar="NAME",
        help="The environment variable that has the server's key, if it wants one.",
    )

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


class EnginesConfig(StageConfig):
    """How many engines share the shards of a run; another number goes on with the same run."""

    engines: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = _engines(
        1,
        help="Engines that share the shards, each a process with GPUs of its own: local processes, "
        "or on a Prefect server as many runs on its GPU pool. auto: all there are.",
    )
    silence_seconds: float = _engines(
        600, ge=1, help="Replace an engine that finished no request for so long (seconds)."
    )


def _checked_slice(text: str) -> str:
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and int(number) < int(of)):
        raise ValueError("expected I/N with I from 0 to N - 1, e.g. 0/3 for the first of three")
    return text


class SlicedConfig(StageConfig):
    """Which share of a run one call does, where nothing else divides it."""

    slice: Annotated[str, AfterValidator(_checked_slice)] | None = _engines(
        None,
        metavar="I/N",
        help="Only the I-th of N parts of the shards, I from 0: for array jobs without an "
        "orchestrator.",
    )

    @property
    def part(self) -> tuple[int, int] | None:
        """``(I, N)``."""
        if self.slice is None:
            return None
        number, _, of = self.slice.partition("/")
        return int(number), int(of)


def _checked_scale(text: str) -> str:
    labels = [label.strip() for label in text.split(",")]
    if len(labels) < 2 or len(set(labels)) != len(labels) or not all(labels):
        raise ValueError("expected two or more different labels with commas, the lowest first")
    return ",".join(labels)


class RatingConfig(EnginesConfig):
    """One rating run: every response of a study's pairs under every rule of a set."""

    judge: JudgeConfig
    rules: str = option(
        "encore-10",
        examples=["encore-10", "encore-20", "my-rules.toml"],
        help="encore-10, encore-20, or the path of your own rule set (TOML).",
    )
    shard_size: int = option(
        1000, ge=1, le=100_000, help="Pairs per shard: per file, per task, what one crash can cost."
    )
    limit: int | None = option(
        None, ge=1, help="Pilot: rate only this many pairs, a fair sample by content hash."
    )
    overlong: Literal["set-aside", "truncate-left"] = option(
        "set-aside",
        help="A prompt beyond the judge's context: a null row with its reason, or the "
        "conversation's oldest text is cut. Both are counted.",
    )
    layout: PromptLayout = option(
        "paper",
        since=True,
        help="Of the prompt. paper: the rule, then the conversation. conversation-first: the other "
        "way round, so that all rules of a response share most of their prompt, which is then "
        "computed once.",
        source="appendix Prompts",
    )
    decode: Decode = option(
        "text",
        since=True,
        help="text: the judge writes a number. choice: it may write the labels of --scale only. "
        "expected: one token; the most likely label is the rating, the labels' probabilities are "
        "kept beside it.",
    )
    scale: Annotated[str, AfterValidator(_checked_scale)] | None = option(
        None,
        since=True,
        metavar="LABELS",
        examples=["0,1,2,3,4,5,6,7,8,9", "0.0,0.25,0.5,0.75,1.0"],
        help="Of choice and expected: labels with commas, the lowest first. Numbers from 0 to 1 "
        "are ratings as they stand, other labels are evenly spaced. Default: 0.0 to 1.0 in tenths; "
        "of expected, whose labels are single tokens, the digits.",
    )
    min_label_mass: float = option(
        0.5,
        gt=0,
        le=1,
        since=True,
        help="Of expected: if the labels together are less likely than this, the rating is null.",
    )
    max_reply_tokens: int = option(
        16, ge=2, le=MAX_RATING_REPLY_TOKENS, help="A longer reply is cut off and therefore null."
    )
    shard_timeout_seconds: float | None = _free(
        None, ge=0.001, help="Give up on a shard whose generation takes longer (seconds)."
    )

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the scale in use, the lowest first; empty for text."""
        if self.scale is None or self.decode == "text":
            return DEFAULT_SCALES[self.decode]
        return tuple(self.scale.split(","))

    def as_rating(self, **changes: Any) -> RatingConfig:
        """The options of the rating run alone, some of them changed."""
        options = {name: getattr(self, name) for name in RatingConfig.model_fields}
        return RatingConfig.model_validate(options | changes)

    @model_validator(mode="after")
    def _scale_is_used(self) -> Self:
        if self.scale is not None and self.decode == "text":
            raise ValueError("--scale belongs to --decode choice or expected")
        return self


class PricesConfig(StageConfig):
    """What the judge's tokens and its GPUs cost, in any one currency."""

    price_input: float | None = _prices(None, ge=0, help="Money per million prompt tokens.")
    price_output: float | None = _prices(
        None, ge=0, help="Money per million tokens of the replies."
    )
    price_gpu_hour: float | None = _prices(None, ge=0, help="Money per hour of one GPU.")


class BatchConfig(StageConfig):
    """Files in which a provider is asked, and answers."""

    batch_file: Path | None = _http(
        None,
        metavar="FILE",
        help="Write the requests of what is left to rate, for a provider's batch service, and end. "
        "Several files where one may not hold all.",
    )
    batch_results: tuple[Path, ...] = _http(
        (), metavar="FILE", help="Rate with the answers in this file of the provider; repeatable."
    )


class LimitsConfig(PricesConfig):
    """When a rating run ends before its plan does; a run goes on with other limits."""

    until_weights_within: float | None = _limits(
        None,
        gt=0,
        lt=1,
        metavar="SHARE",
        examples=[0.02],
        help="Rate in growing rounds, and stop when every weight of ENCORE lies within this share "
        "of the one that all pairs would give, 95 % confidence.",
    )
    budget: float | None = _limits(
        None,
        gt=0,
        metavar="MONEY",
        help="Stop before a shard that would make the run, with all earlier calls, cost more than "
        "this at the prices given.",
    )
    budget_calls: int | None = _limits(
        None, ge=1, metavar="CALLS", help="The same for the judge's calls."
    )

    @model_validator(mode="after")
    def _has_prices(self) -> Self:
        tokens = (self.price_input, self.price_output)
        is_priced = None not in tokens or (tokens == (None, None) and self.price_gpu_hour)
        if self.budget is not None and not is_priced:
            raise ValueError(
                "--budget needs --price-input and --price-output (0 for what is free), or "
                "--price-gpu-hour"
            )
        return self

    @property
    def limits(self) -> dict[str, float]:
        """Those that are set, by option."""
        names = ("until_weights_within", "budget", "budget_calls")
        given = {f"--{name.replace('_', '-')}": getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


class LimitedRatingConfig(LimitsConfig, RatingConfig):
    """A rating run, and when it ends."""


class RateConfig(SlicedConfig, LimitedRatingConfig, StudyConfig):
    """`encore rate`: a rating run of a study, and how this call works on it."""

    shard: tuple[Annotated[int, Field(ge=0)], ...] = _free(
        (), help="Only this shard; repeat for several."
    )

    @model_validator(mode="after")
    def _goes_by_plan(self) -> Self:
        by_hand = [name for name in ("slice", "shard") if getattr(self, name)]
        if self.limits and by_hand:
            raise ValueError(
                f"{' and '.join(self.limits)} with --{by_hand[0]}: one call must see the whole run "
                f"to end it in time; leave out --{by_hand[0]}, and share the work with --engines"
            )
        return self


class ComputingConfig(StageConfig):
    """How a reward model is opened, and how it computes."""

    layout: Layout = _computing(
        "auto",
        identity=False,
        help="How responses are put side by side; changes speed, and scores by rounding only. "
        "auto: nothing is padded, and a pair's common prompt is computed once where the model "
        "allows it.",
    )
    tokens_per_microbatch: Annotated[int, Field(ge=1)] | None = _computing(
        None,
        identity=False,
        help="Tokens of one forward pass: bounds the memory. Default: by device.",
    )
    max_length: Annotated[int, Field(ge=16)] | None = _computing(
        None,
        help="Tokens of a conversation; the oldest beyond it are cut, and counted. Default: as the "
        "model was trained.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = _computing(
        "auto", help="Number format; auto: bfloat16 on CUDA, float32 on CPU."
    )
    revision: str | None = _computing(None, help="Of the hub id given as --model.")


class ScoringConfig(EnginesConfig, ComputingConfig):
    """One scoring: every response of a study's pairs under every head of a reward model."""

    model: str = option(
        metavar="FOLDER_OR_ID",
        help="A training run or its model folder, an export, or any plain "
        "…ForSequenceClassification with a linear head, as a folder or a hub id.",
    )
    out: Path | None = _free(
        None,
        metavar="DIR",
        help="The scores' folder. Default: STUDY/scores/KEY, a key of model, data and plan.",
    )
    limit: Annotated[int, Field(ge=1)] | None = option(
        None, help="Pilot: score this many pairs, drawn by content hash."
    )
    shard_size: int = option(1000, ge=1, le=100_000, help="Pairs in each file.")


class ScoreConfig(SlicedConfig, ScoringConfig, StudyConfig):
    """`encore score`: a scoring of a study."""


class PublishConfig(RunChoice, StudyConfig):
    """`encore publish`: what of a study is written for others, and where."""

    out: Path | None = option(
        None,
        metavar="FILE",
        help="The database to write. Default: study.duckdb, unless --dataset is given.",
    )
    dataset: Path | None = option(
        None, metavar="FOLDER", help="The data set to write, as the hub lays one out."
    )
    force: bool = option(False, help="Replace what an earlier call wrote there.")
