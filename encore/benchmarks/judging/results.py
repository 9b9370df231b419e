"""A judge's result on every pair, in the same file format as a reward model's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.results import PairResults, write_pair_results
from encore.data.records import slug
from encore.weighting.vector import WeightVector

#: A file's name has at most 255 bytes; what stands behind makes it one of its own.
_NAME_LENGTH = 60


def write_judge_results(
    folder: Path,
    results: PairResults,
    *,
    key: str,
    weights: WeightVector | None,
    pairs: BenchmarkPairs,
) -> Path:
    """Write ``results-<name>-<key>-<hash>.parquet`` into a folder and return its path.

    The hash is of name and weights: the key covers neither, and the results of one training study's
    weights must not take the place of another's.

    Args:
        folder: Which must exist.
        results: Of every pair, under the row's name in tables.
        key: Of the judging or of the rating run.
        weights: Of the rules; None where nothing is weighed.
        pairs: What they are results on.
    """
    by_rule = None if weights is None else [list(weights.rule_ids), list(weights.weights)]
    digest = hashlib.sha256(json.dumps([results.name, by_rule]).encode()).hexdigest()
    parts = ("results", slug(results.name)[:_NAME_LENGTH].strip("-"), key[:8], digest[:8])
    path = folder / f"{'-'.join(filter(None, parts))}.parquet"
    return write_pair_results(path, [results], pairs=pairs)
