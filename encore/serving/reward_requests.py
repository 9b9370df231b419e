"""Bodies of requests: JSON in, checked records out, or a refusal with its reason in one line.

Millions of mistakes fit into one body. A list is checked up to its first mistake, and many unknown
keys of a record are counted instead of described.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, FailFast, Field, StrictStr, ValidationError, model_validator
from starlette.exceptions import HTTPException

from encore.core.errors import first_problem
from encore.data.records import Role

#: Far beyond any dialogue; a template is a program that runs once per turn.
MAX_TURNS = 1000
_SHOWN_CHARACTERS = 80
_MAX_SHOWN_PROBLEMS = 20


class _Record(BaseModel, frozen=True, extra="forbid"):
    """What comes from a client."""


class RewardRequest(_Record):
    """A request of OpenRLHF's remote reward model.

    Attributes:
        texts: As the policy's tokenizer decodes them, special tokens included: prompt and
            response in one.
        prompts: What newer clients send beside them; not read, a query has it all.
        labels: The same.
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
    """The queries or conversations in a body.

    Raises:
        HTTPException: 400 for what is not JSON in UTF-8, 422 for JSON of another shape, 413 for
            more than ``max_texts`` texts.
    """
    try:
        texts: Texts = kind.model_validate_json(body).texts
    except ValidationError as error:
        raise _refusal(error) from None  # its text quotes the input
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
