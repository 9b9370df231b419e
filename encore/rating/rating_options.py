"""Options of a rating run: what is asked of the judge, and how the run is worked through."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from encore.analysis.answer_options import DEFAULT_TAU
from encore.core.config import StageConfig, keyed_defaults, option, part_of
from encore.core.errors import InputError
from encore.judges.judge_options import Decode, JudgeConfig
from encore.judges.server_options import ServerOptions, http_option
from encore.runs.run_options import RunOptions
from encore.weighting.scheme_options import tau_option

_limits = partial(option, group="Limits")
_prices = partial(option, group="Prices")

#: Largest options for the tokens of a reply: of a rating alone, and with thinking before it.
MAX_RATING_REPLY_TOKENS, MAX_THINKING_REPLY_TOKENS = 512, 32_768

_MAX_ENGINES = 1024
#: The form shows the limits; `_checked_engines` says them in one sentence.
_NumEngines = Annotated[
    int, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": _MAX_ENGINES})
]

PromptLayout = Literal["paper", "conversation-first", "demand-first", "all-rules"]


#: Labels of the default scale by decode, lowest first. The paper's judge answers in tenths; a digit
#: is one token of most tokenizers.
DEFAULT_SCALES: dict[str, tuple[str, ...]] = {
    "text": (),
    "choice": tuple(f"{tenth / 10:.1f}" for tenth in range(11)),
    "expected": tuple("0123456789"),
}
#: Answer of a judge for a rule that does not apply, by decode. For ``expected`` it is one token, as
#: a letter is for most tokenizers, and the one with which the answer N/A begins.
NOT_APPLICABLE: dict[str, str] = {"text": "n/a", "choice": "n/a", "expected": "N"}


#: Labels of a decision model's answers without a scale: false and true.
PREDICATE_LABELS = ("0", "1")
#: Largest number of levels of a question to a decision model.
_MAX_LEVELS = 10


def labels_of(decode: Decode, scale: str | None) -> tuple[str, ...]:
    """Return the labels of a scale, lowest first; empty for decode ``text``."""
    if scale is None or decode == "text":
        return DEFAULT_SCALES[decode]
    return tuple(scale.split(","))


def labels_in_prompt(decode: Decode, scale: str | None) -> tuple[str, ...]:
    """Return the labels that a prompt names, lowest first; empty if the paper's words hold.

    They hold for any number from 0 to 1 and, with decode ``choice``, for its default tenths.
    """
    labels = labels_of(decode, scale)
    return () if decode == "choice" and labels == DEFAULT_SCALES[decode] else labels


def rating_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a run's key with their defaults (`RunManifest.settings` has none)."""
    return keyed_defaults(RatingConfig) | dict(settings)


def _checked_scale(text: str) -> str:
    labels = [label.strip() for label in text.split(",")]
    if len(labels) < 2 or len(set(labels)) != len(labels) or not all(labels):
        raise ValueError("expected two or more different labels with commas, the lowest first")
    return ",".join(labels)


def _checked_marks(text: str) -> str:
    first, comma, second = text.partition(",")
    if not first or "," in second or (comma and not second):
        raise ValueError("expected the name of a mark, or two marks with a comma between them")
    return text


class RatingConfig(StageConfig):
    """Question of a rating run: every response of a study under every rule of a set."""

    REPLACED_IN_KEYS = frozenset({"judge", "rules", "limit", "shard_size"})

    judge: JudgeConfig
    rules: str = option("encore-10", examples=["encore-10", "encore-20", "my-rules.toml"])
    """encore-10, encore-20, or the path of your own rule set (TOML)."""
    shard_size: Annotated[int, Field(ge=1, le=100_000)] | None = option(None, beside_recipe=True)
    """Pairs per shard. A shard is one file, which is written when all its replies are there.
    Default: as many as make 20,000 calls of the judge, or 2,000 if it runs here without a GPU. A
    run that was begun keeps its own."""
    limit: int | None = option(None, ge=1, beside_recipe=True)
    """Pilot: rate only this many pairs, a fair sample by content hash."""
    overlong: Literal["set-aside", "truncate-left"] = option("set-aside")
    """What happens to a prompt that is longer than the judge's context. set-aside: its rating is
    null, with the reason. truncate-left: the conversation's oldest text is cut. Both are counted.
    """
    layout: PromptLayout = option("paper", source="appendix Prompts")
    """Layout of the prompt. paper: the rule, then the conversation. conversation-first: the other
    way round, so that all rules of a response share most of their prompt, which is then computed
    once. demand-first: the same, with the demand for a score before the rule too. all-rules: one
    call for all rules of a response, which then influence each other; see --check."""
    order_seed: int = option(0, ge=0)
    """Seed of the order in which --layout all-rules lists the rules. It is drawn for each response.
    """
    decode: Decode = option("text")
    """text: the judge writes a number. choice: it may write the labels of --scale only. expected:
    one token; the most likely label is the rating, the labels' probabilities are kept beside it."""
    scale: Annotated[str, AfterValidator(_checked_scale)] | None = option(
        None, metavar="LABELS", examples=["0,1,2,3,4,5,6,7,8,9", "0.0,0.25,0.5,0.75,1.0"]
    )
    """Labels for --decode choice and expected, with commas, the lowest first. Numbers from 0 to 1
    are ratings as they stand; other labels are evenly spaced. Default for choice: 0.0 to 1.0 in
    tenths. Default for expected, whose labels are single tokens: the digits. With --api: the levels
    of each question, at most 10; default: each is true (1) or false (0)."""
    min_label_mass: float = option(0.5, gt=0, le=1)
    """For --decode expected: if the labels together are less likely than this, the rating is null.
    """
    max_reply_tokens: int = option(16, ge=2, le=MAX_THINKING_REPLY_TOKENS)
    """A longer reply is cut off and therefore null. A judge that thinks first needs thousands.
    --layout all-rules adds 16 for each further rule."""
    strip_thinking: Annotated[str, AfterValidator(_checked_marks)] | None = option(
        None, metavar="MARK", examples=["think", "[THINK],[/THINK]"]
    )
    """Leave out what a judge thinks before its rating: think removes what stands between
    `<think>` and `</think>`, also where only `</think>` is in the reply. Two marks of another form
    are separated by a comma."""
    think_tokens: Annotated[int, Field(ge=1, le=MAX_THINKING_REPLY_TOKENS)] | None = option(None)
    """Have a judge that thinks answer in two steps: it thinks until its closing mark (that of
    --strip-thinking, else `</think>`) or for so many tokens, and then answers as --decode says."""

    ask_applies: bool = option(False)
    """Let the judge answer n/a where a rule does not apply to a response. Such a rating is null,
    with the reason does_not_apply, and no failure. --decode expected has the label N for it."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the scale in use, lowest first; empty for decode ``text``."""
        if self.question_kind == "predicate":
            return PREDICATE_LABELS
        return labels_of(self.decode, self.scale)

    @property
    def question_kind(self) -> Literal["predicate", "score"] | None:
        """Return the kind of the questions to a decision model; None for another judge."""
        if getattr(self.judge, "api", None) is None:  # labels may have ratings without a judge
            return None
        return "predicate" if self.scale is None else "score"

    @property
    def answer_labels(self) -> tuple[str, ...]:
        """Return `labels`, and last the answer for a rule that does not apply, if there is one."""
        more = (self.not_applicable,) if self.not_applicable and self.labels else ()
        return self.labels + more

    @property
    def labels_in_prompt(self) -> tuple[str, ...]:
        """Return the labels that a prompt names, lowest first; empty if its own words hold."""
        is_predicate = self.question_kind == "predicate"
        return () if is_predicate else labels_in_prompt(self.decode, self.scale)

    @property
    def thinking_marks(self) -> tuple[str, str] | None:
        """Return the marks around the judge's thinking, e.g. ``<think>`` and ``</think>``.

        None if its thinking is not looked for.
        """
        if self.strip_thinking is None and self.think_tokens is None:
            return None
        name = self.strip_thinking or "think"
        first, comma, second = name.partition(",")
        return (first, second) if comma else (f"<{name}>", f"</{name}>")

    @property
    def not_applicable(self) -> str | None:
        """Return the answer for a rule that does not apply; None if the judge has none."""
        return NOT_APPLICABLE[self.decode] if self.ask_applies else None

    @model_validator(mode="after")
    def _scale_is_used(self) -> Self:
        if self.scale is not None and self.decode == "text":
            raise ValueError("--scale belongs to --decode choice or expected")
        is_one_step = self.think_tokens is None
        if self.strip_thinking is not None and self.decode != "text" and is_one_step:
            raise ValueError(
                f"--strip-thinking with --decode {self.decode} leaves the judge no room to think: "
                "give --think-tokens, e.g. 1000, for the thinking before the answer"
            )
        return self

    @model_validator(mode="after")
    def _has_an_answer_after_its_thinking(self) -> Self:
        if self.think_tokens is None:
            return self
        if self.question_kind is not None:
            raise ValueError(
                f"--think-tokens with --api {self.judge.api}: a decision model writes nothing; "
                "leave it out"
            )
        is_http = getattr(self.judge, "backend", None) == "http"
        if is_http and self.judge.tokenizer is None and self.decode == "expected":
            raise ValueError(
                "--think-tokens with --decode expected needs a judge whose tokens are known here: "
                "give --tokenizer, if the server is vLLM, or --decode choice"
            )
        return self

    @model_validator(mode="after")
    def _scale_has_no_answer_for_rules_that_do_not_apply(self) -> Self:
        if self.not_applicable in self.labels:
            raise ValueError(
                f"--scale has the label {self.not_applicable}, which is the answer of "
                "--ask-applies for a rule that does not apply: take another label"
            )
        return self

    @model_validator(mode="after")
    def _has_one_answer_a_prompt(self) -> Self:
        if self.layout == "all-rules" and self.decode == "expected" and not self.question_kind:
            raise ValueError(
                "--layout all-rules has several scores in a reply, and --decode expected reads one "
                "token: give --decode text or choice"
            )
        if self.layout != "all-rules" and self.order_seed:
            raise ValueError("--order-seed belongs to --layout all-rules")
        return self

    @model_validator(mode="after")
    def _asks_a_decision_model(self) -> Self:
        if self.question_kind is None:
            return self
        if self.decode != "expected" or self.layout not in ("paper", "all-rules"):
            raise ValueError(
                f"--api {self.judge.api} asks questions, whose answers have probabilities: give "
                "--decode expected with --layout all-rules (all rules of a response in one "
                "request) or paper (one)"
            )
        if self.ask_applies:
            raise ValueError(
                f"--ask-applies: a question of --api {self.judge.api} has no answer for a rule "
                "that does not apply; leave it out"
            )
        if len(self.labels) > _MAX_LEVELS:
            raise ValueError(
                f"--scale has {len(self.labels)} labels: a question to a decision model has at "
                f"most {_MAX_LEVELS} levels"
            )
        return self


def _checked_engines(engines: int | Literal["auto"]) -> int | Literal["auto"]:
    if engines != "auto" and not 1 <= engines <= _MAX_ENGINES:
        raise ValueError(f"expected a whole number from 1 to {_MAX_ENGINES}, or auto")
    return engines


class ReplyOptions(ServerOptions):
    """A judge's server, and waiting for its replies: options of a call, in no run's key."""

    shard_timeout_seconds: float | None = option(None, ge=0.001, beside_recipe=True)
    """Give up on a shard whose generation takes longer (seconds)."""
    allow_nulls: bool = option(False, beside_recipe=True)
    """Go on although more than half of the replies, after the first 50, hold no rating."""


class EngineOptions(ReplyOptions):
    """Number of engines that share the prompts. Any number continues the same run."""

    engines: Annotated[_NumEngines | Literal["auto"], AfterValidator(_checked_engines)] = option(
        1, group="Engines", beside_recipe=True
    )
    """Number of engines that share the prompts. One is in this process. More are vLLM servers, each
    with its own GPUs, that this process starts and ends; on a Prefect server they are runs on the
    GPU pool. auto: as many as the local GPUs allow, or one for each online worker of the pool."""

    def check_backend(self, backend: str) -> None:
        """Refuse several engines for a judge that starts none.

        Raises:
            InputError: The backend's judge is no vLLM server.
        """
        if self.engines != 1 and backend != "vllm":
            advice = {
                "http": "give the addresses of several servers to --base-url, with commas",
                "transformers": "share the run by --slice",
            }[backend]
            raise InputError(
                f"--engines {self.engines}: engines are vLLM servers, and --backend "
                f"{backend} starts none; {advice}, or leave --engines out"
            )


class PricesConfig(StageConfig):
    """Prices of the judge's tokens and GPUs, all in one currency."""

    price_input: float | None = _prices(None, ge=0)
    """Money per million prompt tokens."""
    price_output: float | None = _prices(None, ge=0)
    """Money per million tokens of the replies."""
    price_gpu_hour: float | None = _prices(None, ge=0)
    """Money per hour of one GPU."""


class BatchConfig(StageConfig):
    """Options for a provider's batch service: files of requests and of answers."""

    batch_file: Path | None = http_option(None, metavar="FILE")
    """Write the requests that are still open, for a provider's batch service, and end. Several
    files if one cannot hold all requests."""
    batch_results: tuple[Path, ...] = http_option((), metavar="FILE")
    """Rate with the answers in this file of the provider; repeatable."""


class CheckConfig(StageConfig):
    """Option for a second run that asks for one rule a call."""

    check: int | None = option(None, ge=2, metavar="RESPONSES")
    """For --layout all-rules: then ask for one rule a call, in the paper's layout, for so many
    responses, as a run beside this one. `encore analyze` compares the two."""

    def second_run(self, config: RatingConfig) -> RatingConfig | None:
        """Return the options of the run that asks for one rule a call; None without the check.

        Args:
            config: Options of the run that asks for all rules at once.
        """
        if self.check is None:
            return None
        # The plan's first pairs are a fair sample.
        num_pairs = min((self.check + 1) // 2, config.limit or sys.maxsize)
        return part_of(config, RatingConfig, layout="paper", order_seed=0, limit=num_pairs)


class LimitOptions(PricesConfig):
    """Limits at which a rating run stops early. The same run can go on with other limits."""

    until_weights_within: float | None = _limits(None, gt=0, lt=1, metavar="SHARE", examples=[0.02])
    """Rate in growing rounds, and stop when every weight of ENCORE lies within this share of the
    one that all pairs would give, 95 % confidence."""
    budget: float | None = _limits(None, gt=0, metavar="MONEY")
    """Stop before a request of a server that is paid by the token, else before a shard, that would
    make the run, with all earlier calls, cost more than this at the prices given."""
    budget_calls: int | None = _limits(None, ge=1, metavar="CALLS")
    """Stop before a shard that would make the run take more calls of the judge than this."""

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
        """Return the limits that are set, by option name."""
        names = ("until_weights_within", "budget", "budget_calls")
        limits = {f"--{name.replace('_', '-')}": getattr(self, name) for name in names}
        return {option: limit for option, limit in limits.items() if limit is not None}


class RatingRunOptions(EngineOptions, LimitOptions, RunOptions):
    """Work of one call on a rating run: engines, shards, limits and waiting."""

    tau: float = tau_option(
        DEFAULT_TAU,
        group="Limits",
        help="Temperature of the weights that --until-weights-within is about. A smaller one needs "
        "more pairs.",
    )
    retry_failed_prompts: bool = option(False)
    """Ask again for the ratings that are null because the service refused the prompt or failed
    (content_filter, refused, server_error, unreadable_answer), and for nothing else. A shard with
    such nulls is replaced when they were asked."""

    @model_validator(mode="after")
    def _goes_by_plan(self) -> Self:
        if self.retry_failed_prompts and (self.limits or self.engines != 1):
            raise ValueError(
                "--retry-failed-prompts asks only the prompts that failed, in this process: leave "
                f"out {' and '.join(self.limits) or '--engines'}"
            )
        by_hand = [name for name in ("slice", "shard") if getattr(self, name)]
        if self.limits and by_hand:
            raise ValueError(
                f"{' and '.join(self.limits)} with --{by_hand[0]}: one call must see the whole run "
                f"to end it in time; leave out --{by_hand[0]}, and share the work with --engines"
            )
        return self


class PlanRateConfig(PricesConfig, RatingConfig):
    """Subject of `encore plan rate`: a rating run, its prices and its hardware."""

    pairs: int | None = option(None, ge=1)
    """Plan for this many pairs, of the study's mean length. Default: the study's pairs."""
    count: int = option(1, ge=1)
    """Number of GPUs that will rate; without GPUs, of machines like this one."""
    calibrate: int | None = option(None, ge=1, metavar="PAIRS")
    """Measure hours and replies: rate this many pairs here, as `encore rate --limit` does. The
    ratings are kept, and a larger run does not ask for them again."""
