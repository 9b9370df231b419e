"""Texts to token ids, many at once, with a switch for text that spells special tokens."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenEncoder:
    """The fast way into a Hugging Face tokenizer: no special tokens added, nothing cut or padded.

    It may be used from several threads.
    """

    hf_tokenizer: Any
    _special: re.Pattern[str] | None = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock, compare=False)

    def __post_init__(self) -> None:
        """Switch off what a tokenizer.json may ask for."""
        tokens = sorted(map(str, self.hf_tokenizer.get_added_vocab()), key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None
        object.__setattr__(self, "_special", pattern)
        if (backend := self._backend) is not None:
            backend.no_truncation()
            backend.no_padding()

    def spells_special(self, text: str) -> bool:
        """Whether the text contains what would become a special token."""
        return self._special is not None and self._special.search(text) is not None

    def encode(self, texts: Sequence[str], *, is_plain: bool = False) -> list[list[int]]:
        """Token ids of each text; ``is_plain``: what spells a special token is text too."""
        if not texts:
            return []
        if (backend := self._backend) is not None:
            with self._lock:  # the switch is the tokenizer's, not the call's
                backend.encode_special_tokens = is_plain
                # Half the time of calling the tokenizer, which also keeps every token's offsets.
                encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in encodings]
        encoded = self.hf_tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            split_special_tokens=is_plain,
        )
        return list(encoded["input_ids"])

    @property
    def _backend(self) -> Any:
        """The Rust tokenizer, None where transformers has only a Python one."""
        return getattr(self.hf_tokenizer, "backend_tokenizer", None)
