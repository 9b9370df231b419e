"""Bodies of requests: JSON in, checked records out, one line of reason where it is neither.

Millions of mistakes fit into one body. Lists are looked at up to the first one, and records with
many unknown keys are refused before each of those is described.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

from encore.records import Message, Role
from encore.serving.refusal import Refusal

#: Far beyond any dialogue; a template is a program that runs once per turn.
MAX_TURNS: Final = 1000
_SHOWN_CHARACTERS = 80
#: That are named one by one.
_MAX_UNKNOWN_KEYS = 8


class _Record(BaseModel):
    """What comes from a client."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_unknown_keys(cls, given: Any) -> Any:
        """Every key that is not a field costs a record of its own in pydantic's error."""
        fields = cls.model_fields
        if isinstance(given, dict) and len(given) > len(fields) + _MAX_UNKNOWN_KEYS:
            raise PydanticCustomError(
                "too_many_keys",
                "{num_keys} keys, expected only {fields}",
                {"num_keys": len(given), "fields": ", ".join(fields)},
            )
        return given


class RewardRequest(_Record):
    """A request of OpenRLHF's remote reward model.

    Attributes:
        query: Texts as the policy's tokenizer decodes them, special tokens included: prompt and
            response in one.
        prompts: What newer clients send beside them; not read, a query has it all.
        labels: The same.
    """

    query: Annotated[list[StrictStr], FailFast(), Field(min_length=1)]
    prompts: list[Any] | None = None
    labels: list[Any] | None = None

    @model_validator(mode="after")
    def _one_of_each_a_query(self) -> RewardRequest:
        for name, values in (("prompts", self.prompts), ("labels", self.labels)):
            if values is not None and len(values) != len(self.query):
                raise ValueError(
                    f"{len(values)} {name} for {len(self.query)} queries, expected one each"
                )
        return self


class Turn(_Record):
    """One message of a conversation."""

    role: Role
    content: StrictStr


class Conversation(_Record):
    """A prompt of one or more turns, and the response to score."""

    messages: Annotated[list[Turn], FailFast(), Field(min_length=1, max_length=MAX_TURNS)]
    response: StrictStr

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The turns as the library's own records."""
        return tuple(Message(role=turn.role, content=turn.content) for turn in self.messages)


class ScoreRequest(_Record):
    """Conversations to score rule by rule."""

    conversations: Annotated[list[Conversation], FailFast(), Field(min_length=1)]


#: One of the two, the same throughout a signature.
AnyRequest = TypeVar("AnyRequest", RewardRequest, ScoreRequest)


def read_request(body: bytes, kind: type[AnyRequest], *, max_texts: int) -> AnyRequest:
    """The request that a body holds.

    Raises:
        Refusal: 400 for what is not UTF-8 or not JSON, 422 for JSON of another shape, 413 for
            more than ``max_texts`` texts.
    """
    given = _json(body)
    _check_lengths(given, kind, max_texts=max_texts)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise Refusal(422, _first_problem(error)) from None  # its text quotes the input


def _check_lengths(given: Any, kind: type[BaseModel], *, max_texts: int) -> None:
    """Refuse long lists before anything is made of their items."""
    if not isinstance(given, dict):
        return
    for name in kind.model_fields:
        values = given.get(name)
        if isinstance(values, list) and len(values) > max_texts:
            raise Refusal(
                413,
                f"{name}: {len(values)} texts in one request, expected at most {max_texts}: send "
                "several requests",
            )


def _json(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(
            400, f"body: byte {error.start} is not UTF-8 ({error.reason}); expected JSON in UTF-8"
        ) from None
    try:
        return from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Refusal(400, f"body: not JSON: {error}") from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = _path(problem["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {problem['msg']}{more}"


def _path(location: Sequence[int | str]) -> str:
    path = "body"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN_CHARACTERS]}"
    return path.removeprefix("body.")
