"""Token ids of many prompts that share their parts: each part is tokenised once."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from encore.core.chat_tokenizer import ChatTokenizer

#: The two parts of a prompt, to be read as one text. The first ends with two line feeds.
Parts = tuple[str, str]

_PROMPTS_AT_ONCE = 500
#: Ends of the first part, beginnings of the second, around which a tokenizer could merge.
_ENDS = ("word", "3.5", "(x)...", "文字", "🙂", "a space ", "tab\t", "a line\n", "\n\n", " \r\n")
_BEGINNINGS = ("Criterion", "Conversation", "You must")


@dataclass(slots=True)
class SegmentEncoder:
    """What `ChatTokenizer.encode` gives for both parts in one text, at a tenth of its cost.

    Tokenising bounds the time of preparing prompts, and a conversation stands in the prompts of
    all rules. Whether tokens ever cross the cut depends on the tokenizer: the cut is tried behind
    the line feeds and between them, on probes and again on the first prompt of every batch; where
    neither is exact, prompts are tokenised whole.
    """

    tokenizer: ChatTokenizer
    #: Line feeds that are moved to the second part; None: prompts are tokenised whole.
    num_moved: int | None = field(init=False)
    _known: dict[str, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Find a cut that changes no token."""
        probes = [(f"Probe:\n\n{end}\n\n", f"{word} x") for end in _ENDS for word in _BEGINNINGS]
        whole = [list(ids) for ids in self.tokenizer.encode_each(map("".join, probes))]
        self.num_moved = None
        for num_moved in (0, 1) if self.tokenizer.frame else ():
            if self._joined(probes, num_moved) == whole:
                self.num_moved = num_moved
                break

    def encode_each(self, prompts: Iterable[Parts]) -> Iterator[array[int]]:
        """Token ids of each prompt, chat template included."""
        waiting = iter(prompts)
        while some := list(itertools.islice(waiting, _PROMPTS_AT_ONCE)):
            yield from (array("I", token_ids) for token_ids in self._encode(some))

    def _encode(self, prompts: Sequence[Parts]) -> list[list[int]]:
        if self.num_moved is not None:
            joined = self._joined(prompts, self.num_moved)
            if joined[0] == self.tokenizer.encode(["".join(prompts[0])])[0]:
                spells = self.tokenizer.spells_special
                plain = {part for part in set(itertools.chain(*prompts)) if spells(part)}
                for place, parts in enumerate(prompts):
                    if plain and not plain.isdisjoint(parts):
                        [joined[place]] = self.tokenizer.encode(["".join(parts)])
                return joined
            self.num_moved = None
        return self.tokenizer.encode(["".join(parts) for parts in prompts])

    def _joined(self, prompts: Sequence[Parts], num_moved: int) -> list[list[int]]:
        """Of parts that were in the batch before, such as the rules', the ids are known."""
        assert self.tokenizer.frame is not None, "checked when the cut was looked for"
        before, after = self.tokenizer.frame
        cut = [
            (before + first[: len(first) - num_moved], "\n" * num_moved + second + after)
            for first, second in prompts
        ]
        texts, known = list(dict.fromkeys(itertools.chain(*cut))), self._known
        new = [text for text in texts if text not in known]
        known = known | dict(zip(new, self.tokenizer.encode_text(new), strict=True))
        self._known = {text: known[text] for text in texts}  # in one step: threads share it
        return [[*known[first], *known[second]] for first, second in cut]
