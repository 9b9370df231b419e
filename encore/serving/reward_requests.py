"""Bodies of requests: JSON in, checked records out, or a refusal with its reason in one line.

Millions of mistakes fit into one body. A list is checked up to its first mistake, and a record with
many unknown keys is refused before each key is described.
"""

from __future__ import annotations

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

from encore.data.records import Role

#: Far beyond any dialogue; a template is a program that runs once per turn.
MAX_TURNS: Final = 1000
_SHOWN_CHARACTERS = 80
#: That are named one by one.
_MAX_UNKNOWN_KEYS = 8


class Refusal(Exception):
    """Why a request is refused; the client gets ``{"error": reason}``.

    Args:
        status: Of HTTP.
        reason: One line, without paths of the server and without a stack trace.
        headers: ``retry-after``, or ``connection: close`` where the body is not read to its end.
    """

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class _Record(BaseModel):
    """What comes from a client."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_unknown_keys(cls, given: Any) -> Any:
        """Pydantic's error has a record for every key that is not a field."""
        fields = cls.model_fields
        if isinstance(given, dict) and len(given) > len(fields) + _MAX_UNKNOWN_KEYS:
            reason = "{num_keys} keys, expected only {fields}"
            shown = {"num_keys": len(given), "fields": ", ".join(fields)}
            raise PydanticCustomError("too_many_keys", reason, shown)
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


class ScoreRequest(_Record):
    """Conversations to score rule by rule."""

    conversations: Annotated[list[Conversation], FailFast(), Field(min_length=1)]


AnyRequest = TypeVar("AnyRequest", RewardRequest, ScoreRequest)


def read_request(body: bytes, kind: type[AnyRequest], *, max_texts: int) -> AnyRequest:
    """The request in a body.

    Raises:
        Refusal: 400 for what is not UTF-8 or not JSON, 422 for JSON of another shape, 413 for
            more than ``max_texts`` texts.
    """
    try:
        given = from_json(body.decode("utf-8"), allow_inf_nan=False, cache_strings="keys")
    except UnicodeDecodeError as error:
        reason = f"body: byte {error.start} is not UTF-8 ({error.reason}); expected JSON in UTF-8"
        raise Refusal(400, reason) from None
    except ValueError as error:
        raise Refusal(400, f"body: not JSON: {error}") from None
    for name in kind.model_fields if isinstance(given, dict) else ():
        values = given.get(name)  # counted before anything is made of the items
        if isinstance(values, list) and len(values) > max_texts:
            raise Refusal(
                413,
                f"{name}: {len(values)} texts in one request, expected at most {max_texts}: send "
                "several requests",
            )
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise Refusal(422, _first_problem(error)) from None  # its text quotes the input


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = "body"
    for part in problem["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN_CHARACTERS]}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{path.removeprefix('body.')}: {problem['msg']}{more}"
