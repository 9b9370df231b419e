"""Many token sequences in one flat array: what 140,000 responses weigh is their tokens alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

# Suffix: N sequences.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTable:
    """Sequences of token ids, one after the other: 4 bytes a token and 8 a sequence.

    Attributes:
        flat: The ids of all sequences, shape [tokens], int32.
        offsets: Where each sequence begins, and at the end where the last one stops, shape
            [N + 1], int64.
    """

    flat: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[NDArray[np.int32] | Sequence[int]]) -> Self:
        """A table of these sequences."""
        arrays = [np.asarray(sequence, dtype=np.int32) for sequence in sequences]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)
        return cls(flat=flat, offsets=np.r_[np.int64(0), np.cumsum(lengths)])

    @classmethod
    def joined(cls, tables: Sequence[TokenTable]) -> Self:
        """The sequences of several tables, in order."""
        lengths = [table.lengths for table in tables]
        flats = [table.flat for table in tables]
        if not tables:
            return cls.of([])
        offsets = np.r_[np.int64(0), np.cumsum(np.concatenate(lengths))]
        return cls(flat=np.concatenate(flats), offsets=offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence, shape [N]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        """One sequence: a view, not a copy."""
        place = int(index)
        if not 0 <= place < len(self):
            raise IndexError(f"sequence {place} of a table of {len(self)}")
        return self.flat[self.offsets[place] : self.offsets[place + 1]]

    def take(self, row_N: NDArray[np.int64] | Sequence[int]) -> TokenTable:
        """Some sequences, in the order asked for."""
        return TokenTable.of(self[row] for row in row_N)
