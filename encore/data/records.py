"""Records that travel between stages: messages, preference pairs, rules."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from encore.core.shown_record import ShownRecord

Role = Literal["system", "user", "assistant"]
Response = Literal["chosen", "rejected"]
RESPONSES: tuple[Response, Response] = ("chosen", "rejected")
#: Content of a sample for annotators: responses under a rule, or pairs of rules.
SampleKind = Literal["responses", "rules"]

_LENGTH_BYTES = 8
#: Hex digits of the hash in the id of a title without letters and digits.
_ID_DIGITS = 8
_LATIN_ACCENTS = re.compile("(?<=[a-z])[\u0300-\u036f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """A prompt with the response that people preferred and the one that they rejected.

    Attributes:
        pair_id: Hash of the content, 32 hex digits (`pair_id_of`).
        source: Label of the data set, e.g. ``hh``.
        prompt: Every turn before the rated response; the last is the user's.
        chosen: Text of the preferred response.
        rejected: Text of the other response.
    """

    pair_id: str
    source: str
    prompt: tuple[Message, ...]
    chosen: str
    rejected: str

    def response_text(self, response: Response) -> str:
        """Return the text of one of the two responses."""
        return self.chosen if response == "chosen" else self.rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A safety rule in the paper's four texts (appendix "Safety Rules"), and one for decisions.

    Attributes:
        rule_id: Id of the rule.
        title: Short name.
        description: What the rule demands.
        preference_rule: Text by which a judge compares two responses.
        rating_rule: Text by which a judge rates one response.
        decision_rule: Statement that is true of a response that keeps to the rule, for decision
            models; empty if it is made from the rating text.
    """

    rule_id: str
    title: str
    description: str
    preference_rule: str
    rating_rule: str
    decision_rule: str = ""

    @property
    def texts(self) -> dict[str, str]:
        """Return the id and the texts by field name, without a decision text that is empty."""
        texts: dict[str, str] = asdict(self)
        return {name: text for name, text in texts.items() if text or name != "decision_rule"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RuleSet(ShownRecord):
    """Rules in the order of the model's heads.

    Attributes:
        name: Name of the set.
        rules: The rules.
        digest: Digest of every text and of the order.
    """

    name: str
    rules: tuple[Rule, ...]
    digest: str

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """Return the ids of the rules in head order."""
        return tuple(rule.rule_id for rule in self.rules)


def pair_id_of(prompt: Sequence[Message], *, chosen: str, rejected: str) -> str:
    """Return 32 hex digits that depend on texts and roles, not on source, order or machine.

    The hash is the first half of SHA-256 over the number of messages, then role and content of
    each message, then chosen, then rejected. The number and every text's length in bytes are
    written as 8 big-endian bytes before it, so no two pairs share an encoding. Texts are UTF-8
    exactly as given: nothing is stripped, folded or normalised here.
    """
    turns = (text for message in prompt for text in (message.role, message.content))
    digest = hashlib.sha256(len(prompt).to_bytes(_LENGTH_BYTES, "big"))
    for text in (*turns, chosen, rejected):
        encoded = text.encode("utf-8")
        digest.update(len(encoded).to_bytes(_LENGTH_BYTES, "big"))
        digest.update(encoded)
    return digest.hexdigest()[:32]


def slug(name: str) -> str:
    """Return a name for files: lower-case ASCII letters and digits, joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def rule_id_of(title: str) -> str:
    """Return the id of a rule's title: letters and digits of any script, joined by hyphens.

    Upper case, accents of Latin letters and compatibility forms (full-width letters, ligatures) are
    folded. A title without letters and digits has a hash as its id.

    >>> rule_id_of("Respect for Privacy"), rule_id_of("Über Waffen"), rule_id_of("Правило 1: дом")
    ('respect-for-privacy', 'uber-waffen', 'правило-1-дом')
    """
    folded = unicodedata.normalize("NFKC", title).casefold()
    plain = _LATIN_ACCENTS.sub("", unicodedata.normalize("NFKD", folded))
    composed = unicodedata.normalize("NFKC", plain)
    rule_id = "-".join("".join(c if _is_id_character(c) else " " for c in composed).split())
    digest = hashlib.sha256(title.encode("utf-8", "surrogatepass")).hexdigest()
    return rule_id or f"rule-{digest[:_ID_DIGITS]}"


def is_rule_id(text: str) -> bool:
    """Return True if a text is an id as `rule_id_of` makes them."""
    return rule_id_of(text) == text


def _is_id_character(character: str) -> bool:
    """Return True for letters, their marks, and digits."""
    return unicodedata.category(character)[0] in "LMN"
