"""Folders in which earlier versions stored verdicts and ratings, so that nothing is paid twice.

Two changes moved judgings although the prompts stayed the same: the name of the only criterion
left the prompt's digest and the identity, and a benchmark's pairs got one digest everywhere. The
functions below give the identities and folders from before these changes, the latest first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.judging.pairwise_protocol import (
    EARLIER_CRITERION,
    prompt_digest_of_earlier_versions,
)


def earlier_identities(
    identity: Mapping[str, Any], pairs: BenchmarkPairs
) -> Iterator[dict[str, Any]]:
    """Yield the identities that earlier versions gave to the same judging.

    Args:
        identity: Identity of the judging in this version.
        pairs: Pairs that are judged.
    """
    before_shared_digest = {**identity, "data_sha256": _earlier_digest(pairs)}
    yield before_shared_digest
    yield {
        **before_shared_digest,
        "prompt_sha256": prompt_digest_of_earlier_versions(identity["protocol"]),
        "criterion_ids": [EARLIER_CRITERION],
    }


def rated_study_path(pairs: BenchmarkPairs, *, out: Path) -> Path:
    """Return the folder of the study in which the judge's ratings of these pairs are kept."""
    return out / f"rated-{pairs.digest[:16]}"


def earlier_rated_study_path(pairs: BenchmarkPairs, *, out: Path) -> Path:
    """Return the folder in which earlier versions kept the judge's ratings of these pairs."""
    return out / f"rated-{_earlier_digest(pairs)[:16]}"


def _earlier_digest(pairs: BenchmarkPairs) -> str:
    """Return the SHA-256 that judgings of earlier versions had instead of `pairs.digest`."""
    return hashlib.sha256(json.dumps(sorted(pairs.keys), ensure_ascii=False).encode()).hexdigest()
