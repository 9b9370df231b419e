"""What a recipe names, looked at before hours of rating: names, models, the benchmark's rows."""

from __future__ import annotations

from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import read_benchmark_pairs
from encore.data.rules.load import load_rule_set
from encore.errors import InputError
from encore.recipes.recipe import Recipe
from encore.weighting import load_scheme


def check_names(recipe: Recipe) -> None:
    """Schemes, rules and benchmark exist.

    Raises:
        EncoreError: One does not: its name, and the known ones.
    """
    for scheme in (recipe.weighing.scheme, *recipe.table.schemes):
        load_scheme(scheme)
    load_rule_set(recipe.rating.rules)
    load_benchmark(recipe.table.benchmark)


def check_within_reach(recipe: Recipe) -> None:
    """The benchmark's rows, and each backbone's config and tokenizer, can be read.

    Weights are not fetched. What is on the hub behind a licence is met here.

    Raises:
        EncoreError: What cannot be read, and why.
    """
    from encore.model.loading import load_tokenizer  # brings transformers

    table = recipe.table
    try:
        read_benchmark_pairs(load_benchmark(table.benchmark), data=table.data)
    except InputError as error:
        # A network's failure stays the cause: another attempt may mend it.
        raise InputError(f"{error} (a recipe's option: --benchmark-data)") from error.__cause__
    # A model that is a row as it was downloaded may be of a kind that cannot be trained on.
    rows = ((row.backbone, row.training is None) for row in recipe.rows)
    for backbone, any_kind in dict.fromkeys(((recipe.backbone, False), *rows)):
        load_tokenizer(backbone, any_kind=any_kind)
