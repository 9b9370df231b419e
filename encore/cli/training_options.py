"""The options that say what a training run is, for every command that starts one.

Defaults and explanations are those of the configs, so that there is one of each.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel, ValidationError

from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.training.config import (
    HeadInit,
    LayoutName,
    Method,
    Objective,
    OptimizerName,
    TrainingConfig,
)


def _of(config: type[BaseModel], name: str, **settings: Any) -> Any:
    return typer.Option(help=config.model_fields[name].description, **settings)


def _of_training(name: str, **settings: Any) -> Any:
    return _of(TrainingConfig, name, **settings)


def _of_backbone(name: str, **settings: Any) -> Any:
    return _of(BackboneConfig, name, **settings)


#: Panels of the help text.
_STEPS = "Steps"
_MEMORY = "Memory and speed"
_KEPT = "Evaluation and checkpoints"
_BACKBONE = "Backbone"

#: Where the options get their defaults.
DEFAULT = TrainingConfig()

Backbone = Annotated[
    str,
    typer.Option(
        metavar="FOLDER_OR_ID",
        help="What to start from: a folder with config.json, a tokenizer and *.safetensors, or a "
        "hub id such as meta-llama/Llama-3.1-8B-Instruct.",
    ),
]
Revision = Annotated[str | None, _of_backbone("revision", rich_help_panel=_BACKBONE)]
Init = Annotated[Literal["pretrained", "random"], _of_backbone("init", rich_help_panel=_BACKBONE)]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"], _of_backbone("dtype", rich_help_panel=_MEMORY)
]
Pooling = Annotated[
    Literal["auto", "last", "mean", "class-token"],
    _of_backbone("pooling", rich_help_panel=_BACKBONE),
]
MaxLength = Annotated[int, _of_backbone("max_length", rich_help_panel=_BACKBONE, min=16)]
ChatTemplate = Annotated[str | None, _of_backbone("chat_template", rich_help_panel=_BACKBONE)]
TrustRemoteCode = Annotated[bool, _of_backbone("trust_remote_code", rich_help_panel=_BACKBONE)]

TrainedObjective = Annotated[Objective, _of_training("objective")]
TrainedMethod = Annotated[Method, _of_training("method")]
Epochs = Annotated[int, _of_training("epochs", rich_help_panel=_STEPS, min=1)]
LearningRate = Annotated[float, _of_training("learning_rate", rich_help_panel=_STEPS)]
BatchPairs = Annotated[int, _of_training("batch_pairs", rich_help_panel=_STEPS, min=1)]
WarmupSteps = Annotated[int, _of_training("warmup_steps", rich_help_panel=_STEPS, min=0)]
WeightDecay = Annotated[float, _of_training("weight_decay", rich_help_panel=_STEPS, min=0)]
Layout = Annotated[LayoutName, _of_training("layout", rich_help_panel=_MEMORY)]
TokensPerMicrobatch = Annotated[
    int | None, _of_training("tokens_per_microbatch", rich_help_panel=_MEMORY, min=1)
]
Optimizer = Annotated[OptimizerName, _of_training("optimizer", rich_help_panel=_MEMORY)]
LoraRank = Annotated[int, _of_training("lora_rank", rich_help_panel=_MEMORY, min=1)]
LoraAlpha = Annotated[int, _of_training("lora_alpha", rich_help_panel=_MEMORY, min=1)]
GradientCheckpointing = Annotated[
    bool | None, _of_training("gradient_checkpointing", rich_help_panel=_MEMORY)
]
EvaluationShare = Annotated[float, _of_training("evaluation_share", rich_help_panel=_KEPT)]
EvaluateEvery = Annotated[int | None, _of_training("evaluate_every", rich_help_panel=_KEPT, min=1)]
CheckpointEvery = Annotated[
    int | None, _of_training("checkpoint_every", rich_help_panel=_KEPT, min=1)
]
KeepCheckpoints = Annotated[int, _of_training("keep_checkpoints", rich_help_panel=_KEPT, min=1)]
Heads = Annotated[HeadInit, _of_training("head_init", rich_help_panel=_STEPS)]
Seed = Annotated[int, _of_training("seed", rich_help_panel=_STEPS, min=0)]
MaxSteps = Annotated[int | None, _of_training("max_steps", rich_help_panel=_STEPS, min=1)]


def backbone_config(**settings: Any) -> BackboneConfig:
    """The backbone that the options describe.

    Raises:
        InputError: A value out of range: the option, the value, what was expected.
    """
    try:
        return BackboneConfig(**settings)
    except ValidationError as error:
        raise _bad_option(error, names={"model": "backbone"}) from error


def training_config(**settings: Any) -> TrainingConfig:
    """The config that the options describe: the same options, the same run.

    Raises:
        InputError: A value out of range, or options that contradict each other.
    """
    try:
        return TrainingConfig(**settings)
    except ValidationError as error:
        raise _bad_option(error, names={}) from error


def _bad_option(error: ValidationError, *, names: dict[str, str]) -> InputError:
    problem = error.errors(include_url=False)[0]
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:  # of the options together
        return InputError(message)
    name = str(problem["loc"][0])
    option = names.get(name, name).replace("_", "-")
    return InputError(f"--{option} {problem['input']!r}: {message}")
