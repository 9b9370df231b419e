"""Open ratings for weighing: statistics of the rules, a way to the pairs, where both came from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from encore.analysis.statistics import rating_statistics
from encore.data.study import MARKER, Study, open_study
from encore.files import file_sha256
from encore.warehouse import PairRatings, Ratings, Warehouse, open_ratings, read_pair_ratings
from encore.weighting.evidence import Evidence
from encore.weighting.vector import Origin


@contextlib.contextmanager
def open_evidence(ratings: str | Path | Ratings | Any) -> Iterator[Evidence]:
    """The evidence of some ratings; its pairs can be read while the context is open.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.

    Raises:
        InputError: No ratings table, or a rule without ratings.
    """
    opened = open_ratings(ratings)
    with Warehouse(opened) as warehouse:
        yield evidence_of(warehouse, opened)


def evidence_of(warehouse: Warehouse, ratings: Ratings) -> Evidence:
    """The evidence of an opened input, all sources pooled; pairs are read at most once.

    Raises:
        InputError: A rating is there more than once, or a rule has none.
    """
    rules = rating_statistics(warehouse)[-1].rules
    rule_ids = tuple(rule.rule_id for rule in rules)

    @functools.cache
    def read_pairs() -> PairRatings:
        return read_pair_ratings(warehouse, rule_ids=rule_ids)

    return Evidence(
        rules=rules, read_pairs=read_pairs, origin=_origin(ratings), study=_study_of(ratings)
    )


def ratings_digest(files: Sequence[Path]) -> str:
    """SHA-256 over the sorted SHA-256 of files, one hex digest a line."""
    lines = sorted(f"{file_sha256(path)}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _origin(ratings: Ratings) -> Origin:
    manifest = ratings.manifest
    identity = manifest.identity if manifest else {}
    return Origin(
        run_key=manifest.run_key if manifest else None,
        judge=manifest.judge if manifest else ratings.judge,
        data_sha256=identity.get("data_sha256"),
        rules_sha256=identity.get("rules_sha256"),
        ratings_sha256=ratings_digest(ratings.files) if ratings.files else None,
        num_shards=ratings.num_shards,
        num_missing_shards=ratings.num_missing_shards,
    )


def _study_of(ratings: Ratings) -> Study | None:
    """The study that the files of a run lie in."""
    folder = ratings.run_dir.parent.parent if ratings.run_dir else None
    return open_study(folder) if folder and (folder / MARKER).is_file() else None
