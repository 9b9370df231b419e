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


def _training(name: str, **settings: Any) -> Any:
    return _of(TrainingConfig, name, **settings)


def _backbone(name: str, **settings: Any) -> Any:
    return _of(BackboneConfig, name, **settings)


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
Revision = Annotated[str | None, _backbone("revision")]
Init = Annotated[Literal["pretrained", "random"], _backbone("init")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16"], _backbone("dtype")]
Pooling = Annotated[Literal["auto", "last", "mean", "class-token"], _backbone("pooling")]
MaxLength = Annotated[int, _backbone("max_length", min=16)]
ChatTemplate = Annotated[str | None, _backbone("chat_template")]
TrustRemoteCode = Annotated[bool, _backbone("trust_remote_code")]

TrainedObjective = Annotated[Objective, _training("objective")]
TrainedMethod = Annotated[Method, _training("method")]
Epochs = Annotated[int, _training("epochs", min=1)]
LearningRate = Annotated[float, _training("learning_rate")]
BatchPairs = Annotated[int, _training("batch_pairs", min=1)]
WarmupSteps = Annotated[int, _training("warmup_steps", min=0)]
WeightDecay = Annotated[float, _training("weight_decay", min=0)]
Layout = Annotated[LayoutName, _training("layout")]
TokensPerMicrobatch = Annotated[int, _training("tokens_per_microbatch", min=1)]
Optimizer = Annotated[OptimizerName, _training("optimizer")]
LoraRank = Annotated[int, _training("lora_rank", min=1)]
LoraAlpha = Annotated[int, _training("lora_alpha", min=1)]
GradientCheckpointing = Annotated[bool | None, _training("gradient_checkpointing")]
EvaluationShare = Annotated[float, _training("evaluation_share")]
EvaluateEvery = Annotated[int | None, _training("evaluate_every", min=1)]
CheckpointEvery = Annotated[int | None, _training("checkpoint_every", min=1)]
KeepCheckpoints = Annotated[int, _training("keep_checkpoints", min=1)]
Heads = Annotated[HeadInit, _training("head_init")]
Seed = Annotated[int, _training("seed", min=0)]
MaxSteps = Annotated[int | None, _training("max_steps", min=1)]


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
