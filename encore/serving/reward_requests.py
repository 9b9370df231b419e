"""Read the bodies of requests: JSON in, checked records out, or a refusal of one line.

One body can hold millions of mistakes. A list is checked up to its first mistake, and many unknown
keys of a record are counted, not described.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, FailFast, Field, StrictStr, ValidationError, model_validator
from starlette.exceptions import HTTPException

from encore.core.errors import first_problem
from encore.data.records import Role

#: Largest number of turns of a conversation: a template runs once per turn.
MAX_TURNS = 1000
_SHOWN_CHARACTERS = 80
_MAX_SHOWN_PROBLEMS = 20


class _Record(BaseModel, frozen=True, extra="forbid"):
    """Base of the records that a client sends."""


class RewardRequest(_Record):
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

    texts: Annotated[list[Conversation], FailFast(), Field(min_length=1, alias="conversations")]


#: Queries or conversations.
Texts = Sequence[str | Conversation]


def read_request(body: bytes, kind: type[RewardRequest | ScoreRequest], max_texts: int) -> Texts:
    """Check a body and return its queries or conversations.

    Raises:
        HTTPException: 400 for what is not JSON in UTF-8, 422 for JSON of another shape, 413 for
            more than ``max_texts`` texts.
    """
    try:
        texts: Texts = kind.model_validate_json(body).texts
    except ValidationError as error:
        raise _refusal(error) from None  # pydantic's own text quotes the input
    if len(texts) > max_texts:
        reason = f"{len(texts)} texts in one request, expected at most {max_texts}: send several"
        raise HTTPException(413, reason)
    return texts


def _refusal(error: ValidationError) -> HTTPException:
    if error.error_count() > _MAX_SHOWN_PROBLEMS:
        return HTTPException(422, f"{error.error_count()} keys that are missing or not known")
    problem = first_problem(error)
    path = "body"
    for part in problem.location:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN_CHARACTERS]}"
    status = 400 if problem.kind == "json_invalid" else 422
    return HTTPException(status, f"{path.removeprefix('body.')}: {problem.message}")
