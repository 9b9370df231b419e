"""The named recipes. Each is a function without arguments: what it returns is the whole recipe.

Choices that the paper leaves open (which release of Skywork's model, lengths, batches) are ours and
stated here; the rest is cited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from encore import demo as shipped_demo
from encore.config import EngineValue, JudgeConfig, RatingConfig
from encore.demo.benchmark import benchmark_data_path, benchmark_path
from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.recipes.recipe import Recipe, RowModel, TablePlan, Weighing
from encore.training.config import TrainingConfig

RecipeName = Literal[
    "hh_pku_encore_10", "fsfairx", "hh_full_8b_10", "hh_full_8b_20", "top_5", "probe", "demo"
]
RECIPE_NAMES: tuple[RecipeName, ...] = get_args(RecipeName)

JUDGE_70B = "meta-llama/Meta-Llama-3-70B-Instruct"
JUDGE_8B = "meta-llama/Meta-Llama-3-8B-Instruct"
#: The paper cites the report on Skywork's reward models, not a release. The second one was trained
#: after pairs that overlap with RewardBench had been taken out of its data.
SKYWORK = "Skywork/Skywork-Reward-Llama-3.1-8B-v0.2"
FSFAIRX = "sfairXC/FsfairX-LLaMA3-RM-v0.1"
#: What "Bradley-Terry" without a reward model's weights starts from (Table 1, Table 2).
LLAMA_3_1 = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_3 = "meta-llama/Meta-Llama-3-8B-Instruct"

#: Their dimensions by a short name of `encore plan`: known before the hub is asked.
SHAPE_OF: Mapping[str, str] = {
    JUDGE_70B: "llama-3-70b",
    JUDGE_8B: "llama-3-8b",
    SKYWORK: "llama-3.1-8b",
    FSFAIRX: "llama-3-8b",
    LLAMA_3_1: "llama-3.1-8b",
    LLAMA_3: "llama-3-8b",
}

#: The paper's names of the two trained baselines, ours of the row that it leaves out.
BRADLEY_TERRY = "bradley-terry-model"
BRADLEY_TERRY_INITIALISED = "bradley-terry-model-initialised"
INITIAL_MODEL = "initial model"

#: The gate's steps as its authors published them (Wang et al., 2024).
_GATE_STEPS = 2000
#: Of the study's own pairs: enough for the heads' accuracies to a percent, minutes on a GPU.
_SCORED_PAIRS = 10_000
#: One checkpoint of 8 billion weights with AdamW's states is 45 GB.
_KEPT_CHECKPOINTS = 1


def hh_pku_encore_10() -> Recipe:
    """The paper's main experiment: Table 1, and Table 4 by the same training."""
    return Recipe(
        name="hh_pku_encore_10",
        about="The paper's main experiment: 70K pairs of HH and PKU, ten rules rated by Llama 3 "
        "70B, a multi-head model from Skywork's, every row of Table 1 but the judges'",
        sources=("hh-pku",),
        rating=_rating(JUDGE_70B),
        backbone=BackboneConfig(model=SKYWORK),
        training=_training(),
        rows=_paper_rows(initial=SKYWORK, plain=LLAMA_3_1),
        gate_steps=_GATE_STEPS,
        score_limit=_SCORED_PAIRS,
        export_dtype="bfloat16",
    )


def fsfairx() -> Recipe:
    """The paper's second backbone (Table 2); pairs, rules and ratings as in the main experiment."""
    return _changed(
        hh_pku_encore_10(),
        name="fsfairx",
        about="The paper's second backbone: the main experiment's ratings, a multi-head model "
        "from FsfairX, every row of Table 2 but the judge's",
        backbone=BackboneConfig(model=FSFAIRX),
        rows=_paper_rows(initial=FSFAIRX, plain=LLAMA_3),
        table=TablePlan(paper="fsfairx"),
    )


def hh_full_8b_10() -> Recipe:
    """All of HH rated by the 8B judge (the paper's figure of 170K pairs, ten rules).

    The paper reports entropies and correlations of these ratings and trains nothing on them: the
    model and the table are ours, and no figure of the paper stands beside them.
    """
    return _changed(
        hh_pku_encore_10(),
        name="hh_full_8b_10",
        about="All 170K pairs of HH, ten rules rated by Llama 3 8B: the paper's appendix on other "
        "judges; the model trained on them is ours",
        sources=("hh",),
        rating=_rating(JUDGE_8B),
        rows=(_initial(SKYWORK),),
        gate_steps=None,
        table=TablePlan(paper="none"),
    )


def hh_full_8b_20() -> Recipe:
    """The same with twenty rules."""
    return _changed(
        hh_full_8b_10(),
        name="hh_full_8b_20",
        about="All 170K pairs of HH, twenty rules rated by Llama 3 8B: the paper's appendix on "
        "more rules; the model trained on them is ours",
        rating=_rating(JUDGE_8B, rules="encore-20"),
    )


def top_5() -> Recipe:
    """The paper's rule selection (Table 4): the five rules of lowest entropy, averaged.

    Ratings and training are the main experiment's: in its study nothing is rated or trained again.
    """
    return _changed(
        hh_pku_encore_10(),
        name="top_5",
        about="The paper's rule selection: the mean of the five rules of lowest entropy, beside "
        "five random rules and single ones (Table 4)",
        weighing=Weighing(scheme="top-k", k=5),
        gate_steps=None,
        table=TablePlan(schemes=("uniform", "top-k", "random-k", "single")),
    )


def probe() -> Recipe:
    """Heads in closed form on the frozen backbone: the whole table without training an 8B model."""
    return _changed(
        hh_pku_encore_10(),
        name="probe",
        about="The main experiment's ratings on a frozen backbone: ten heads in closed form, no "
        "gradient, the table of schemes in minutes once pairs are embedded",
        training=TrainingConfig(method="probe"),
        rows=(_initial(SKYWORK),),
        gate_steps=None,
        score_limit=1000,
    )


def demo() -> Recipe:
    """Everything in small, offline, on synthetic pairs with the shipped synthetic judge."""
    backbone = shipped_demo.backbone_config()
    return Recipe(
        name="demo",
        about="Every stage in small on a CPU, offline; pairs, judge and benchmark are synthetic: "
        "no figure is evidence of anything",
        sources=tuple(f"{label}={path}" for label, path in shipped_demo.data_paths().items()),
        rating=_rating(str(shipped_demo.judge_path()), shard_size=60, engine_args={}),
        backbone=backbone,
        training=shipped_demo.training_config(),
        rows=(
            RowModel(
                name=BRADLEY_TERRY,
                backbone=backbone,
                training=shipped_demo.preference_config(),
            ),
        ),
        gate_steps=200,
        table=TablePlan(benchmark=str(benchmark_path()), data=benchmark_data_path(), paper="none"),
    )


_RECIPES: Mapping[str, Callable[[], Recipe]] = {
    "hh_pku_encore_10": hh_pku_encore_10,
    "fsfairx": fsfairx,
    "hh_full_8b_10": hh_full_8b_10,
    "hh_full_8b_20": hh_full_8b_20,
    "top_5": top_5,
    "probe": probe,
    "demo": demo,
}


def load_recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        InputError: no such recipe.
    """
    if name not in _RECIPES:
        raise InputError(f"recipe {name!r}: expected one of {', '.join(RECIPE_NAMES)}")
    return _RECIPES[name]()


def _rating(
    judge: str,
    *,
    rules: str = "encore-10",
    shard_size: int = 1000,
    engine_args: Mapping[str, EngineValue] | None = None,
) -> RatingConfig:
    config = JudgeConfig(model=judge, engine_args=dict(engine_args or {}))
    return RatingConfig(judge=config, rules=rules, shard_size=shard_size)


def _training() -> TrainingConfig:
    """The paper's: one epoch at 2e-5, every weight."""
    return TrainingConfig(keep_checkpoints=_KEPT_CHECKPOINTS)


def _paper_rows(*, initial: str, plain: str) -> tuple[RowModel, ...]:
    """The paper's two Bradley–Terry rows and the untouched model that one of them starts from."""
    preferences = _training().model_copy(update={"objective": "bradley-terry"})
    return (
        _initial(initial),
        RowModel(
            name=BRADLEY_TERRY_INITIALISED,
            backbone=BackboneConfig(model=initial),
            training=preferences.model_copy(update={"head_init": "own"}),
        ),
        RowModel(name=BRADLEY_TERRY, backbone=BackboneConfig(model=plain), training=preferences),
    )


def _initial(model: str) -> RowModel:
    """A reward model before any training: a row that every table of trained ones needs."""
    return RowModel(name=INITIAL_MODEL, backbone=BackboneConfig(model=model))


def _changed(recipe: Recipe, **changes: object) -> Recipe:
    """Another recipe, checked as a whole."""
    return Recipe.model_validate({**dict(recipe), **changes})
