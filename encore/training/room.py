"""How much disk a run needs, looked at before weights are loaded and before the first step."""

from __future__ import annotations

from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.training.backbone_shape import find_shape
from encore.training.checkpoints import checkpoint_steps
from encore.training.config import TrainingConfig
from encore.training.disk import check_room
from encore.training.run import TrainingRun

#: Averages of AdamW, the gradient's and its square's, in the format of the weights.
_NUM_STATES = 2


def check_room_for_backbone(
    run: TrainingRun, backbone: BackboneConfig, config: TrainingConfig, *, bytes_per_weight: int
) -> None:
    """Refuse a run that cannot end on this disk, from config.json alone: at the least.

    A backbone of an unknown kind is passed over here; `check_room_for_run` counts its tensors.

    Raises:
        NoRoomError: Less is free than checkpoints and model take.
    """
    try:
        shape = find_shape(backbone.model, revision=backbone.revision)
    except InputError:
        return
    model_bytes = shape.num_parameters * bytes_per_weight
    checkpoint_bytes = (1 + _NUM_STATES) * model_bytes if config.method == "full" else 0
    _check(run, config, checkpoint_bytes=checkpoint_bytes, model_bytes=model_bytes)


def check_room_for_run(
    run: TrainingRun, config: TrainingConfig, *, checkpoint_bytes: int, model_bytes: int
) -> None:
    """Refuse a run that cannot end on this disk, before its first step.

    Args:
        run: Its checkpoints that are there already need no more room.
        config: Says how many are kept.
        checkpoint_bytes: Of one checkpoint.
        model_bytes: Of the final model.

    Raises:
        NoRoomError: Less is free than checkpoints and model take.
    """
    _check(run, config, checkpoint_bytes=checkpoint_bytes, model_bytes=model_bytes)


def _check(
    run: TrainingRun, config: TrainingConfig, *, checkpoint_bytes: int, model_bytes: int
) -> None:
    # The model is written beside the kept checkpoints; a new checkpoint before an old one goes.
    num_here = min(len(checkpoint_steps(run.checkpoints_dir)), config.keep_checkpoints)
    num_new = config.keep_checkpoints - num_here
    needed = num_new * checkpoint_bytes + max(checkpoint_bytes, model_bytes)
    check_room(run.folder, needed, purpose="this run (its checkpoints and its model)")
