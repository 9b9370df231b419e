"""A recipe: every choice between preference pairs and a benchmark's table, as a TOML file.

A recipe without a training ends after the weights; such a recipe is what the flow `pipeline` runs.

The shipped recipes lie beside this file; `encore.recipes.recipe_run` runs a recipe.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from encore.benchmarks.benchmark_options import BenchmarkConfig, BenchmarkRunOptions, PairsConfig
from encore.core.config import StageConfig, option
from encore.core.errors import InputError, first_problem
from encore.data.sources.pku import Prefer
from encore.data.study_options import StudyFolder
from encore.judges.server_options import ServerOptions
from encore.model.backbone_options import BackboneConfig
from encore.rating.rating_options import EngineOptions, LimitOptions, RatingConfig
from encore.training.training_options import GateConfig, TrainingConfig
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import SCHEMES

RecipeName = Literal[
    "hh_pku_encore_10", "fsfairx", "hh_full_8b_10", "hh_full_8b_20", "top_5", "probe", "demo"
]
RECIPE_NAMES: tuple[RecipeName, ...] = get_args(RecipeName)

#: Placeholder for a backbone's folder: the recipe's initial reward model.
INITIAL = "{initial}"
_FOLDER = Path(__file__).parent
#: Fields of a recipe that ends after the weights.
_WEIGHING_FIELDS = {"name", "about", "sources", "prefer", "rating", "weighing"}


class Weighing(SchemeOptions):
    """Options of the weighing stage, as in `encore weights`."""

    scheme: str = option(
        "encore", choices=SCHEMES, help=f"How rules are weighed, one of: {', '.join(SCHEMES)}."
    )


class RowModel(StageConfig):
    """A row of the table: a reward model with one head, trained on preferences or untouched.

    A row named after a method of the paper (``bradley-terry-model``,
    ``bradley-terry-model-initialised``) stands beside the paper's figure.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9 -]*$")
    """Name of the row."""
    backbone: BackboneConfig
    training: TrainingConfig | None = None

    @model_validator(mode="after")
    def _check_untrained_backbone(self) -> Self:
        if self.training is not None:
            if self.training.objective != "bradley-terry":
                raise ValueError(f"row {self.name!r} has one head: expected bradley-terry training")
            return self
        unused = sorted(self.backbone.model_fields_set - {"model", "revision"})
        if unused:
            raise ValueError(
                f"row {self.name!r}: a reward model without training is opened as it was "
                f"downloaded; leave out {', '.join(unused)}, or give the row a training"
            )
        return self

    @property
    def stage(self) -> str:
        """Return the name of the stage that trains this row's model."""
        return f"train-{self.name.replace(' ', '-')}"


class InitialModel(StageConfig):
    """The initial reward model: a head in closed form, learnt from separate pairs."""

    sources: tuple[str, ...] = Field(min_length=1)
    """Sources as `encore ingest` takes them."""
    backbone: BackboneConfig


class RecipeRating(EngineOptions, LimitOptions, RatingConfig):
    """The rating run of a recipe: what it asks, its engines and its limits."""

    @model_validator(mode="before")
    @classmethod
    def _take_server_from_judge(cls, values: Any) -> Any:
        """Take the server's options from the judge's table, where recipes have them."""
        judge = values.get("judge") if isinstance(values, Mapping) else None
        if not isinstance(judge, Mapping):
            return values
        names = ServerOptions.model_fields.keys() & judge.keys()
        table = {name: value for name, value in judge.items() if name not in names}
        return {**values, **{name: judge[name] for name in names}, "judge": table}

    @model_validator(mode="after")
    def _can_ask_its_judge(self) -> Self:
        self.judge.server(self)
        return self

    def set_options(self) -> dict[str, Any]:
        """Return the options that are set, by name, with those of the server in a judge's file."""
        server = self.judge.server(self)
        return self.model_dump(exclude_unset=True) | server.model_dump(exclude_unset=True)


class RecipeBenchmark(BenchmarkRunOptions, BenchmarkConfig):
    """The table of a recipe: what it has, and how the models compute."""


class Recipe(StageConfig):
    """A run from pairs to weights, and with a training to the table and an export."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_]*$", max_length=48)
    """Name on the command line, and of the recipe's folder in the study."""
    about: str = Field(min_length=1)
    """Purpose of the recipe, one sentence."""
    sources: tuple[str, ...] = Field(min_length=1)
    """Sources as `encore ingest` takes them."""
    prefer: Prefer | None = None
    """Preference label of raw PKU-SafeRLHF, as `encore ingest` takes it."""
    rating: RecipeRating
    weighing: Weighing = Weighing()
    backbone: BackboneConfig | None = None
    """Model that the heads are trained on; none: no training."""
    training: TrainingConfig | None = None
    """Training of the heads; none: the recipe ends after the weights, without a table."""
    initial: InitialModel | None = None
    """Initial reward model, used where a backbone is ``{initial}``; none: no backbone is."""
    rows: tuple[RowModel, ...] = ()
    """Reward models beside the multi-head one."""
    gate: GateConfig | None = None
    """Options of the paper's MoE baseline; none: no gate."""
    score_limit: Annotated[int, Field(ge=1)] | None = None
    """Number of the study's pairs that every head scores; none: all."""
    judge_row: str | None = None
    """Name of the row for the judge's own weighted ratings; none: no such row."""
    export_heads: bool = False
    """True to export the model with a label for every head, too."""
    benchmark: RecipeBenchmark = RecipeBenchmark()
    """Options of the table; the recipe adds models, gate and run."""
    further_benchmarks: tuple[PairsConfig, ...] = ()
    """Benchmarks that get tables of their own with the same rows: a gain in one subset may be a
    loss in others. Those whose data cannot be read are left out with a note."""
    export_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the exported model."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        names = [row.name for row in self.rows]
        unused = ", ".join(sorted(self.model_fields_set - _WEIGHING_FIELDS))
        problem = ""
        if self.training is None and unused:
            problem = (
                f"without a training it ends after the weights; leave out {unused}, "
                "or add a training"
            )
        elif self.training is not None and self.backbone is None:
            problem = "the training needs a backbone"
        elif self.training is not None and self.training.objective != "multi-head":
            problem = f"training objective {self.training.objective}, expected multi-head"
        elif len(set(names)) < len(names):
            problem = f"rows {', '.join(names)}: expected a name of its own for each"
        elif self.weighing.scheme == "single" and self.weighing.rule is None:
            problem = "weighing scheme 'single' needs a rule"
        elif any(backbone.model == INITIAL for _, backbone, _ in self.models):
            problem = f"backbone {INITIAL}, and no [initial] says what it learns from"
        if problem:
            raise ValueError(f"recipe {self.name}: {problem}")
        return self

    @property
    def models(self) -> list[tuple[str, BackboneConfig, TrainingConfig | None]]:
        """Return each model's stage, backbone and training; ``{initial}`` is replaced."""
        heads = [("train", self.backbone, self.training)] if self.backbone else []
        rows = [(row.stage, row.backbone, row.training) for row in self.rows]
        return [
            (
                stage,
                self.initial.backbone if self.initial and base.model == INITIAL else base,
                training,
            )
            for stage, base, training in (*heads, *rows)
        ]


class DemoConfig(StageConfig):
    """Options of the demo: its folder and the judge's engine."""

    study: StudyFolder = option(Path("demo-study"), positional=True)
    """Where the study goes; an existing demo is continued."""
    backend: Literal["vllm", "transformers"] | None = option(None)
    """The judge's engine; default: vLLM, transformers where it is missing."""
    rate_all: bool = option(False)
    """Rate every pair on the engine. Without it, vLLM rates some, and the other ratings are those
    that the same judge gave them before, which are shipped."""


def load_recipe(name: str | Path) -> Recipe:
    """Load a shipped recipe by name, or a recipe from a TOML file.

    Raises:
        InputError: There is no such recipe or file, or a value in it is not valid.
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
    return make_recipe(content, origin=str(path))


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with some values changed, in the structure of a recipe's TOML.

    A pilot gets a name of its own, so that its table and export cannot be taken for those of the
    whole run.

    Raises:
        InputError: A changed value is not valid in a recipe.
    """
    content = recipe.model_dump(exclude_unset=True)
    content["rating"] = recipe.rating.set_options()
    rating = changes.get("rating", {})
    backend = recipe.rating.judge.backend
    if rating.get("judge", {}).get("backend", backend) != backend:
        content["rating"]["judge"].pop("engine_args", None)  # these belong to the other engine
    if rating.get("limit") is not None:
        content["name"] = f"{recipe.name}_pilot_{rating['limit']}"
    return make_recipe(merged(content, changes), origin=f"{recipe.name} with changes")


def merged(old: Any, new: Any) -> Any:
    """Return ``new`` in place of ``old``; of two mappings, those of the same name, at any depth."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    return {**old, **{name: merged(old.get(name), value) for name, value in new.items()}}


def make_recipe(content: Mapping[str, Any], *, origin: str) -> Recipe:
    """Return the recipe of these values, by field name.

    Raises:
        InputError: A value is not valid. The message names ``origin``.
    """
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        problem = first_problem(error)
        field = f"{problem.path}: " if problem.path else ""  # else the fields contradict each other
        raise InputError(f"recipe {origin}: {field}{problem.message}") from error
