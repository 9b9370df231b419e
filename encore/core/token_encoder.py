"""Encode many texts at once; text that spells a special token may stay plain text."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenEncoder:
    """A fast encoder on a Hugging Face tokenizer: it adds no special tokens, cuts and pads nothing.

    Several threads may use it.
    """

    hf_tokenizer: Any
    _special: re.Pattern[str] | None = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock, compare=False)

    def __post_init__(self) -> None:
        """Switch off the truncation and padding that a tokenizer.json may set."""
        tokens = sorted(map(str, self.hf_tokenizer.get_added_vocab()), key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None
        object.__setattr__(self, "_special", pattern)
        if (backend := self._backend) is not None:
            backend.no_truncation()
            backend.no_padding()

    def spells_special(self, text: str) -> bool:
        """Return True if the text contains characters that would become a special token."""
        return self._special is not None and self._special.search(text) is not None

    def encode(self, texts: Sequence[str], *, is_plain: bool = False) -> list[list[int]]:
        """Return the token ids of each text; ``is_plain`` keeps spelled special tokens as text."""
        if not texts:
            return []
        if (backend := self._backend) is not None:
            with self._lock:  # the switch belongs to the tokenizer, not to a call
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
        """Return the Rust tokenizer; None if transformers has only a Python one."""
        return getattr(self.hf_tokenizer, "backend_tokenizer", None)
