"""Which parts of a study are synthetic, so that nobody takes their figures for evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from encore.core.model_files import is_demo_judge
from encore.data.pairs import PairsManifest, labels_of, read_manifest
from encore.data.rating_runs import RatingManifest, list_runs, read_run
from encore.data.study import MARKER, Study, open_study


def synthetic_parts(
    sources: Iterable[PairsManifest], runs: Iterable[RatingManifest]
) -> tuple[str, ...]:
    """What of a study is synthetic, in words, as its manifests say; empty where nothing is."""
    of_sources = (f"source {source.label}" for source in sources if source.synthetic)
    return (*of_sources, *(part for run in runs for part in run.synthetic))


def synthetic_in(path: Path, *, run: str | None = None) -> tuple[str, ...]:
    """What is synthetic in a study's ratings, in words; empty for ratings that are not a study's.

    Args:
        path: A study, or anything else that ratings are read from.
        run: A prefix of the run key that is read; else all runs count.
    """
    if not (path / MARKER).is_file():
        return ()
    study = open_study(path)
    run_dirs = [one for one in list_runs(study.ratings_dir) if one.name.startswith(run or "")]
    sources = (read_manifest(study, label) for label in labels_of(study))
    return synthetic_parts(sources, map(read_run, run_dirs))


def synthetic_pairs(study: Study) -> tuple[str, ...]:
    """What of a study's pairs is synthetic, in words."""
    return synthetic_parts((read_manifest(study, label) for label in labels_of(study)), ())


def synthetic_backbone(identity: Mapping[str, Any]) -> tuple[str, ...]:
    """Whether a backbone's identity is that of the demo's judge, in words."""
    is_demo = any(is_demo_judge(str(value)) for value in identity.values())
    return ("backbone (the demonstration judge)",) if is_demo else ()
