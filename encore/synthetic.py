"""Which parts of a study are synthetic, so that nobody takes their figures for evidence."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from encore.demo import data_paths, judge_path
from encore.judges.model_files import folder_digest
from encore.pairs import PairsManifest
from encore.shards import RunManifest

#: A source whose label begins like this is synthetic, whoever made it.
SYNTHETIC_LABEL = "synthetic"


def is_synthetic_source(manifest: PairsManifest) -> bool:
    """Whether a label says that its pairs are synthetic, or they come from the demo's files."""
    demo_files = {path.name for path in data_paths().values()}
    return manifest.label.casefold().startswith(SYNTHETIC_LABEL) or any(
        origin.kind == "local" and origin.name in demo_files for origin in manifest.origins
    )


def is_synthetic_judge(manifest: RunManifest) -> bool:
    """Whether a run's judge is the demo's, by the content of its folder."""
    revision: str | None = manifest.identity["judge"].get("revision")
    return revision == f"sha256:{_demo_judge_digest()}"


def synthetic_parts(
    sources: Iterable[PairsManifest], runs: Iterable[RunManifest]
) -> tuple[str, ...]:
    """What of a study is synthetic, in words; empty where nothing is."""
    return (
        *(f"source {source.label}" for source in sources if is_synthetic_source(source)),
        *(f"judge of run {run.run_key}" for run in runs if is_synthetic_judge(run)),
    )


@cache
def _demo_judge_digest() -> str:
    return folder_digest(judge_path())
