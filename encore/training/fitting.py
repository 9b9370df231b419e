"""From a backbone to a fitted model: steps from the newest checkpoint on, or heads at one go."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from encore.model.config import BackboneConfig
from encore.model.fusing import fuse_elementwise, has_compiler
from encore.model.loading import load_reward_model
from encore.model.reward_model import MultiHeadRewardModel
from encore.training.config import TrainingConfig
from encore.training.disk import tensor_bytes
from encore.training.embeddings import OnProgress
from encore.training.evaluation import evaluate
from encore.training.examples import TrainingExamples
from encore.training.keeper import Keeper
from encore.training.loop import run_steps
from encore.training.lora import add_adapters, merge_adapters
from encore.training.optimizers import make_optimizer
from encore.training.probing import solve_heads
from encore.training.ranks import Ranks
from encore.training.recording import RecordingReporter
from encore.training.records import EvaluationRecord, Reporter, SilentReporter, TrainingPlan
from encore.training.room import check_room_for_run
from encore.training.run import TrainingRun
from encore.training.schedule import num_steps_of, steps_per_epoch
from encore.training.splits import Split, move_centres

if TYPE_CHECKING:
    from encore.model.conversation import ConversationTokenizer


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitting:
    """Everything that a model is fitted with.

    Attributes:
        run: Where checkpoints and logs go.
        backbone: What to start from.
        config: How to train.
        examples: Centred on the training pairs.
        split: Which pairs are learnt from.
        tokenizer: Gives the padding token, and goes into the model's folder.
        device: ``cpu`` or ``cuda``.
        ranks: The processes that fit it together.
    """

    run: TrainingRun
    backbone: BackboneConfig
    config: TrainingConfig
    examples: TrainingExamples
    split: Split
    tokenizer: ConversationTokenizer
    device: str
    ranks: Ranks = field(default_factory=Ranks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """A fitted model; adapters are merged into its weights.

    Of several processes the first one's is whole on the CPU, the others' are not to be used.
    """

    model: MultiHeadRewardModel
    num_steps: int
    evaluation: EvaluationRecord | None


def fit(fitting: Fitting, reporter: Reporter, *, on_embedded: OnProgress | None = None) -> Fitted:
    """Load the backbone and fit it, from the newest whole checkpoint on if there is one.

    Args:
        fitting: What with.
        reporter: Hears ``started``, ``stepped``, ``evaluated`` and ``saved``.
        on_embedded: Told how many of how many pairs are embedded (probed heads).

    Raises:
        EncoreError: As `encore.training.driver.train_study`.
    """
    config = fitting.config
    backbone, device = fitting.ranks.loading(fitting.backbone, device=fitting.device)
    model = load_reward_model(
        backbone,
        head_ids=fitting.examples.head_ids,
        seed=config.seed,
        head_init="own" if config.head_init == "own" else "zero",
        device=device,
    )
    model.mean_R.copy_(torch.from_numpy(fitting.examples.mean_R))
    if config.method == "probe":
        return _probe(model, fitting, reporter, on_embedded=on_embedded)
    if config.head_init == "probe":
        # Also before going on from a checkpoint: the centres follow from the probe. States of the
        # untouched backbone are on disk by then.
        fitting = _with_solved_heads(model, fitting, on_embedded=on_embedded)
    return _take_steps(model, fitting, reporter)


def _with_solved_heads(
    model: MultiHeadRewardModel, fitting: Fitting, *, on_embedded: OnProgress | None
) -> Fitting:
    """Write the best linear heads on the frozen backbone; their constants move into the centres."""
    offset_R = solve_heads(
        model,
        fitting.examples.take(fitting.split.train_rows),
        fitting.config,
        cache=fitting.run.embeddings_dir,
        pad_token_id=fitting.tokenizer.pad_token_id,
        on_embedded=on_embedded,
    )
    examples = move_centres(fitting.examples, offset_R)
    model.mean_R.copy_(torch.from_numpy(examples.mean_R))
    return replace(fitting, examples=examples)


def _probe(
    model: MultiHeadRewardModel,
    fitting: Fitting,
    reporter: Reporter,
    *,
    on_embedded: OnProgress | None,
) -> Fitted:
    # Its one evaluation is of step 0: a line that a killed process left goes, too.
    with RecordingReporter(fitting.run, reporter, start_step=-1) as recorder:
        recorder.started(_plan(model, fitting, num_steps=0, start_step=0, num_trained=0))
        fitting = _with_solved_heads(model, fitting, on_embedded=on_embedded)
        evaluation = None
        if len(fitting.split.evaluation_rows):
            evaluation = evaluate(
                model,
                fitting.examples,
                fitting.split.evaluation_rows,
                fitting.config,
                pad_token_id=fitting.tokenizer.pad_token_id,
                step=0,
            )
            recorder.evaluated(evaluation)
    return Fitted(model=model, num_steps=0, evaluation=evaluation)


def _take_steps(model: MultiHeadRewardModel, fitting: Fitting, reporter: Reporter) -> Fitted:
    config, run = fitting.config, fitting.run
    if config.method == "lora":
        add_adapters(model, rank=config.lora_rank, alpha=config.lora_alpha, seed=config.seed)
    if config.gradient_checkpointing or (
        config.gradient_checkpointing is None and fitting.device == "cuda"
    ):
        model.enable_gradient_checkpointing()
    if fitting.device == "cuda" and config.method == "full":
        _fuse_where_possible(model)
    ranks = fitting.ranks
    ranks.shard(model)
    optimizer = make_optimizer(model, config)
    keeper = Keeper(
        model,
        optimizer,
        run=run,
        keep=config.keep_checkpoints,
        device=fitting.device,
        ranks=ranks,
    )
    start_step = keeper.restore()
    check_room_for_run(
        run,
        config,
        checkpoint_bytes=keeper.checkpoint_bytes(),
        model_bytes=tensor_bytes(dict(model.named_parameters())),
    )
    num_steps = num_steps_of(len(fitting.split.train_rows), config)
    with _recording(fitting, reporter, start_step=start_step) as recorder:
        keeper.recorder = recorder if isinstance(recorder, RecordingReporter) else None
        num_trained = sum(tensor.numel() for tensor in keeper.weights().values())
        recorder.started(
            _plan(
                model, fitting, num_steps=num_steps, start_step=start_step, num_trained=num_trained
            )
        )
        run_steps(
            model,
            fitting.examples,
            fitting.split,
            config,
            optimizer=optimizer,
            pad_token_id=fitting.tokenizer.pad_token_id,
            start_step=start_step,
            num_steps=num_steps,
            reporter=recorder,
            save=keeper.save,
            ranks=ranks,
        )
    ranks.gather(model)
    if config.method == "lora":
        merge_adapters(model)
    return Fitted(model=model, num_steps=num_steps, evaluation=keeper.evaluation)


def _recording(
    fitting: Fitting, reporter: Reporter, *, start_step: int
) -> AbstractContextManager[RecordingReporter | SilentReporter]:
    """The first process writes the logs and tells the reporter."""
    if not fitting.ranks.is_first:
        return nullcontext(SilentReporter())
    return RecordingReporter(fitting.run, reporter, start_step=start_step)


def _fuse_where_possible(model: MultiHeadRewardModel) -> None:
    if has_compiler():
        fuse_elementwise(model.trunk)
    else:
        logger.warning(
            "no C compiler (CC, cc, gcc, clang) here: kernels are not fused and training is slower"
        )


def _plan(
    model: MultiHeadRewardModel,
    fitting: Fitting,
    *,
    num_steps: int,
    start_step: int,
    num_trained: int,
) -> TrainingPlan:
    train_rows, examples = fitting.split.train_rows, fitting.examples
    length_P = examples.chosen.lengths + examples.rejected.lengths
    return TrainingPlan(
        num_steps=num_steps,
        steps_per_epoch=steps_per_epoch(len(train_rows), batch_pairs=fitting.config.batch_pairs),
        num_pairs=len(train_rows),
        num_evaluation_pairs=len(fitting.split.evaluation_rows),
        num_tokens_per_epoch=int(length_P[train_rows].sum()),
        num_parameters=model.num_parameters,
        num_trained_parameters=num_trained or model.heads.weight.numel(),
        head_ids=model.head_ids,
        start_step=start_step,
        device=fitting.device,
        out=fitting.run.folder,
        identity={"run_key": fitting.run.key, **fitting.run.identity},
    )
