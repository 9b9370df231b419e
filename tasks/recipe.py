"""Tasks: what no flow but a recipe's has: a look at what it names, gate and export.

What is finished is read from files (`encore.recipes.stages`), so the tasks are neither cached nor
persisted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from encore.recipes.checks import check_within_reach
from encore.recipes.recipe import Recipe
from encore.settings import quiet_environment
from encore.weighting.scheme import SchemeOptions
from tasks.attempts import is_worth_another_attempt, release_memory
from tasks.errors import is_worth_retrying

if TYPE_CHECKING:
    from encore.export.records import ExportResult
    from encore.training.gate import GateResult

_ON_A_DEVICE: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [10.0, 60.0],
    "retry_condition_fn": is_worth_another_attempt,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
#: Pairs on which rankings are counted that the export's number format turns round.
_FLIP_PAIRS = 200


@task(
    name="check-recipe",
    retries=2,  # for the hub's network
    retry_delay_seconds=[5.0, 30.0],
    retry_condition_fn=is_worth_retrying,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def check_recipe(recipe: Recipe) -> None:
    """The benchmark's rows and the backbones can be read: before hours of rating, not after.

    Raises:
        EncoreError: As `encore.recipes.checks.check_within_reach`.
    """
    quiet_environment()
    check_within_reach(recipe)


@task(name="gate", tags={"train"}, **_ON_A_DEVICE)
def train_gate_over(
    study: Path, *, model: Path, num_steps: int, limit: int | None = None
) -> GateResult:
    """The paper's MoE gate over a model's heads, beside the model.

    Raises:
        EncoreError: As `encore.training.gate.train_gate`.
    """
    quiet_environment()
    from encore.data.study import open_study
    from encore.training.gate import GateConfig, TrainGateConfig, train_gate

    gate = GateConfig(num_steps=num_steps)
    config = TrainGateConfig(study=study, model=model, gate=gate, limit=limit)
    try:
        result = train_gate(open_study(study), config)
    except Exception as error:
        release_memory(error)
        raise
    logger = get_run_logger()
    logger.info("%s; %d pairs learnt from, in %s", result.losses, result.num_pairs, result.out)
    for note in result.notes:
        logger.warning(note)
    return result


@task(name="export", **_ON_A_DEVICE)
def export_composed(
    study: Path, *, recipe: Recipe, model: Path, run: str, out: Path
) -> ExportResult:
    """The model with its heads folded by the recipe's scheme, as a plain transformers folder.

    Raises:
        EncoreError: As `encore.export.write_export.export_model`; rules that are not the heads.
    """
    quiet_environment()
    from encore.export import ExportAbout, export_model
    from encore.export.weights_input import scheme_weights
    from encore.model.opening import open_reward_model

    weighing = recipe.weighing
    try:
        # On the CPU: the export is opened beside it, and both may not fit on a GPU.
        opened = open_reward_model(model, device="cpu", dtype="float32")
        composition = scheme_weights(
            study,
            head_ids=opened.model.head_ids,
            scheme=weighing.scheme,
            options=SchemeOptions(tau=weighing.tau, k=weighing.k, seed=weighing.seed),
            run=run,
        )
        return export_model(
            opened,
            out=out,
            weights=composition.weights,
            dtype=recipe.export_dtype,
            about=ExportAbout(composition=composition),
            pairs=_some_pairs(study) if recipe.export_dtype == "bfloat16" else (),
        )
    except Exception as error:
        release_memory(error)
        raise


def _some_pairs(study: Path) -> Any:
    """The first by content hash: a fair sample."""
    from encore.data.pairs import iter_pairs
    from encore.data.study import open_study

    by_hash = sorted(iter_pairs(open_study(study)), key=lambda pair: pair.pair_id)
    return by_hash[:_FLIP_PAIRS]
