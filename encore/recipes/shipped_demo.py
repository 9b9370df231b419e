"""Make the demo's study from shipped files: synthetic pairs, and ratings that a judge gave them."""

from __future__ import annotations

import shutil
from pathlib import Path

from encore.core.errors import InputError
from encore.data.ingestion import ingest
from encore.data.rating_runs import run_status
from encore.data.study import Study, is_new_study, open_study
from encore.demo import DATA_PATHS, RATINGS_PATH
from encore.recipes.recipe import load_recipe


def make_demo_study(folder: Path, *, num_shards_left_out: int = 0) -> tuple[Study, Path]:
    """Ingest the demo's pairs into a study and add the shipped run of ratings; return both.

    Nothing is rated, so neither torch nor vLLM is needed. What the study already has stays.

    Args:
        folder: Directory of the study; created if it does not exist.
        num_shards_left_out: Number of the run's first shards that are left for an engine to rate.

    Raises:
        InputError: The study has other pairs.
        EncoreError: The study cannot be written.
    """
    labels = () if is_new_study(folder) else open_study(folder).labels
    if other_labels := sorted(set(labels) - set(DATA_PATHS)):
        raise InputError(
            f"study {folder}: it has pairs labelled {', '.join(other_labels)}, which are not the "
            "demo's; name a new folder: encore demo NEW_FOLDER"
        )
    ingest(load_recipe("demo").sources, out=folder)
    study = open_study(folder)
    [shipped_dir] = RATINGS_PATH.iterdir()
    run_dir = study.ratings_dir / shipped_dir.name
    if not (run_dir.is_dir() and run_status(run_dir).is_complete):
        # A copy that was cut off is repaired by the next one: a shard's name has its digest.
        left_out = [f"*-{index:05d}.*" for index in range(num_shards_left_out)]
        ignored = shutil.ignore_patterns(*left_out)
        shutil.copytree(shipped_dir, run_dir, dirs_exist_ok=True, ignore=ignored)
    return study, run_dir
