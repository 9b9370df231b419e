"""`encore rules build` as a function: a recipe from pools of principles to rule sets.

    merged.toml             all principles of the pools
    distinct.toml           without near-duplicates; .distinct.json: what it was made from
    importance-<digest>/    the ratings of these rules by judges and people
    top-20.toml, .json      the most important ones, a rule set and a table for each size

Pools are not compared again while they, threshold and model are the same, and a judge is asked only
what is missing.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
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
from encore.curation.select import Selection, select_rules
from encore.errors import InputError
from encore.files import atomic_write_bytes, file_sha256
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
    allow_unfinished: bool = False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """How many rules a step of a recipe has left, and how many the publication had there."""

    step: str
    num_rules: int
    file: str
    paper: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a recipe gave.

    Attributes:
        steps: In order.
        done: What each of the steps that take long did in this call.
        selection: The first rule set: agreement is the same for all sizes.
    """

    steps: tuple[StepCount, ...]
    done: tuple[str, ...]
    selection: Selection


def build_rules(
    config: BuildConfig, *, judges: Sequence[Judge] | None = None, reporter: Reporter = SILENT
) -> BuildReport:
    """Merge pools, drop near-duplicates, have the rest rated, and write the most important ones.

    Args:
        config: The recipe, and where its files go.
        judges: The recipe's, where they are open already; they stay open.
        reporter: Told how far it is.

    Raises:
        InputError: What is wrong in the recipe, in a pool or in a file of people's answers.
        StudyIncompleteError: Shards of a judge failed; the same call asks only about these.
        EncoreError: The embedding model or a judge does not load.
    """
    recipe, folder = load_rule_recipe(config.recipe), config.output
    folder.mkdir(parents=True, exist_ok=True)
    merged, distinct = folder / "merged.toml", folder / "distinct.toml"
    merge(MergeConfig(pools=recipe.pools, licence=recipe.licence, output=merged))
    done = [_without_duplicates(merged, distinct, recipe, reporter=reporter)]
    rated = folder / f"importance-{texts_digest(read_pool(distinct).rules)[:_DIGITS]}"
    if not recipe.people:  # those of an earlier recipe do not count any more
        (rated / PEOPLE_FILE).unlink(missing_ok=True)
    asked: Sequence[JudgeConfig | None] = recipe.judges or (None,)
    run_keys = []
    for place, judge in enumerate(asked):
        importance = ImportanceConfig(
            pool=distinct,
            output=rated,
            judge=judge,
            people=recipe.people,
            allow_unfinished=recipe.allow_unfinished,
        )
        opened = judges[place] if judges else None
        report = rate_importance(importance, judge=opened, reporter=reporter)
        if report.run_key is not None:
            run_keys.append(report.run_key)
            done.append(f"judge {report.judge}: {report.num_ratings} ratings; {report.summary}")
    selections = [
        select_rules(
            SelectConfig(folder=rated, top=size, output=folder / f"top-{size}.toml"),
            run_keys=run_keys,
        )
        for size in recipe.sizes
    ]
    files = [merged, distinct, *(one.output for one in selections)]
    steps = tuple(
        StepCount(
            step=file.stem,
            num_rules=len(read_pool(file).rules),
            file=str(file),
            paper=recipe.paper_counts.get(file.stem),
        )
        for file in files
    )
    return BuildReport(steps=steps, done=tuple(done), selection=selections[0])


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


def _without_duplicates(
    merged: Path, distinct: Path, recipe: RuleRecipe, *, reporter: Reporter
) -> str:
    """Write the distinct rules, unless they were made from just this; what was done, in words."""
    mark = distinct.with_name(".distinct.json")
    how: dict[str, Any] = {"threshold": recipe.threshold, "model": recipe.model}

    def made_from() -> bytes:
        digests = {path.name: file_sha256(path) for path in (merged, distinct)}
        return json.dumps(digests | how, default=str).encode()

    if mark.is_file() and distinct.is_file() and mark.read_bytes() == made_from():
        return "near-duplicates: as before"
    dedupe(DedupeConfig(pool=str(merged), output=distinct, **how), reporter=reporter)
    atomic_write_bytes(mark, made_from())
    return "near-duplicates: compared"
