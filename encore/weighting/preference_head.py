"""Name the preference head of a model, head 0, and the rule heads after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

#: Id of head 0, which is trained on people's preferences. The rules' heads come after it.
PREFERENCE_HEAD = "preference"
#: Factor of the rules beside head 0, or ``auto``: chosen on the labels of held-out pairs.
Beta = Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["auto"]


def has_preference_head(head_ids: Sequence[str]) -> bool:
    """Return True if the model's first head is the preference head and rules' heads follow."""
    return len(head_ids) > 1 and head_ids[0] == PREFERENCE_HEAD


def rule_heads(head_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the rules' heads: all but head 0, if the model has one."""
    return tuple(head_ids[has_preference_head(head_ids) :])
