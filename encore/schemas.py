"""The Arrow schema of every Parquet table, written once."""

from __future__ import annotations

import pyarrow as pa

MESSAGE = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])

#: STUDY/pairs/<source>.parquet. Grain: one row per (source, pair_id).
PAIRS = pa.schema(
    [
        pa.field("pair_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("prompt", pa.list_(MESSAGE), nullable=False),
        pa.field("chosen", pa.string(), nullable=False),
        pa.field("rejected", pa.string(), nullable=False),
    ]
)

#: STUDY/pairs/set_aside.jsonl holds the same fields per line. Grain: one rejected input record.
SET_ASIDE_FIELDS = ("source", "file", "record", "reason", "detail", "excerpt")

#: The five columns of the public contract. Any Parquet with these is valid ratings input.
RATINGS_CONTRACT = pa.schema(
    [
        pa.field("pair_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("response", pa.string(), nullable=False),
        pa.field("rule_id", pa.string(), nullable=False),
        pa.field("rating", pa.float64(), nullable=True),
    ]
)

#: Our own shards add why a rating is null, how much was cut, the reply, and who said it.
#: Grain: one row per (source, pair_id, response, rule_id).
RATINGS = pa.schema(
    [
        *RATINGS_CONTRACT,
        pa.field("null_reason", pa.string(), nullable=True),
        pa.field("num_truncated_tokens", pa.int32(), nullable=False),
        pa.field("raw_reply", pa.string(), nullable=True),
        pa.field("judge", pa.string(), nullable=False),
        pa.field("run_key", pa.string(), nullable=False),
    ]
)
