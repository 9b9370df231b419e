"""Encode many prompts that share parts, and tokenise each part once."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from encore.core.chat_tokenizer import ChatTokenizer

#: The two parts of a prompt, which the judge reads as one text. The first ends with two line feeds.
Parts = tuple[str, str]

_PROMPTS_AT_ONCE = 500
#: Ends of first parts and beginnings of second parts that a tokenizer might merge.
_ENDS = ("word", "3.5", "(x)...", "文字", "🙂", "a space ", "tab\t", "a line\n", "\n\n", " \r\n")
_BEGINNINGS = ("Criterion", "Conversation", "You must")


@dataclass(slots=True)
class SegmentEncoder:
    """Encoder with the results of `ChatTokenizer.encode`, at a tenth of its cost.

    Tokenising takes most of the time of preparing prompts, and a conversation is part of the
    prompts of all rules. Some tokenizers merge characters across the cut between the parts. Two
    cuts are tried, after the line feeds and between them, on probes and again on the first prompt
    of every batch. If neither gives the same tokens, prompts are tokenised whole.

    Attributes:
        tokenizer: Tokenizer of the judge.
        num_moved: Number of line feeds that belong to the second part; None if prompts are
            tokenised whole.
    """

    tokenizer: ChatTokenizer
    num_moved: int | None = field(init=False)
    _ids_by_text: dict[str, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Find a cut that changes no token."""
        probes = [(f"Probe:\n\n{end}\n\n", f"{start} x") for end in _ENDS for start in _BEGINNINGS]
        probe_ids = [list(ids) for ids in self.tokenizer.encode_each(map("".join, probes))]
        self.num_moved = None
        for num_moved in (0, 1) if self.tokenizer.frame else ():
            if self._joined(probes, num_moved) == probe_ids:
                self.num_moved = num_moved
                break

    def encode_each(self, prompts: Iterable[Parts]) -> Iterator[array[int]]:
        """Yield the token ids of each prompt, chat template included."""
        remaining = iter(prompts)
        while batch := list(itertools.islice(remaining, _PROMPTS_AT_ONCE)):
            yield from (array("I", token_ids) for token_ids in self._encode(batch))

    def _encode(self, prompts: Sequence[Parts]) -> list[list[int]]:
        """Encode a batch, from parts if that gives the same ids for its first prompt."""
        if self.num_moved is not None:
            joined = self._joined(prompts, self.num_moved)
            if joined[0] == self.tokenizer.encode(["".join(prompts[0])])[0]:
                spells = self.tokenizer.spells_special
                plain = {part for part in set(itertools.chain(*prompts)) if spells(part)}
                for index, parts in enumerate(prompts):
                    if plain and not plain.isdisjoint(parts):
                        [joined[index]] = self.tokenizer.encode(["".join(parts)])
                return joined
            self.num_moved = None
        return self.tokenizer.encode(["".join(parts) for parts in prompts])

    def _joined(self, prompts: Sequence[Parts], num_moved: int) -> list[list[int]]:
        """Encode prompts from their parts.

        The ids of the previous batch's parts, such as the rules' texts, are kept.
        """
        assert self.tokenizer.frame is not None, "__post_init__ looks for a cut only with a frame"
        before, after = self.tokenizer.frame
        cut = [
            (before + first[: len(first) - num_moved], "\n" * num_moved + second + after)
            for first, second in prompts
        ]
        texts, ids_by_text = list(dict.fromkeys(itertools.chain(*cut))), self._ids_by_text
        new = [text for text in texts if text not in ids_by_text]
        ids_by_text = ids_by_text | dict(zip(new, self.tokenizer.encode_text(new), strict=True))
        # One assignment, because threads share it.
        self._ids_by_text = {text: ids_by_text[text] for text in texts}
        return [[*ids_by_text[first], *ids_by_text[second]] for first, second in cut]
