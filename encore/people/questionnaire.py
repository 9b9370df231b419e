"""Questionnaire for annotators: items of texts and questions about them, for every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from encore.data.records import SampleKind
from encore.runs.identity import run_key_of

SIDES = ("first", "second")
#: Names of the questions of all kinds of samples.
QUESTION_NAMES = ("label", "clarity", "reliability")
#: Answer to a question that the texts do not allow to decide. It is imported as null.
CANNOT_SAY = "cannot say"
#: Name under which files have an annotator's comment on an item.
COMMENT = "comment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question that is asked about every item.

    Attributes:
        name: Column of the answers, one of `QUESTION_NAMES`.
        text: Wording that annotators read.
        choices: For each choice its value in files and its text for people.
    """

    name: str
    text: str
    choices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Box of an item that holds texts, e.g. one rule or the conversation.

    Attributes:
        name: Column of the card in tables and tasks.
        title: Heading of the card.
        parts: For each text its heading and the text; one of both may be empty.
    """

    name: str
    title: str
    parts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """Return the card as plain text; a single text without a heading stands alone."""
        if len(self.parts) == 1 and not self.parts[0][0]:
            return self.parts[0][1]
        parts = (f"{name}: {text}" if text else f"{name}:" for name, text in self.parts)
        return "\n\n".join([self.title, *parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Unit of a sample that the questions are about, e.g. one response under one rule."""

    item_id: str
    cards: tuple[Card, ...]

    @property
    def texts(self) -> dict[str, str]:
        """Return the plain text of each card by column."""
        return {card.name: card.text for card in self.cards}


@dataclass(frozen=True, slots=True, kw_only=True)
class Questionnaire:
    """Sample as annotators see it.

    It is blind: no rating (but scores of a rule's examples), no entropy and no preference.
    """

    kind: SampleKind
    questions: tuple[Question, ...]
    items: tuple[Item, ...]

    def key(self, *, seed: int) -> str:
        """Return the key of the sample: a digest of every text and of the seed.

        It begins with the kind, because spreadsheets read a digest such as ``1e5`` as a number.
        """
        return f"{self.kind}-{run_key_of({'seed': seed, **asdict(self)})}"


def questions_of(kind: SampleKind, scale: Sequence[str]) -> tuple[Question, ...]:
    """Return the questions about each item of a sample.

    The two about rules are the paper's (appendix "Human Preference Validation of Rule
    Reliability").

    Args:
        kind: Kind of the sample: responses or rules.
        scale: Labels of a response, the lowest first; not used for rules.
    """
    if kind == "rules":
        sides = tuple((side, f"the {side} rule") for side in SIDES)
        text_by_name = {
            "clarity": "Clarity: which rule is easier to interpret and to apply consistently "
            "across different examples?",
            "reliability": "Perceived reliability: which rule would you trust more to distinguish "
            "safe responses from unsafe ones in general?",
        }
        return tuple(
            Question(name=name, text=text, choices=sides) for name, text in text_by_name.items()
        )
    meanings = {scale[0]: " – not at all", scale[-1]: " – fully"}
    choices = tuple((label, label + meanings.get(label, "")) for label in scale)
    text = "How far does the response follow the rule? Look at this rule alone."
    return (Question(name="label", text=text, choices=choices),)
