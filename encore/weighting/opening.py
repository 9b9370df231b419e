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
from encore.pair_ratings import PairRatings, read_pair_ratings
from encore.ratings_input import RatingsInput, ratings_input
from encore.shards import RunManifest, read_run
from encore.warehouse import Warehouse
from encore.weighting.evidence import Evidence
from encore.weighting.provenance import Origin


@contextlib.contextmanager
def open_evidence(
    ratings: str | Path | Any, *, run: str | None = None, judge: str | None = None
) -> Iterator[Evidence]:
    """The evidence of some ratings; its pairs can be read while the context is open.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.

    Raises:
        InputError: No ratings table, or a rule without ratings.
    """
    source = ratings_input(ratings, run=run, judge=judge)
    with Warehouse(source) as warehouse:
        yield evidence_of(warehouse, source)


def evidence_of(warehouse: Warehouse, source: RatingsInput) -> Evidence:
    """The evidence of an opened input, all sources pooled; pairs are read at most once.

    Raises:
        InputError: A rating is there more than once, or a rule has none.
    """
    rules = rating_statistics(warehouse, rule_order=source.rule_order)[-1].rules
    rule_ids = tuple(rule.rule_id for rule in rules)

    @functools.cache
    def read_pairs() -> PairRatings:
        return read_pair_ratings(warehouse, rule_ids=rule_ids)

    return Evidence(
        rules=rules, read_pairs=read_pairs, origin=_origin(source), study=_study_of(source)
    )


def ratings_digest(files: Sequence[Path]) -> str:
    """SHA-256 over the sorted SHA-256 of files, one hex digest a line."""
    lines = sorted(f"{file_sha256(path)}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _origin(source: RatingsInput) -> Origin:
    manifest = _manifest_of(source)
    identity = manifest.identity if manifest else {}
    return Origin(
        run_key=manifest.run_key if manifest else None,
        judge=manifest.judge if manifest else source.judge,
        data_sha256=identity.get("data_sha256"),
        rules_sha256=identity.get("rules_sha256"),
        ratings_sha256=ratings_digest(source.files) if source.files else None,
        num_shards=source.num_shards,
        num_missing_shards=source.num_missing_shards,
    )


def _manifest_of(source: RatingsInput) -> RunManifest | None:
    """The manifest of the run that validated files belong to."""
    return read_run(source.files[0].parent) if source.is_validated else None


def _study_of(source: RatingsInput) -> Study | None:
    """The study that the files of a run lie in."""
    if not source.is_validated:
        return None
    folder = source.files[0].parent.parent.parent
    return open_study(folder) if (folder / MARKER).is_file() else None
