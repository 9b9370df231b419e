"""Arrow schemas of the Parquet tables of pairs, ratings, labels and answers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

MESSAGE = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])


def text_columns(*names: str) -> Iterator[pa.Field]:
    """Return columns of text that is never null."""
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

#: Shards of `encore rate` add the reason of a null, the number of cut tokens, the reply, the judge
#: and the run.
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

#: A run with ``--decode expected`` adds the mean over the labels, the labels' total probability,
#: and the entropy of the distribution over them in nats.
EXPECTED = pa.schema(
    [
        pa.field(name, pa.float64(), nullable=True)
        for name in ("expected_rating", "label_mass", "reply_entropy")
    ]
)
RATINGS_EXPECTED = pa.unify_schemas([RATINGS, EXPECTED])

#: STUDY/labels/<key>/labels.parquet: labels by people for single responses, from 0 to 1, beside
#: the judge's ratings. Responses with the same ``prompt_id`` answer the same prompt; it is null if
#: the prompt is not known. Grain: one row per label; a response labelled twice has two rows per
#: rule.
LABELS = pa.schema(
    [
        *text_columns("response_id", "source", "rule_id"),
        pa.field("rating", pa.float64(), nullable=True),
        pa.field("label", pa.float64(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=True),
    ]
)

#: STUDY/annotations/<key>/sample.parquet: the columns that annotators do not see.
#: ``probability`` is that of a response with its source and ratings to have a label after this
#: sample; null where the sample is spread evenly, and shares of labels say it. ``lower_entropy`` is
#: ``first`` or ``second``. Grain: one row per item.
SAMPLED_RESPONSES = pa.schema(
    [
        *text_columns("item_id", "source", "pair_id", "response", "rule_id"),
        pa.field("rating", pa.float64(), nullable=False),
        pa.field("probability", pa.float64(), nullable=True),
    ]
)
SAMPLED_RULES = pa.schema([*text_columns("item_id", "first_rule", "second_rule", "lower_entropy")])

#: STUDY/annotations/<key>/answers.parquet. Grain: one row per annotator, item and question;
#: ``response_id`` is ``<pair_id>:<response>``. A null label or choice is the answer "cannot say".
ANSWERS = pa.schema(
    [
        *text_columns("annotator", "item_id", "source", "response_id", "rule_id"),
        pa.field("label", pa.float64()),
        pa.field("comment", pa.string()),
    ]
)
CHOICES = pa.schema(
    [
        *text_columns("annotator", "item_id", "first_rule", "second_rule", "question"),
        pa.field("choice", pa.string()),
        pa.field("comment", pa.string()),
    ]
)
