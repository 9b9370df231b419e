"""The Arrow schema of every Parquet table, written once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

MESSAGE = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])


def text_columns(*names: str) -> Iterator[pa.Field]:
    """Columns of text that is always there."""
    return (pa.field(name, pa.string(), nullable=False) for name in names)


#: STUDY/pairs/<source>.parquet. Grain: one row per (source, pair_id).
PAIRS = pa.schema(
    [
        *text_columns("pair_id", "source"),
        pa.field("prompt", pa.list_(MESSAGE), nullable=False),
        *text_columns("chosen", "rejected"),
    ]
)

#: Fields of each line of STUDY/pairs/LABEL.set-aside.jsonl. Grain: one rejected input record.
SET_ASIDE_FIELDS = ("source", "file", "record", "reason", "detail", "excerpt")

#: The five columns of the public contract. Any Parquet with these is valid ratings input.
RATINGS_CONTRACT = pa.schema(
    [
        *text_columns("pair_id", "source", "response", "rule_id"),
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
        *text_columns("judge", "run_key"),
    ]
)

#: What a run with ``--decode expected`` adds: the mean over the labels, their whole probability,
#: and the entropy (nats) of the distribution over them.
EXPECTED = pa.schema(
    [
        pa.field(name, pa.float64(), nullable=True)
        for name in ("expected_rating", "label_mass", "reply_entropy")
    ]
)
RATINGS_EXPECTED = pa.unify_schemas([RATINGS, EXPECTED])

#: STUDY/labels/<key>/labels.parquet: what people say of single responses, from 0 to 1, beside what
#: a judge rates. Grain: one row per label; a response that is labelled twice has two under a rule.
LABELS = pa.schema(
    [
        *text_columns("response_id", "source", "rule_id"),
        pa.field("rating", pa.float64(), nullable=True),
        pa.field("label", pa.float64(), nullable=False),
    ]
)

#: STUDY/annotations/<key>/sample.parquet: what annotators do not see of their items. Of a pair of
#: rules the one of lower entropy is ``first`` or ``second``. Grain: one row per item.
SAMPLED_RESPONSES = pa.schema(
    [
        *text_columns("item_id", "source", "pair_id", "response", "rule_id"),
        pa.field("rating", pa.float64(), nullable=False),
    ]
)
SAMPLED_RULES = pa.schema([*text_columns("item_id", "first_rule", "second_rule", "lower_entropy")])

#: STUDY/annotations/<key>/answers.parquet. Grain: one row per annotator, item and question;
#: ``response_id`` is ``<pair_id>:<response>``.
ANSWERS = pa.schema(
    [
        *text_columns("annotator", "item_id", "source", "response_id", "rule_id"),
        pa.field("label", pa.float64(), nullable=False),
    ]
)
CHOICES = pa.schema(
    [*text_columns("annotator", "item_id", "first_rule", "second_rule", "question", "choice")]
)
