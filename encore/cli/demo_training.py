"""The demo's trainings: one after the other, each shown as it goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from encore.cli.output import out, progress_bar, say
from encore.cli.stopping import stopped_by_sigterm

if TYPE_CHECKING:
    from encore.model.config import BackboneConfig
    from encore.training.config import TrainingConfig
    from encore.training.records import TrainingResult


def train_shown(study: Path, *, backbone: BackboneConfig, config: TrainingConfig) -> TrainingResult:
    """Train, or find what is trained, and say how it does on the pairs held out."""
    from encore.cli.train import heads_table
    from encore.cli.training_progress import ShownTraining
    from encore.training.driver import train_study

    has_ratings = config.objective == "multi-head"
    with progress_bar() as bar, stopped_by_sigterm():
        result = train_study(study, backbone=backbone, config=config, reporter=ShownTraining(bar))
    found = result.final_evaluation
    assert found is not None, "the demo holds pairs out"
    if has_ratings:
        out.print(heads_table(found))
    else:
        assert found.accuracy_half is not None, "preferences on the pairs held out"
        say(
            f"sides with the labels on the {found.num_pairs} held-out pairs: "
            f"{found.accuracy_half:.1%}"
        )
    done = f"trained in {result.seconds:.0f} s" if result.is_new else "trained before"
    say(f"{done}: {result.num_steps} steps; model {result.model_dir}")
    return result
