"""What people should know of a run and its model beside the numbers: origin, versions, marks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.data.pairs import labels_of, read_manifest
from encore.data.study import open_study
from encore.demo import judge_path
from encore.model_files import folder_digest
from encore.synthetic import synthetic_in, synthetic_parts
from encore.versions import package_versions

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.fitting import Fitting
    from encore.training.run import RunResult


def synthetic_marks(
    study: Path,
    *,
    backbone_identity: Mapping[str, Any],
    rating_run: str | None,
    has_ratings_of_study: bool,
) -> tuple[str, ...]:
    """What of the data or the backbone is synthetic, in words; empty where nothing is.

    Args:
        study: Whose pairs are learnt from.
        backbone_identity: Of the backbone.
        rating_run: Which of the study's rating runs is read; None: any.
        has_ratings_of_study: Whether its ratings are read at all.
    """
    if has_ratings_of_study:
        parts = synthetic_in(study, run=rating_run)
    else:
        opened = open_study(study)
        parts = synthetic_parts((read_manifest(opened, label) for label in labels_of(opened)), ())
    if f"sha256:{folder_digest(judge_path())}" in backbone_identity.values():
        parts = (*parts, "backbone (the demonstration judge)")
    return parts


def about_run(
    fitting: Fitting, *, backbone_name: str, synthetic: tuple[str, ...]
) -> dict[str, Any]:
    """What `training.json` says besides the run's identity."""
    return {
        "backbone_name": backbone_name,
        "num_pairs": len(fitting.split.train_rows),
        "num_evaluation_pairs": len(fitting.split.evaluation_rows),
        "head_ids": list(fitting.examples.head_ids),
        "notes": list(fitting.examples.notes),
        "synthetic": list(synthetic),
        "versions": package_versions(),
    }


def model_metadata(
    fitting: Fitting, model: MultiHeadRewardModel, *, about: Mapping[str, Any], result: RunResult
) -> dict[str, Any]:
    """What a model's folder says of where the model comes from; no machine's paths."""
    return {
        "run_key": fitting.run.key,
        **fitting.run.identity,
        **about,
        "objective": fitting.config.objective,
        "mean": model.mean_R.tolist(),
        "num_steps": result.num_steps,
        "evaluation": result.evaluation,
    }
