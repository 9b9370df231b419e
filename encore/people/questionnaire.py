"""What annotators see: items of texts and the questions about them, the same in every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from encore.data.records import SampleKind
from encore.runs.run_files import run_key_of

SIDES = ("first", "second")
#: Of all kinds.
QUESTION_NAMES = ("label", "clarity", "reliability")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about every item; ``name`` is its column.

    A choice is its value in files and its text for people.
    """

    name: str
    text: str
    choices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Some texts of an item that belong together, each under a heading; ``name`` is its column."""

    name: str
    title: str
    parts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """All of it as plain text; a single text without a heading stands alone."""
        if len(self.parts) == 1 and not self.parts[0][0]:
            return self.parts[0][1]
        return "\n\n".join([self.title, *(f"{name}: {text}" for name, text in self.parts)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What is asked about at once."""

    item_id: str
    cards: tuple[Card, ...]

    @property
    def texts(self) -> dict[str, str]:
        """Plain text by column."""
        return {card.name: card.text for card in self.cards}


@dataclass(frozen=True, slots=True, kw_only=True)
class Questionnaire:
    """A sample as annotators see it. Nothing in it tells a rating, an entropy or a preference."""

    kind: SampleKind
    questions: tuple[Question, ...]
    items: tuple[Item, ...]

    def key(self, *, seed: int) -> str:
        """What tells samples apart: a digest of every text and of the seed.

        It begins with a word: a spreadsheet would take ``1e5`` for a number.
        """
        return f"{self.kind}-{run_key_of({'seed': seed, **asdict(self)})}"


def questions_of(kind: SampleKind, scale: Sequence[str]) -> tuple[Question, ...]:
    """The questions about each item of a sample.

    Those about rules are the paper's (appendix "Human Preference Validation of Rule Reliability").

    Args:
        kind: Of the sample.
        scale: Labels for responses, the lowest first.
    """
    if kind == "rules":
        sides = tuple((side, f"the {side} rule") for side in SIDES)
        asked = {
            "clarity": "Clarity: which rule is easier to interpret and to apply consistently "
            "across different examples?",
            "reliability": "Perceived reliability: which rule would you trust more to distinguish "
            "safe responses from unsafe ones in general?",
        }
        return tuple(Question(name=name, text=text, choices=sides) for name, text in asked.items())
    meanings = {scale[0]: " – not at all", scale[-1]: " – fully"}
    choices = tuple((one, one + meanings.get(one, "")) for one in scale)
    text = "How far does the response follow the rule? Look at this rule alone."
    return (Question(name="label", text=text, choices=choices),)
