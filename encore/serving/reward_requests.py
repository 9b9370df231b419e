"""Read the bodies of requests: JSON in, checked records out, or a refusal of one line.

One body can hold millions of mistakes. A list is checked up to its first mistake, and many unknown
keys of a record are counted, not described.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, FailFast, Field, StrictStr, ValidationError, model_validator
from starlette.exceptions import HTTPException

from encore.core.errors import first_problem
from encore.data.records import Role

#: Largest number of turns of a conversation: a template runs once per turn.
MAX_TURNS = 1000
_SHOWN_CHARACTERS = 80
_MAX_SHOWN_PROBLEMS = 20


class RequestError(HTTPException):
    """A refused request or text. ``kind`` says in one word why; errors are counted by it."""

    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(status, reason)
        self.kind = kind


class Record(BaseModel, frozen=True, extra="forbid"):
    """Base of the records that a client sends.

    Attributes:
        is_text_refused_alone: True if the answer has a place for the error of one text.
    """

    is_text_refused_alone: ClassVar[bool] = False


class Turn(Record):
    """One message of a conversation."""

    role: Role
    content: StrictStr


class Conversation(Record):
    """A prompt of one or more turns, and the response to score."""

    messages: Annotated[list[Turn], FailFast(), Field(min_length=1, max_length=MAX_TURNS)]
    response: StrictStr


class GeneratedConversation(Conversation):
    """A conversation whose response may end in the tokens that ended its generation."""


class RewardRequest(Record):
    """A request of OpenRLHF's remote reward model.

    Attributes:
        texts: Prompt and response in one text, as the policy's tokenizer decodes them, including
            special tokens.
        prompts: Prompts that newer clients send too; not read, because a query includes its prompt.
        labels: Labels that newer clients send too; not read.
    """

    texts: Annotated[list[StrictStr], FailFast(), Field(min_length=1, alias="query")]
    prompts: list[Any] | None = None
    labels: list[Any] | None = None

    @model_validator(mode="after")
    def _one_of_each_a_query(self) -> Self:
        for name, values in (("prompts", self.prompts), ("labels", self.labels)):
            if values is not None and len(values) != len(self.texts):
                raise ValueError(f"{len(values)} {name} for {len(self.texts)} queries")
        return self


class ScoreRequest(Record):
    """Conversations to score rule by rule."""

    is_text_refused_alone: ClassVar[bool] = True
    texts: Annotated[list[Conversation], FailFast(), Field(min_length=1, alias="conversations")]


class GuardRequest(ScoreRequest):
    """Conversations to call safe or unsafe.

    Attributes:
        threshold: Lowest reward that is safe; None: that of the server.
    """

    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None


#: Queries or conversations.
Texts = Sequence[str | Conversation]
AnyRequest = TypeVar("AnyRequest", bound=BaseModel)


def read_request(body: bytes, kind: type[AnyRequest], max_texts: int) -> AnyRequest:
    """Check a body and return its record.

    Raises:
        RequestError: 400 for what is not JSON in UTF-8, 422 for JSON of another shape, 413 for
            more than ``max_texts`` texts.
    """
    try:
        record = kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None  # pydantic's own text quotes the input
    num_texts = len(getattr(record, "texts", ()))
    if num_texts > max_texts:
        reason = f"{num_texts} texts in one request, expected at most {max_texts}: send several"
        raise RequestError(413, "too_large", reason)
    return record


def refuse_infinite_numbers(value: Any, *, name: str = "") -> None:
    """Raise an error if a number in a JSON value is not finite: JSON cannot hold it in an answer.

    Args:
        value: A JSON value.
        name: Path of the value in the request's body.

    Raises:
        ValueError: It names the first such number.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_infinite_numbers(item, name=f"{name}.{key[:_SHOWN_CHARACTERS]}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            refuse_infinite_numbers(item, name=f"{name}[{index}]")
    elif isinstance(value, int | float):
        try:
            is_finite = math.isfinite(value)
        except OverflowError:  # an integer beyond all floating-point numbers
            is_finite = False
        if not is_finite:
            raise ValueError(
                f"{name}: a number that is infinite or no number; expected a finite one"
            )


def _refusal(error: ValidationError) -> RequestError:
    if error.error_count() > _MAX_SHOWN_PROBLEMS:
        reason = f"{error.error_count()} keys that are missing or not known"
        return RequestError(422, "malformed", reason)
    problem = first_problem(error)
    path = "body"
    for part in problem.location:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN_CHARACTERS]}"
    status = 400 if problem.kind == "json_invalid" else 422
    return RequestError(status, "malformed", f"{path.removeprefix('body.')}: {problem.message}")
