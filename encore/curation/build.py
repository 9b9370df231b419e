"""`encore rules build` as a function: a recipe from pools of principles to rule sets.

    merged.toml             all principles of the pools
    distinct.toml           without near-duplicates
    importance-<digest>/    the ratings of these rules by judges and people
    top-20.toml, .json      the most important ones, a rule set and a table for each size

A judge is asked only what is missing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from encore.config import JudgeConfig, StageConfig
from encore.curation.curation_config import (
    PAPER_RECIPE,
    BuildConfig,
    DedupeConfig,
    ImportanceConfig,
    MergeConfig,
    SelectConfig,
)
from encore.curation.dedupe import dedupe
from encore.curation.importance import PEOPLE_FILE, rate_importance
from encore.curation.merge import merge
from encore.curation.pool import read_pool
from encore.curation.rule_questions import texts_digest
from encore.curation.select import select_rules
from encore.errors import InputError
from encore.judges.base import Judge
from encore.reporting import SILENT, Reporter

_SHIPPED = Path(__file__).with_name("paper_rules.toml")
#: Of a digest, in a folder's name.
_DIGITS = 16


class RuleRecipe(StageConfig):
    """Every choice between pools of principles and rule sets; paths are as on the command line."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    pools: tuple[str, ...] = Field(min_length=1)
    """As for `encore rules merge`."""
    licence: tuple[str, ...] = ()
    """As for `encore rules merge`."""
    threshold: float = Field(default=0.8, ge=0, le=1)
    """As for `encore rules dedupe`."""
    model: Path | None = None
    """As for `encore rules dedupe`."""
    judges: tuple[JudgeConfig, ...] = ()
    """Each rates the importance of every distinct rule."""
    people: tuple[Path, ...] = ()
    """As for `encore rules rate-importance`."""
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(20, 10), min_length=1)
    """Of the rule sets."""
    paper_counts: dict[str, int] = Field(default_factory=dict)
    """What a publication counted after a step, by the step: shown beside."""

    @model_validator(mode="after")
    def _has_raters(self) -> Self:
        if not (self.judges or self.people):
            raise ValueError("nobody rates: give judges, people, or both")
        return self


def build_rules(
    config: BuildConfig, *, judges: Sequence[Judge] | None = None, reporter: Reporter = SILENT
) -> dict[str, Any]:
    """Merge pools, drop near-duplicates, have the rest rated, and write the most important ones.

    Args:
        config: The recipe, and where its files go.
        judges: The recipe's, where they are open already; they stay open.
        reporter: Told how far it is.

    Returns:
        JSON values: ``steps`` with the number of rules after each and how many the ``paper`` had
        there; ``importance``: what each judge did (`rate_importance`); ``selection``: the first
        rule set (`select_rules`; agreement is the same for all sizes).

    Raises:
        InputError: What is wrong in the recipe, in a pool or in a file of people's answers.
        StudyIncompleteError: Shards of a judge failed; the same call asks only about these.
        EncoreError: The embedding model or a judge does not load.
    """
    recipe, folder = load_rule_recipe(config.recipe), config.output
    folder.mkdir(parents=True, exist_ok=True)
    merged, distinct = folder / "merged.toml", folder / "distinct.toml"
    merge(MergeConfig(pools=recipe.pools, licence=recipe.licence, output=merged))
    how = recipe.model_dump(include={"threshold", "model"})
    dedupe(DedupeConfig(pool=str(merged), output=distinct, **how), reporter=reporter)
    rated = folder / f"importance-{texts_digest(read_pool(distinct).rules)[:_DIGITS]}"
    if not recipe.people:  # those of an earlier recipe do not count any more
        (rated / PEOPLE_FILE).unlink(missing_ok=True)
    asked: Sequence[JudgeConfig | None] = recipe.judges or (None,)
    importance = [
        rate_importance(
            ImportanceConfig(pool=distinct, output=rated, judge=judge, people=recipe.people),
            judge=judges[place] if judges else None,
            reporter=reporter,
        )
        for place, judge in enumerate(asked)
    ]
    run_keys = [report["run_key"] for report in importance if "run_key" in report]
    files = {size: folder / f"top-{size}.toml" for size in recipe.sizes}
    selections = [
        select_rules(SelectConfig(folder=rated, top=size, output=file), run_keys=run_keys)
        for size, file in files.items()
    ]
    steps = [_step(file, recipe) for file in (merged, distinct, *files.values())]
    return {"steps": steps, "importance": importance, "selection": selections[0]}


def _step(file: Path, recipe: RuleRecipe) -> dict[str, Any]:
    paper = recipe.paper_counts.get(file.stem)
    num_rules = len(read_pool(file).rules)
    return {"step": file.stem, "num_rules": num_rules, "paper": paper, "file": str(file)}


def load_rule_recipe(name: str) -> RuleRecipe:
    """The shipped recipe ``paper``, or one's own in a TOML file.

    Raises:
        InputError: No such file; what is wrong in it.
    """
    path = _SHIPPED if name == PAPER_RECIPE else Path(name)
    try:
        return RuleRecipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise InputError(
            f"recipe {name!r}: {error.strerror}; expected {PAPER_RECIPE}, or a TOML file"
        ) from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "all of it"
        raise InputError(
            f"recipe {path}: {where}: {problem['msg'].removeprefix('Value error, ')}"
        ) from error
    except ValueError as error:
        raise InputError(f"recipe {path}: {error}; correct the TOML") from error
