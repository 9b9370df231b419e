"""Train a reward model on a study: begin, or go on where an earlier process stopped."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from encore.data.study import open_study
from encore.model.config import BackboneConfig
from encore.model.loading import backbone_identity, load_tokenizer
from encore.model.saved_model import save_model
from encore.training.about import about_run, model_metadata, synthetic_marks
from encore.training.config import TrainingConfig
from encore.training.disk import named_when_full
from encore.training.embeddings import OnProgress
from encore.training.examples import read_examples
from encore.training.fitting import Fitting, fit
from encore.training.machine import available_device, bytes_per_weight
from encore.training.ranks import joined_ranks
from encore.training.records import EvaluationRecord, Reporter, TrainingResult
from encore.training.room import check_room_for_backbone
from encore.training.run import (
    RunResult,
    TrainingRun,
    identity_of,
    opened_run,
    read_result,
    run_folder,
    write_result,
)
from encore.training.splits import centre, split


def train_study(
    study: Path,
    *,
    backbone: BackboneConfig,
    config: TrainingConfig,
    reporter: Reporter,
    ratings: str | Path | Any | None = None,
    run: str | None = None,
    judge: str | None = None,
    limit: int | None = None,
    out: Path | None = None,
    on_embedded: OnProgress | None = None,
) -> TrainingResult:
    """Train, or continue, or report at once what is there already.

    The same arguments always mean the same run. What is cheap to check comes first: study, ratings,
    tokens, the run's folder and the free space, before any weights are loaded. On a CPU a run that
    was killed and continued ends bit-identical, in weights and logged losses, to an undisturbed
    one in the same environment (versions, threads).

    Processes that torchrun or accelerate launch started on a machine train together, one a GPU; the
    first one reports and writes (`encore.training.ranks`).

    Args:
        study: The study's directory.
        backbone: What to start from.
        config: How to train.
        reporter: Hears of the run as it goes.
        ratings: Where the ratings are (None: in the study); not read for bradley-terry.
        run: Which rating run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.
        limit: Only so many pairs, drawn by content hash.
        out: The run's folder (None: ``STUDY/training/<run key>``).
        on_embedded: Told how many of how many pairs are embedded (method ``probe``).

    Raises:
        InputError: Bad input; ``out`` holds a run of another configuration; a setting that several
            processes cannot have.
        EncoreError: Another run trains in this folder or a process of this one has died; the disk
            is too full (`NoRoomError`); a loss or weight is not finite (`TrainingDivergedError`).
        KeyboardInterrupt: The last checkpoint is kept.
    """
    began = time.monotonic()
    device = available_device()
    with joined_ranks(device) as ranks:
        ranks.check(config)
        study = open_study(study).path
        tokenizer = load_tokenizer(backbone)
        examples = read_examples(
            study,
            tokenizer=tokenizer,
            objective=config.objective,
            ratings=ratings,
            run=run,
            judge=judge,
            limit=limit,
        )
        parts = split(examples, evaluation_share=config.evaluation_share, seed=config.seed)
        origin = backbone_identity(backbone, tokenizer)
        identity = identity_of(
            config, backbone=backbone, backbone_identity=origin, data_sha256=examples.digest
        )
        training = TrainingRun(folder=out or run_folder(study, identity), identity=identity)
        ranks.check_same_run(training.key)
        fitting = Fitting(
            run=training,
            backbone=backbone,
            config=config,
            examples=centre(examples, train_rows=parts.train_rows),
            split=parts,
            tokenizer=tokenizer,
            device=device,
            ranks=ranks,
        )
        synthetic = synthetic_marks(
            study,
            backbone_identity=origin,
            rating_run=run,
            has_ratings_of_study=ratings is None and config.objective == "multi-head",
        )
        about = about_run(fitting, backbone_name=str(origin["name"]), synthetic=synthetic)
        with opened_run(training, about=about) if ranks.is_first else nullcontext():
            ranks.wait()  # until the run is this one's
            ended = read_result(training)
            is_new = ended is None
            if ended is None:
                ended = _train(fitting, reporter, about=about, on_embedded=on_embedded)
    evaluation = ended.evaluation
    result = TrainingResult(
        out=training.folder,
        model_dir=training.model_dir,
        num_steps=ended.num_steps,
        final_evaluation=None if evaluation is None else EvaluationRecord(**evaluation),
        notes=examples.notes,
        is_new=is_new,
        seconds=time.monotonic() - began,
    )
    if ranks.is_first:
        reporter.finished(result)
    return result


def _train(
    fitting: Fitting,
    reporter: Reporter,
    *,
    about: Mapping[str, Any],
    on_embedded: OnProgress | None,
) -> RunResult:
    """Fit, save the model, and say last of all that the run has ended."""
    check_room_for_backbone(
        fitting.run,
        fitting.backbone,
        fitting.config,
        bytes_per_weight=bytes_per_weight(fitting.backbone, device=fitting.device),
    )
    fitted = fit(fitting, reporter, on_embedded=on_embedded)
    evaluation = fitted.evaluation
    ended = RunResult(
        num_steps=fitted.num_steps,
        evaluation=None if evaluation is None else dataclasses.asdict(evaluation),
    )
    run = fitting.run
    kept = "the last checkpoint is kept"
    if not fitting.ranks.is_first:
        return ended
    with named_when_full(run.folder, purpose="the trained model", kept=kept):
        save_model(
            run.model_dir,
            fitted.model,
            fitting.tokenizer,
            metadata=model_metadata(fitting, fitted.model, about=about, result=ended),
        )
        write_result(run, ended)
    return ended
