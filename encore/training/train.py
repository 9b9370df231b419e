"""Train a reward model on a study: begin, or go on where an earlier process stopped."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from encore.core.errors import EncoreError, InputError
from encore.core.model_files import is_demo_judge
from encore.core.reporting import SILENT, Reporter
from encore.core.versions import package_versions
from encore.data.study import Study
from encore.model.backbone_shape import find_shape
from encore.model.fusing import fuse_elementwise, has_compiler
from encore.model.loading import backbone_identity, load_reward_model, load_tokenizer, trunk_dtype
from encore.model.saved_model import save_model
from encore.runs.run_files import run_key_of
from encore.training import run_folder
from encore.training.baselines.linear_probe import solve_heads
from encore.training.batches import Training
from encore.training.checkpoints import CheckpointManager, checkpoint_steps
from encore.training.disk import check_room, named_when_full
from encore.training.evaluation import evaluate
from encore.training.lora import add_adapters, merge_adapters
from encore.training.optimizers import make_optimizer
from encore.training.ranks import Ranks, joined_ranks
from encore.training.run_folder import EvaluationRecord, Record, TrainingResult, TrainingRun
from encore.training.training_config import TrainConfig
from encore.training.training_examples import (
    Split,
    TrainingExamples,
    centre,
    move_centres,
    read_examples,
    split,
)
from encore.training.training_loop import run_steps

if TYPE_CHECKING:
    from encore.model.conversation import ConversationTokenizer
    from encore.model.reward_model import MultiHeadRewardModel

logger = logging.getLogger(__name__)

#: The trained model, its number of steps and its last evaluation as JSON.
_Fitted = tuple["MultiHeadRewardModel", int, dict[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """What a model is fitted with; of several processes only rank 0 reports."""

    run: TrainingRun
    config: TrainConfig
    examples: TrainingExamples
    split: Split
    tokenizer: ConversationTokenizer
    device: str
    ranks: Ranks
    reporter: Reporter

    def keep(self, record: Record) -> None:
        """Log and report a step or an evaluation."""
        if self.ranks.is_rank_zero:
            run_folder.append_record(self.run.folder, record)
        if isinstance(record, run_folder.StepRecord):
            self.reporter.advanced(note=record.summary)


def train(study: Study, config: TrainConfig, *, reporter: Reporter = SILENT) -> TrainingResult:
    """Train, or continue, or report at once what is there already.

    The same config always means the same run. What is cheap to check comes first: ratings, tokens,
    the run's folder and the free space, before any weights are loaded. On a CPU a run that was
    killed and continued ends bit-identical, in weights and logged losses, to an undisturbed one in
    the same environment (versions, threads). A run has ended when its `result.json` and the digests
    of its model's files say so.

    Processes that torchrun or accelerate launch started on a machine train together, one a GPU;
    rank 0 reports and writes (`encore.training.ranks`).

    Raises:
        InputError: Bad input; ``config.out`` holds a run of another configuration; a setting that
            several processes cannot have.
        EncoreError: Another run trains in this folder or a process of this one has died; the disk
            is too full (`NoRoomError`); a loss or weight is not finite (`TrainingDivergedError`).
        KeyboardInterrupt: The last checkpoint is kept.
    """
    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with joined_ranks(device) as ranks:
        ranks.check(config)
        job, about = _job(study, config, device=device, ranks=ranks, reporter=reporter)
        with run_folder.opened_run(job.run, about=about) if ranks.is_rank_zero else nullcontext():
            ranks.wait()  # until the run is this one's
            found = run_folder.read_result(job.run)
            ended = found or _fit_and_save(job, about=about)
    evaluation = ended["evaluation"]
    return TrainingResult(
        out=job.run.folder,
        run_key=job.run.key,
        model_dir=job.run.model_dir,
        num_steps=ended["num_steps"],
        final_evaluation=None if evaluation is None else EvaluationRecord(**evaluation),
        notes=tuple(about["notes"]),
        synthetic=tuple(about["synthetic"]),
        is_new=found is None,
        seconds=time.monotonic() - began,
    )


def _job(
    study: Study, config: TrainConfig, *, device: str, ranks: Ranks, reporter: Reporter
) -> tuple[_Job, dict[str, Any]]:
    """Read the data, and find out which run it is and what people may want to know of it."""
    tokenizer = load_tokenizer(config.backbone)
    origin = backbone_identity(config.backbone, tokenizer)
    wanted = config.model_dump(include={"objective", "ratings", "run", "judge", "limit"})
    examples = read_examples(study, tokenizer=tokenizer, **wanted)
    parts = split(examples, evaluation_share=config.evaluation_share, seed=config.seed)
    identity = run_folder.run_identity(config, origin=origin, data_sha256=examples.digest)
    key = run_key_of(identity)
    if not ranks.agree(int(key[:15], 16)):  # as many digits as an int64 holds
        raise EncoreError(
            f"run key {key}: another process read other data or another backbone; expected the "
            "same in all: wait until nothing changes them (a revision pins a model) and start again"
        )
    job = _Job(
        run=TrainingRun(
            folder=config.out or study.path / run_folder.TRAINING_DIR / key, identity=identity
        ),
        config=config,
        examples=centre(examples, train_rows=parts.train_rows),
        split=parts,
        tokenizer=tokenizer,
        device=device,
        ranks=ranks,
        reporter=reporter if ranks.is_rank_zero else SILENT,
    )
    is_demo = is_demo_judge(origin["revision"])
    backbone_marks = ["backbone (the demonstration judge)"] if is_demo else []
    return job, {
        "backbone_name": str(origin["name"]),
        "num_pairs": len(parts.train_rows),
        "num_evaluation_pairs": len(parts.evaluation_rows),
        "head_ids": list(examples.head_ids),
        "notes": list(examples.notes),
        "synthetic": [*examples.synthetic, *backbone_marks],
        "versions": package_versions(),
        **({"ratings": dataclasses.asdict(examples.ratings)} if examples.ratings else {}),
    }


def _fit_and_save(job: _Job, *, about: Mapping[str, Any]) -> dict[str, Any]:
    """Fit, save the model, and say last of all that the run has ended."""
    _check_room(job)
    model, num_steps, evaluation = _fit(job)
    run = job.run
    ended = {"num_steps": num_steps, "evaluation": evaluation}
    if not job.ranks.is_rank_zero:
        return ended
    metadata = {  # where the model comes from; no machine's paths
        "run_key": run.key,
        **run.identity,
        **about,
        "objective": job.config.objective,
        "mean": model.mean_R.tolist(),
        **ended,
    }
    kept = "the last checkpoint is kept"
    with named_when_full(run.folder, purpose="the trained model", kept=kept):
        save_model(run.model_dir, model, job.tokenizer, metadata=metadata)
        run_folder.write_result(run, num_steps=num_steps, evaluation=evaluation)
    job.reporter.saved(run.model_dir, kind="model")
    return ended


def _fit(job: _Job) -> _Fitted:
    """The fitted model, adapters merged.

    Of several processes rank 0's model is whole on the CPU, the others' are not to be used.
    """
    config = job.config
    backbone, device = job.ranks.loading(config.backbone, device=job.device)
    job.reporter.started("loading the backbone")
    model = load_reward_model(
        backbone,
        head_ids=job.examples.head_ids,
        seed=config.seed,
        head_init="own" if config.head_init == "own" else "zero",
        device=device,
    )
    training = Training(
        model=model,
        examples=job.examples,
        split=job.split,
        config=config,
        pad_token_id=job.tokenizer.pad_token_id,
        ranks=job.ranks,
    )
    if config.method == "probe" or config.head_init == "probe":
        # Also before going on from a checkpoint: the centres follow from the probe. States of the
        # untouched backbone are on disk by then.
        offset_R = solve_heads(training, cache=job.run.embeddings_dir, reporter=job.reporter)
        training = replace(training, examples=move_centres(job.examples, offset_R))
    model.mean_R.copy_(torch.from_numpy(training.examples.mean_R))
    return (_evaluate_probe if config.method == "probe" else _take_steps)(training, job)


def _evaluate_probe(training: Training, job: _Job) -> _Fitted:
    model = training.model
    _say_plan(job)
    # Its one evaluation is of step 0: a line that a killed process left goes, too.
    run_folder.cut_logs(job.run.folder, step=-1)
    evaluation = evaluate(training, step=0)
    if evaluation is None:
        return model, 0, None
    job.keep(evaluation)
    return model, 0, dataclasses.asdict(evaluation)


def _take_steps(training: Training, job: _Job) -> _Fitted:
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
    going_on = f"; going on after step {start_step:,} of {training.num_steps:,}"
    _say_plan(job, then=going_on if start_step else "")
    reporter.started("training", total=training.num_steps, done=start_step)
    if ranks.is_rank_zero:
        run_folder.cut_logs(job.run.folder, step=start_step)

    summary = ""

    def keep(record: Record) -> None:
        job.keep(record)
        nonlocal summary
        if isinstance(record, run_folder.StepRecord):
            summary = f"step {record.step} of {training.num_steps}: {record.summary}"
        elif record.loss is not None:
            reporter.message(f"{summary}; held-out loss {record.loss:.4g}")

    def save(step: int, found: EvaluationRecord | None) -> None:
        if ranks.is_rank_zero:
            run_folder.sync_logs(job.run.folder)  # a checkpoint is never ahead of the logs
        nonlocal evaluation
        evaluation = None if found is None else dataclasses.asdict(found)
        reporter.saved(manager.save(step, evaluation=evaluation), kind="checkpoint")

    run_steps(training, optimizer, start_step=start_step, on_record=keep, save=save)
    reporter.finished()
    ranks.gather(model)
    if adapters is not None:
        merge_adapters(adapters)
    return model, training.num_steps, evaluation


def _prepare(model: MultiHeadRewardModel, job: _Job) -> None:
    """Gradient checkpointing, fused kernels and shards, as the config asks for them."""
    config, is_cuda = job.config, job.device == "cuda"
    if config.gradient_checkpointing or (config.gradient_checkpointing is None and is_cuda):
        model.enable_gradient_checkpointing()
    if is_cuda and config.method == "full":
        if has_compiler():
            fuse_elementwise(model.trunk)
        else:
            logger.warning("no C compiler (CC, cc, gcc, clang) here: training is slower")
    job.ranks.shard(model)


def _say_plan(job: _Job, *, then: str = "") -> None:
    """Say in a line what is trained on what."""
    rows, held_out = job.split
    job.reporter.finished(
        f"training on {job.device}: {len(rows):,} pairs ({job.examples.length_P[rows].sum():,} "
        f"tokens an epoch), {len(held_out):,} held out; {len(job.examples.head_ids)} heads{then}"
    )


def _check_room(job: _Job) -> None:
    """Refuse a run that cannot end on this disk, from config.json alone: at the least.

    A backbone of an unknown kind is passed over; its checkpoints and model are refused one by one.
    """
    config = job.config
    try:
        shape = find_shape(config.backbone.model, revision=config.backbone.revision)
    except InputError:
        return
    model_bytes = shape.num_parameters * trunk_dtype(config.backbone, job.device).itemsize
    # Weights and AdamW's two averages in the format of the weights.
    checkpoint_bytes = 3 * model_bytes if config.method == "full" else 0
    # The model is written beside the kept checkpoints; a new checkpoint before an old one goes.
    num_new = max(0, config.keep_checkpoints - len(checkpoint_steps(job.run.checkpoints_dir)))
    needed = num_new * checkpoint_bytes + max(checkpoint_bytes, model_bytes)
    check_room(job.run.folder, needed, purpose="this run (its checkpoints and its model)")
