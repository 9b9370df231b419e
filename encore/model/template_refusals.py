"""Pairs that a model's chat template refuses: set aside, counted, and limited in their share.

Templates of Mistral and Gemma refuse a system turn, and two turns of one role in a row. Such a pair
has no tokens, so it is neither trained on nor scored. It is never rendered another way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from encore.core.errors import InputError
from encore.core.number_text import percent
from encore.data.records import PreferencePair
from encore.model.conversation import ConversationTokenizer

#: Reasons that a note or a file names; templates may put a message's text into theirs.
_MAX_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRefusals:
    """The pairs that a chat template refuses, of all pairs that were tried.

    Attributes:
        reason_P: Reason of each pair that is refused, in the template's words; None for the others.
        example: Id of the first refused pair; empty if there is none.
        noun: What was tried, in the plural: pairs, or single responses.
        num_partly_read: Number of pairs that are rendered without one of their turns.
    """

    reason_P: tuple[str | None, ...]
    example: str = ""
    noun: str = "pairs"
    num_partly_read: int = 0

    @property
    def num_pairs(self) -> int:
        """Return the number of pairs that were tried."""
        return len(self.reason_P)

    @property
    def num_set_aside(self) -> int:
        """Return the number of refused pairs."""
        return sum(reason is not None for reason in self.reason_P)

    @property
    def reasons(self) -> dict[str, int]:
        """Return the most frequent reasons with their counts; the others together."""
        counts = Counter(reason for reason in self.reason_P if reason is not None)
        frequent = dict(counts.most_common(_MAX_REASONS))
        num_others = self.num_set_aside - sum(frequent.values())
        return {**frequent, **({"other reasons": num_others} if num_others else {})}

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences on the pairs that are set aside, and on those that are partly read."""
        return template_notes(
            self.num_set_aside,
            self.num_pairs,
            self.reasons,
            num_partly_read=self.num_partly_read,
            noun=self.noun,
        )

    def check(self, max_share: float, *, model: str) -> None:
        """Raise if the template refuses more than a share of the pairs, or all of them.

        Raises:
            InputError: It names counts, reasons and a pair.
        """
        if not self.num_set_aside:
            return
        share = self.num_set_aside / self.num_pairs
        if share <= max_share and self.num_set_aside < self.num_pairs:
            return
        # The next higher hundredth, so that the same command passes with it.
        enough = min(1.0, (self.num_set_aside * 100 // self.num_pairs + 1) / 100)
        allow = f"; or set them aside with --max-set-aside-share {enough:g}"
        such_as = f", such as {self.example}" if self.example else ""
        raise InputError(
            f"chat template of {model!r}: it refuses {self.num_set_aside:,} of {self.num_pairs:,} "
            f"{self.noun} ({percent(share)}; {_listed(self.reasons)}){such_as}; expected at most "
            f"{percent(max_share)}: use a model with a template that takes them (`encore train "
            f"--chat-template FILE`){allow if self.num_set_aside < self.num_pairs else ''}"
        )


def find_refusals(
    tokenizer: ConversationTokenizer, pairs: Iterable[PreferencePair]
) -> TemplateRefusals:
    """Render every pair and count those that the template refuses; 80,000 pairs take a second."""
    reasons, example, num_partly_read = [], "", 0
    for pair in pairs:
        reasons.append(tokenizer.refusal(pair.prompt, pair.chosen, pair.rejected))
        if reasons[-1] is None:
            num_partly_read += tokenizer.leaves_out(pair.prompt)
        elif not example:
            example = pair.pair_id
    return TemplateRefusals(
        reason_P=tuple(reasons), example=example, num_partly_read=num_partly_read
    )


def template_notes(
    num_set_aside: int,
    num_pairs: int,
    reasons: Mapping[str, int],
    *,
    num_partly_read: int = 0,
    noun: str = "pairs",
) -> tuple[str, ...]:
    """Return a sentence on what is set aside, with the reasons, and one on what is partly read."""
    notes = []
    if num_set_aside:
        because = f" ({_listed(reasons)})" if reasons else ""
        notes.append(
            f"{num_set_aside:,} of {num_pairs:,} {noun} are set aside: the chat template refuses "
            f"them{because}"
        )
    if num_partly_read:
        notes.append(
            f"{num_partly_read:,} of {num_pairs:,} {noun} are read without one of their turns: the "
            "chat template leaves it out; use a template that has a place for it"
        )
    return tuple(notes)


def _listed(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} with {reason!r}" for reason, count in reasons.items())
