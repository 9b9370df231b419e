"""Which parts of a study are synthetic, so that nobody takes their figures for evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from encore.data.pairs import PairsManifest, labels_of, read_manifest
from encore.data.study import MARKER, Study, open_study
from encore.model_files import folder_digest
from encore.rating_runs import RatingManifest, list_runs, read_run

#: A source whose label begins like this is synthetic, whoever made it.
SYNTHETIC_LABEL = "synthetic"
#: What the demo ships: its files are known by name, its judge by content.
_DEMO = Path(__file__).parent / "demo"


def is_synthetic_source(manifest: PairsManifest) -> bool:
    """Whether a label says that its pairs are synthetic, or they come from the demo's files."""
    demo_files = {path.name for path in (_DEMO / "data").glob("*.jsonl.gz")}
    return manifest.label.casefold().startswith(SYNTHETIC_LABEL) or any(
        origin.kind == "local" and origin.name in demo_files for origin in manifest.origins
    )


def is_synthetic_judge(manifest: RatingManifest) -> bool:
    """Whether a run's judge is the demo's, by the content of its folder."""
    return is_demo_judge(manifest.identity["judge"].get("revision"))


def is_demo_judge(revision: str | None) -> bool:
    """Whether a judge's revision is the content of the demo's folder."""
    return revision == f"sha256:{_demo_judge_digest()}"


def synthetic_parts(
    sources: Iterable[PairsManifest], runs: Iterable[RatingManifest]
) -> tuple[str, ...]:
    """What of a study is synthetic, in words; empty where nothing is."""
    return (
        *(f"source {source.label}" for source in sources if is_synthetic_source(source)),
        *(f"judge of run {run.run_key}" for run in runs if is_synthetic_judge(run)),
    )


def synthetic_in(path: Path, *, run: str | None = None) -> tuple[str, ...]:
    """What is synthetic in a study's ratings, in words; empty for ratings that are not a study's.

    Args:
        path: A study, or anything else that ratings are read from.
        run: A prefix of the run key that is read; else all runs count.
    """
    if not (path / MARKER).is_file():
        return ()
    study = open_study(path)
    run_dirs = [
        folder for folder in list_runs(study.ratings_dir) if folder.name.startswith(run or "")
    ]
    return synthetic_parts(
        (read_manifest(study, label) for label in labels_of(study)), map(read_run, run_dirs)
    )


@cache
def _demo_judge_digest() -> str:
    return folder_digest(_DEMO / "judge")


def synthetic_in_training(
    study: Study,
    *,
    backbone_identity: Mapping[str, Any],
    rating_run: str | None,
    has_ratings_of_study: bool,
) -> tuple[str, ...]:
    """What of a training's data or backbone is synthetic, in words; empty where nothing is.

    Args:
        study: Whose pairs are learnt from.
        backbone_identity: Of the backbone.
        rating_run: Which of the study's rating runs is read; None: any.
        has_ratings_of_study: Whether its ratings are read at all.
    """
    if has_ratings_of_study:
        parts = synthetic_in(study.path, run=rating_run)
    else:
        parts = synthetic_parts((read_manifest(study, label) for label in labels_of(study)), ())
    if any(is_demo_judge(str(value)) for value in backbone_identity.values()):
        parts = (*parts, "backbone (the demonstration judge)")
    return parts
