"""Train a reward model on a study: start a run, or continue it from its last checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from encore.core.errors import InputError
from encore.core.model_files import is_demo_judge
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import package_versions
from encore.data.study import Study, as_study
from encore.model.backbone_shape import find_shape
from encore.model.fusing import fuse_elementwise, has_compiler
from encore.model.held_out_scores import HeldOutScores
from encore.model.load_backbone import (
    backbone_identity,
    has_reward_head,
    load_reward_model,
    load_tokenizer,
    trunk_dtype,
)
from encore.model.saved_model import save_model
from encore.runs.identity import run_key_of
from encore.training import run_folder
from encore.training.baselines.linear_probe import solve_heads
from encore.training.batches import Training
from encore.training.checkpoints import CheckpointManager, checkpoint_steps
from encore.training.disk_space import check_free_space, report_full_disk
from encore.training.distributed import Ranks, joined_ranks
from encore.training.evaluation import evaluate
from encore.training.lora import add_adapters, merge_adapters
from encore.training.optimizers import make_optimizer
from encore.training.run_folder import EvaluationRecord, LogRecord, TrainingResult, TrainingRun
from encore.training.training_examples import (
    Split,
    TrainingExamples,
    add_preference_head,
    centre,
    move_centres,
    read_examples,
    split,
)
from encore.training.training_loop import run_steps
from encore.training.training_options import TrainingRunConfig

if TYPE_CHECKING:
    from encore.model.conversation import ConversationTokenizer
    from encore.model.reward_model import MultiHeadRewardModel

logger = logging.getLogger(__name__)

#: The trained model, its number of steps, its last evaluation as JSON, and its held-out scores.
_Fitted = tuple["MultiHeadRewardModel", int, dict[str, Any] | None, HeldOutScores | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """The inputs of one process that trains a model.

    Attributes:
        run: Identity and folder of the run.
        config: Settings of the run.
        examples: Tokens and targets, centred on the training pairs.
        split: Rows of the training pairs and of the held-out pairs.
        tokenizer: Tokenizer of the backbone.
        device: ``cuda`` or ``cpu``.
        ranks: Processes that train this model together.
        reporter: Receiver of progress; silent in all processes but rank 0.
    """

    run: TrainingRun
    config: TrainingRunConfig
    examples: TrainingExamples
    split: Split
    tokenizer: ConversationTokenizer
    device: str
    ranks: Ranks
    reporter: Reporter

    def log(self, record: LogRecord) -> None:
        """Append the metrics of a step or an evaluation to the run's logs, and report them."""
        if self.ranks.is_rank_zero:
            run_folder.append_record(self.run.folder, record)
        if isinstance(record, run_folder.StepRecord):
            self.reporter.advanced(note=record.summary)


def train(
    study: Study | str | Path, config: TrainingRunConfig, *, reporter: Reporter = SILENT
) -> TrainingResult:
    """Train a reward model, or continue its training, or return the result of a finished run.

    The same config and data always mean the same run. Ratings, texts, the run's folder and the free
    disk space are checked before any weights are loaded. A run has finished when its `result.json`
    exists and matches the files of the model. On a CPU, a run that was killed and continued ends
    with the same bits in weights and logged losses as an uninterrupted run in the same environment
    (package versions, number of threads).

    Processes that torchrun or accelerate starts on one machine train together, one on each GPU.
    Rank 0 reports and writes (`encore.training.distributed`).

    Args:
        study: The opened study, or its directory.
        config: Backbone, training data, settings and output folder.
        reporter: Receiver of progress events.

    Raises:
        InputError: The study or a setting is wrong, ``config.out`` holds a run with another
            configuration, or a setting does not work with several processes.
        EncoreError: Another run trains in this folder, a process of this run has died, the disk is
            too full (`NoRoomError`), or a loss or weight is not finite (`TrainingDivergedError`).
        KeyboardInterrupt: The user stopped the run. Its last checkpoint is kept.
    """
    study, began = as_study(study), time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_heads(config)
    with joined_ranks(device) as ranks:
        ranks.check(config)
        job, metadata = _open_job(study, config, device=device, ranks=ranks, reporter=reporter)
        run, examples, is_writer = job.run, job.examples, ranks.is_rank_zero
        with run_folder.opened_run(run, metadata=metadata) if is_writer else nullcontext():
            ranks.wait()  # until rank 0 has locked the folder
            earlier_result = run_folder.read_result(run)
            result = earlier_result or _fit_and_save(job, metadata=metadata)
    evaluation = result["evaluation"]
    return TrainingResult(
        out=run.folder,
        run_key=run.key,
        model_dir=run.model_dir,
        num_steps=result["num_steps"],
        final_evaluation=None if evaluation is None else EvaluationRecord(**evaluation),
        num_set_aside=examples.num_set_aside,
        notes=examples.notes,
        synthetic=tuple(metadata["synthetic"]),
        is_new=earlier_result is None,
        seconds=time.monotonic() - began,
    )


def _open_job(
    study: Study, config: TrainingRunConfig, *, device: str, ranks: Ranks, reporter: Reporter
) -> tuple[_Job, dict[str, Any]]:
    """Read the data of a run and find its folder; return the job and the facts to record."""
    # Everything that is read from the study becomes plain arrays here.
    tokenizer = load_tokenizer(config.backbone)
    examples = read_examples(
        study,
        tokenizer=tokenizer,
        objective=config.objective,
        ratings=config.ratings,
        run=config.run,
        judge=config.judge,
        limit=config.limit,
        max_set_aside_share=config.max_set_aside_share,
        rating=config.rating,
        **config.table_layout,
    )
    rows = split(examples, evaluation_share=config.evaluation_share, seed=config.seed)
    examples = centre(examples, train_rows=rows.train_rows)
    if config.preference_head != "none":
        examples = add_preference_head(examples)
    # Settings, backbone and data identify the run.
    backbone = backbone_identity(config.backbone, tokenizer)
    identity = run_folder.run_identity(config, backbone=backbone, data_sha256=examples.digest)
    folder = config.out or study.path / run_folder.TRAINING_DIR / run_key_of(identity)
    run = TrainingRun(folder=folder, identity=identity)
    ranks.check_run_key(run.key)
    job = _Job(
        run=run,
        config=config,
        examples=examples,
        split=rows,
        tokenizer=tokenizer,
        device=device,
        ranks=ranks,
        reporter=reporter if ranks.is_rank_zero else SILENT,
    )
    for note in examples.notes:
        if "chat template" in note:  # said before the backbone is loaded
            job.reporter.message(note)
    return job, _metadata(job, backbone=backbone)


def _check_heads(config: TrainingRunConfig) -> None:
    """Raise if the objective or the backbone does not fit the heads and their start."""
    if (config.objective, config.head_init) == ("multi-head", "own"):
        raise InputError(
            "head_init 'own' with objective multi-head: the scores of a reward head are not on the "
            "scale of ratings, so every rule would begin far off; use head_init 'zero' or 'probe', "
            "or objective bradley-terry"
        )
    if config.objective == "bradley-terry" and config.preference_head != "none":
        raise InputError(
            f"preference_head {config.preference_head!r} with objective bradley-terry: its only "
            "head learns preferences already; use preference_head 'none', or objective multi-head"
        )
    if config.preference_head == "frozen" and not has_reward_head(config.backbone):
        raise InputError(
            f"backbone {config.backbone.model!r}: preference_head 'frozen' keeps the head of a "
            "reward model, and this backbone has none; expected pretrained weights of a causal "
            "…ForSequenceClassification with one label: name the reward model that you start from "
            "(`encore export` makes one of a trained model), or use preference_head 'joint'"
        )


def _metadata(job: _Job, *, backbone: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts for people that are recorded beside the run's identity."""
    examples = job.examples
    is_demo = is_demo_judge(backbone["revision"])
    backbone_marks = ["backbone (the demonstration judge)"] if is_demo else []
    return {
        "config": job.config.training.model_dump(mode="json"),
        "backbone_name": str(backbone["name"]),
        "num_pairs": len(job.split.train_rows),
        "num_evaluation_pairs": len(job.split.evaluation_rows),
        "head_ids": list(examples.head_ids),
        "num_set_aside": examples.num_set_aside,
        "notes": list(examples.notes),
        "synthetic": [*examples.synthetic, *backbone_marks],
        "versions": package_versions(),
        **({"ratings": examples.ratings.as_dict()} if examples.ratings else {}),
    }


def _fit_and_save(job: _Job, *, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Fit the model, save it, and then mark the run as finished."""
    _check_disk_space(job)
    model, num_steps, evaluation, held_out = _fit(job)
    run = job.run
    result = {"num_steps": num_steps, "evaluation": evaluation}
    if not job.ranks.is_rank_zero:
        return result
    model_metadata = {
        "run_key": run.key,
        **run.identity,
        **metadata,
        "objective": job.config.objective,
        "mean": model.mean_R.tolist(),
        **result,
    }
    kept_work = "the last checkpoint is kept"
    with report_full_disk(run.folder, purpose="the trained model", kept_work=kept_work):
        save_model(
            run.model_dir,
            model,
            job.tokenizer,
            metadata=model_metadata,
            held_out=None if job.config.preference_head == "none" else held_out,
        )
        run_folder.write_result(run, num_steps=num_steps, evaluation=evaluation)
    job.reporter.saved(run.model_dir, kind="model")
    return result


def _fit(job: _Job) -> _Fitted:
    """Load the model and fit it by the config's method, with adapters merged at the end.

    With several processes, the model of rank 0 is complete and on the CPU. Those of the other
    processes must not be used.
    """
    config = job.config
    backbone, device = job.ranks.loading_options(config.backbone, device=job.device)
    job.reporter.started("loading the backbone")
    starts_at_own_head = config.head_init == "own" or (
        config.preference_head != "none" and has_reward_head(backbone)
    )
    model = load_reward_model(
        backbone,
        head_ids=job.examples.head_ids,
        seed=config.seed,
        head_init="own" if starts_at_own_head else "zero",
        device=device,
    )
    if config.preference_head != "none":
        model.heads.weight.data[1:] = 0.0  # rules do not start at a reward head
    training = Training(
        model=model,
        examples=job.examples,
        split=job.split,
        config=config,
        pad_token_id=job.tokenizer.pad_token_id,
        ranks=job.ranks,
    )
    if config.method == "probe" or config.head_init == "probe":
        # A run that continues from a checkpoint needs this too: the probe moves the centres. The
        # pooled states of the untouched backbone are then read from the disk.
        offset_R = solve_heads(training, cache=job.run.embeddings_dir, reporter=job.reporter)
        training = replace(training, examples=move_centres(training.examples, offset_R))
    model.mean_R.copy_(torch.from_numpy(training.examples.mean_R))
    if config.method != "probe":
        return _take_steps(training, job)
    # Method probe takes no steps and has one evaluation. A killed process may have logged it.
    _report_plan(job)
    run_folder.truncate_logs(job.run.folder, step=-1)
    evaluated = evaluate(training, step=0)
    if evaluated is None:
        return model, 0, None, None
    record, held_out = evaluated
    job.log(record)
    return model, 0, dataclasses.asdict(record), held_out


def _take_steps(training: Training, job: _Job) -> _Fitted:
    """Train from the last checkpoint, or from the beginning, to the last step."""
    model, config, ranks, reporter = training.model, job.config, job.ranks, job.reporter
    adapters = None
    if config.method == "lora":
        rank, alpha = config.lora_rank, config.lora_alpha
        adapters = add_adapters(model, rank=rank, alpha=alpha, seed=config.seed)
    _prepare(model, job)
    optimizer = make_optimizer(model, config)
    manager = CheckpointManager(training, optimizer, job.run)
    state = manager.restore() or {"step": 0, "evaluation": None}
    start_step, evaluation = state["step"], state["evaluation"]
    resumed = f"; going on after step {start_step:,} of {training.num_steps:,}"
    _report_plan(job, suffix=resumed if start_step else "")
    reporter.started("training", total=training.num_steps, done=start_step)
    if ranks.is_rank_zero:
        run_folder.truncate_logs(job.run.folder, step=start_step)

    last_step_text = ""

    def log(record: LogRecord) -> None:
        job.log(record)
        nonlocal last_step_text
        if isinstance(record, run_folder.StepRecord):
            last_step_text = f"step {record.step} of {training.num_steps}: {record.summary}"
        elif record.loss is not None:
            reporter.message(f"{last_step_text}; held-out loss {record.loss:.4g}")

    def save(step: int, record: EvaluationRecord | None) -> None:
        if ranks.is_rank_zero:
            run_folder.sync_logs(job.run.folder)  # a checkpoint is never ahead of the logs
        nonlocal evaluation
        evaluation = None if record is None else dataclasses.asdict(record)
        reporter.saved(manager.save(step, evaluation=evaluation), kind="checkpoint")

    held_out = run_steps(training, optimizer, start_step=start_step, on_record=log, save=save)
    if held_out is None and config.preference_head != "none":  # stopped after the last checkpoint
        _, held_out = evaluate(training, step=training.num_steps) or (None, None)
    reporter.finished()
    ranks.gather_model(model)
    if adapters is not None:
        merge_adapters(adapters)
    return model, training.num_steps, evaluation, held_out


def _prepare(model: MultiHeadRewardModel, job: _Job) -> None:
    """Set up gradient checkpointing, compiled kernels and shards as the config and device say."""
    config, is_cuda = job.config, job.device == "cuda"
    if config.gradient_checkpointing or (config.gradient_checkpointing is None and is_cuda):
        model.enable_gradient_checkpointing()
    if is_cuda and config.method == "full":
        if has_compiler():
            fuse_elementwise(model.trunk)
        else:
            logger.warning("no C compiler (CC, cc, gcc, clang) here: training is slower")
    job.ranks.shard(model)


def _report_plan(job: _Job, *, suffix: str = "") -> None:
    """Report in one line how many pairs, tokens and heads are trained."""
    rows, held_out = job.split
    job.reporter.finished(
        f"training on {job.device}: {len(rows):,} pairs ({job.examples.length_P[rows].sum():,} "
        f"tokens an epoch), {len(held_out):,} held out; {len(job.examples.head_ids)} heads{suffix}"
    )


def _check_disk_space(job: _Job) -> None:
    """Refuse a run whose checkpoints and model do not fit on the disk.

    The sizes follow from config.json alone and are lower bounds. A backbone of an unknown kind is
    not checked here; writing its checkpoints and model checks the space again.
    """
    config = job.config
    try:
        shape = find_shape(config.backbone.model, revision=config.backbone.revision)
    except InputError:
        return
    model_bytes = shape.num_parameters * trunk_dtype(config.backbone, job.device).itemsize
    # Weights and AdamW's two averages, in the number format of the weights.
    checkpoint_bytes = 3 * model_bytes if config.method == "full" else 0
    # The model is written beside the kept checkpoints. A new checkpoint is written before the
    # oldest one is deleted.
    num_new = max(0, config.keep_checkpoints - len(checkpoint_steps(job.run.checkpoints_dir)))
    num_bytes = num_new * checkpoint_bytes + max(checkpoint_bytes, model_bytes)
    check_free_space(job.run.folder, num_bytes, purpose="this run (its checkpoints and its model)")
