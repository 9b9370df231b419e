"""Write one label's pairs, and what is no pair, while counting every record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from encore.data.records import PreferencePair
from encore.data.sources.identity import pair_id_of
from encore.data.sources.malformed import MalformedRecordError
from encore.data.sources.raw import RawRecord
from encore.schemas import PAIRS, SET_ASIDE_FIELDS

#: A row group is closed at either; the texts in hand bound the memory, whatever the input's size.
_ROWS_PER_GROUP = 4096
_CHARACTERS_PER_GROUP = 16 << 20


@dataclass(slots=True)
class Counts:
    """Every record read is kept, merged with an equal one, or set aside."""

    num_read: int = 0
    num_kept: int = 0
    num_duplicates: int = 0
    num_contradicting: int = 0
    set_aside: Counter[str] = field(default_factory=Counter)

    @property
    def num_set_aside(self) -> int:
        """Records set aside for any reason."""
        return self.set_aside.total()

    def check(self) -> None:
        """Nothing is dropped without being counted."""
        assert self.num_read == self.num_kept + self.num_duplicates + self.num_set_aside


class PairWriter:
    """Takes pairs and malformed records of one label; use it through `pair_writer`."""

    def __init__(self, parquet: pq.ParquetWriter, set_aside: IO[str], *, label: str) -> None:
        self.counts = Counts()
        self.pair_ids: set[bytes] = set()
        self.label = label
        self._parquet = parquet
        self._set_aside = set_aside
        self._rows: list[PreferencePair] = []
        self._num_characters = 0

    def add(self, pair: PreferencePair) -> None:
        """Keep a pair, unless an equal one was kept before.

        The same responses with the labels the other way round are another pair: both are kept,
        and the contradiction is counted.
        """
        self.counts.num_read += 1
        pair_id = bytes.fromhex(pair.pair_id)
        if pair_id in self.pair_ids:
            self.counts.num_duplicates += 1
            return
        swapped = pair_id_of(pair.prompt, chosen=pair.rejected, rejected=pair.chosen)
        self.counts.num_contradicting += bytes.fromhex(swapped) in self.pair_ids
        self.counts.num_kept += 1
        self.pair_ids.add(pair_id)
        self._rows.append(pair)
        self._num_characters += _num_characters(pair)
        if len(self._rows) >= _ROWS_PER_GROUP or self._num_characters >= _CHARACTERS_PER_GROUP:
            self.flush()

    def set_aside(self, record: RawRecord, error: MalformedRecordError, *, file: str) -> None:
        """Write down a record that is no pair, with where it was and why."""
        self.counts.num_read += 1
        self.counts.set_aside[error.reason] += 1
        values = (self.label, file, record.number, error.reason, error.detail, record.excerpt())
        line = json.dumps(dict(zip(SET_ASIDE_FIELDS, values, strict=True)), ensure_ascii=False)
        self._set_aside.write(line + "\n")

    def flush(self) -> None:
        """Write the pairs in hand as one row group."""
        if self._rows:
            self._parquet.write_table(_table(self._rows))
        self._rows = []
        self._num_characters = 0


@contextmanager
def pair_writer(*, pairs: Path, set_aside: Path, label: str) -> Iterator[PairWriter]:
    """A writer of the two files; they are complete when the block has ended."""
    with (
        # Half a surrogate pair in an excerpt becomes an escape, which is what JSON has for it.
        set_aside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as aside,
        pq.ParquetWriter(pairs, PAIRS, compression="zstd") as parquet,
    ):
        writer = PairWriter(parquet, aside, label=label)
        yield writer
        writer.flush()


def _num_characters(pair: PreferencePair) -> int:
    return (
        len(pair.chosen) + len(pair.rejected) + sum(len(message.content) for message in pair.prompt)
    )


def _table(pairs: list[PreferencePair]) -> pa.Table:
    columns = {
        "pair_id": [pair.pair_id for pair in pairs],
        "source": [pair.source for pair in pairs],
        "prompt": [
            [{"role": message.role, "content": message.content} for message in pair.prompt]
            for pair in pairs
        ],
        "chosen": [pair.chosen for pair in pairs],
        "rejected": [pair.rejected for pair in pairs],
    }
    return pa.table(columns, schema=PAIRS)
