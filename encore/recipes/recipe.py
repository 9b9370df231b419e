"""A recipe: every choice between preference pairs and a benchmark's table, as a TOML file.

The shipped ones lie beside this file; `encore.recipes.recipe_run` runs one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, ValidationError, model_validator

from encore.benchmarks.benchmark_config import BenchmarkConfig
from encore.core.config import StageConfig, option
from encore.core.errors import InputError, first_problem
from encore.data.sources.pku import Prefer
from encore.model.backbone_config import BackboneConfig
from encore.rating.rating_config import EngineRatingConfig
from encore.training.training_config import GateConfig, TrainingConfig
from encore.weighting.schemes import SCHEMES
from encore.weighting.weights_config import SchemeOptions

RecipeName = Literal[
    "hh_pku_encore_10", "fsfairx", "hh_full_8b_10", "hh_full_8b_20", "top_5", "probe", "demo"
]
RECIPE_NAMES: tuple[RecipeName, ...] = get_args(RecipeName)

#: In place of a backbone's folder: the recipe's initial reward model.
INITIAL = "{initial}"
_FOLDER = Path(__file__).parent


class Weighing(SchemeOptions):
    """How rules are weighed, as in `encore weights`."""

    scheme: str = option(
        "encore", choices=SCHEMES, help=f"How rules are weighed, one of: {', '.join(SCHEMES)}."
    )


class RowModel(StageConfig):
    """A reward model with one head: a row of the table, trained on preferences or as it is.

    A row named after a method of the paper (``bradley-terry-model``,
    ``bradley-terry-model-initialised``) stands beside the paper's figure.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9 -]*$", description="Of the row.")
    backbone: BackboneConfig
    training: TrainingConfig | None = None

    @model_validator(mode="after")
    def _is_opened_as_it_says(self) -> Self:
        if self.training is not None:
            if self.training.objective != "bradley-terry":
                raise ValueError(f"row {self.name!r} has one head: expected bradley-terry training")
            return self
        idle = sorted(self.backbone.model_fields_set - {"model", "revision"})
        if idle:
            raise ValueError(
                f"row {self.name!r}: a reward model without training is opened as it was "
                f"downloaded; leave out {', '.join(idle)}, or give the row a training"
            )
        return self

    @property
    def stage(self) -> str:
        """Of its training."""
        return f"train-{self.name.replace(' ', '-')}"


class InitialModel(StageConfig):
    """A reward model to start from: a head in closed form, learnt from pairs of its own."""

    sources: tuple[str, ...] = Field(min_length=1, description="As for `encore ingest`.")
    backbone: BackboneConfig


class Recipe(StageConfig):
    """A run from pairs to the table and an export."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_]*$", max_length=48)
    """On the command line; also names its folder in the study."""
    about: str = Field(min_length=1)
    """What it is for, a sentence."""
    sources: tuple[str, ...] = Field(min_length=1)
    """As for `encore ingest`."""
    prefer: Prefer | None = None
    """As for `encore ingest`."""
    rating: EngineRatingConfig
    weighing: Weighing = Weighing()
    backbone: BackboneConfig
    training: TrainingConfig
    initial: InitialModel | None = None
    """A backbone named ``{initial}`` is this model; none: all are to be had."""
    rows: tuple[RowModel, ...] = ()
    """Reward models beside the multi-head one."""
    gate: GateConfig | None = None
    """The paper's MoE baseline; none: no gate."""
    score_limit: Annotated[int, Field(ge=1)] | None = None
    """Pairs of the study that every head scores; none: all."""
    judge_row: str | None = None
    """The table's row of the judge's own ratings, weighed; none: no such row."""
    export_heads: bool = False
    """Also export the model with a label for every head."""
    benchmark: BenchmarkConfig = BenchmarkConfig()
    """The table; models, gate and run are the recipe's own."""
    export_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the exported model."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [row.name for row in self.rows]
        problem = ""
        if self.training.objective != "multi-head":
            problem = f"training objective {self.training.objective}, expected multi-head"
        elif len(set(names)) < len(names):
            problem = f"rows {', '.join(names)}: expected a name of its own for each"
        elif self.weighing.scheme == "single":
            problem = "weighing scheme 'single' needs a rule, and a recipe names none"
        elif any(backbone.model == INITIAL for _, backbone, _ in self.models):
            problem = f"backbone {INITIAL}, and no [initial] says what it learns from"
        if problem:
            raise ValueError(f"recipe {self.name}: {problem}")
        return self

    @property
    def models(self) -> list[tuple[str, BackboneConfig, TrainingConfig | None]]:
        """Stage, backbone and training of each model; an initial one stands for its backbone."""
        rows = [(row.stage, row.backbone, row.training) for row in self.rows]
        return [
            (stage, self.initial.backbone if self.initial and of.model == INITIAL else of, training)
            for stage, of, training in (("train", self.backbone, self.training), *rows)
        ]


class DemoConfig(StageConfig):
    """Where the demo goes."""

    study: Path = option(
        Path("demo-study"), name="out", help="Where the study goes; an existing demo is continued."
    )
    backend: Literal["vllm", "transformers"] | None = option(
        None, help="The judge's engine; default: vLLM, transformers where it is missing."
    )


def load_recipe(name: str | Path) -> Recipe:
    """The shipped recipe of a name, or one's own in a TOML file.

    Raises:
        InputError: No such recipe or file; what is wrong in it.
    """
    path = _FOLDER / f"{name}.toml" if name in RECIPE_NAMES else Path(name)
    if not path.is_file():
        raise InputError(
            f"recipe {str(name)!r}: expected one of {', '.join(RECIPE_NAMES)}, or a TOML file"
        )
    try:
        text = path.read_text(encoding="utf-8").replace("{encore}", _FOLDER.parent.as_posix())
        content = tomllib.loads(text)
    except ValueError as error:
        raise InputError(f"recipe {path}: {error}; correct the TOML") from error
    return _checked(content, path)


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with some of its values changed, given as a recipe's TOML has them.

    A pilot has a name of its own: its table and export must not be taken for the whole run's.

    Raises:
        InputError: No recipe has such a value.
    """
    content = recipe.model_dump(exclude_unset=True)
    rating = changes.get("rating", {})
    backend = recipe.rating.judge.backend
    if rating.get("judge", {}).get("backend", backend) != backend:
        content["rating"]["judge"].pop("engine_args", None)  # they are of the other engine
    if rating.get("limit") is not None:
        content["name"] = f"{recipe.name}_pilot_{rating['limit']}"
    return _checked(_merged(content, changes), f"{recipe.name} with changes")


def _merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}


def _checked(content: Mapping[str, Any], where: Path | str) -> Recipe:
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        problem = first_problem(error)
        raise InputError(f"recipe {where}: {problem.path}: {problem.message}") from error
