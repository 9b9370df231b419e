"""`encore paper`: whether the paper's figures follow from each other, and what its theorem says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from encore.cli.output import (
    Renderable,
    TableColumns,
    compact_table,
    opened_ratings,
    percent_of,
    rule_legend,
    rule_table,
    show_result,
    span,
)
from encore.core.command_parser import JsonOption, command
from encore.core.config import option
from encore.core.number_text import number, significant
from encore.data.study_options import RatingsConfig, StudyFolder

if TYPE_CHECKING:
    from encore.weighting.theory import Theory, TheoryRule

#: Short names of RewardBench's subsets, for 80 columns. The table has a legend.
_SHORT = {
    "donotanswer": "DNA",
    "refusals-dangerous": "RD",
    "refusals-offensive": "RO",
    "xstest-should-refuse": "XR",
    "xstest-should-respond": "XA",
}


class PaperConfig(RatingsConfig):
    """Options of `encore paper`."""

    ratings: StudyFolder | None = option(  # type: ignore[assignment]  # not needed for the figures
        None, positional=True
    )
    """Ratings to check the theorem on: a study, a Parquet file, or a folder of them, as for `encore
    analyze`."""


@command
def paper(config: PaperConfig, *, json: JsonOption = False) -> None:
    """Recompute the paper's figures from each other, and check its Theorem 1.

    Safety is the mean of the five sub-scores weighted by RewardBench's numbers of pairs. A row
    follows if this mean is within 0.15 points of the printed Safety (sub-scores have one decimal,
    some cut instead of rounded). p follows from r and the number of rules. Further figures that do
    not follow are in docs/evidence.md.

    The theorem is about weights learned from people's preferences. With the reward G = Σ w_k ·
    (rating of chosen - rating of rejected) and the Bradley-Terry loss log(1 + exp(-G)), a rule's
    weight moves by its gradient, the mean of D · (chosen - rejected) with |D| at most 1. At zero
    weights D is -1/2 for every pair, so the gradient is minus half the rule's mean margin. A rule
    whose margin averages to zero whatever the label and the other rules say gets none.

    z says how many standard deviations that is from zero if labels were drawn by lot: a rule with
    |z| below 2 is what the theorem is about. Gradient descent from zero shows the learned weights
    beside ENCORE's, which see no label. They are free in size and sign; compare their order.
    (`encore weights --scheme bradley-terry` fits them to the end.)

    The theorem calls such rules maximally entropic, and entropy is another matter. Of three
    synthetic rules two have uniform ratings, so the same entropy and the same weight in ENCORE: the
    one that is always right gets the largest gradient, the random one none. The constant rule has
    no entropy, the largest weight, and no gradient. That rules of higher entropy are less accurate
    is a claim about data; `encore analyze` tests it on yours.

    The exit code is 0 whether the figures follow or not, and 3 if the run of RATINGS is not
    complete.

    Examples: `encore paper`, `encore paper --json`, `encore paper study`.
    """
    from encore.benchmarks.paper_tables import check_paper
    from encore.weighting.theory import theory

    figures, example = check_paper(), theory()
    ratings = None if config.ratings is None else opened_ratings(config)
    parts, on_ratings, notes = [*_tables(figures)], None, []
    parts += _theorem_tables(example, "three rules: SYNTHETIC DATA")
    if ratings is not None:
        on_ratings = theory(ratings)
        parts += _theorem_tables(on_ratings, f"{on_ratings.num_pairs:,} pairs")
        if num_left_out := on_ratings.num_pairs_left_out:
            notes.append(
                f"{num_left_out:,} of {on_ratings.num_pairs + num_left_out:,} pairs are left out, "
                "because some rule has no rating of one of the responses"
            )
    theorem = {"theorem": asdict(example), "theorem_on_ratings": on_ratings and asdict(on_ratings)}
    show_result(figures | theorem, parts, notes, ratings=ratings, as_json=json)


def _tables(check: Mapping[str, Any]) -> Iterator[Renderable]:
    for table in check["tables"]:
        columns = ("method", *map(_SHORT.__getitem__, check["subset_counts"]), "Safety", "follows")
        rows = [
            (
                f"{row['label']}, {row['base_model']}",
                *(f"{100 * score:.1f}" for score in row["subsets"].values()),
                f"{100 * row['score']:.1f}",
                f"{100 * row['recomputed']:.2f}{' ' if row['follows'] else '*'}",
            )
            for row in table["rows"]
        ]
        yield compact_table(columns, rows, title=f"{table['place']}: {table['title']}")
    subsets = (f"{_SHORT[name]} {name} ({num})" for name, num in check["subset_counts"].items())
    yield f"Subsets (pairs): {', '.join(subsets)}. * differs from the printed Safety.\n"
    names = ("setting, entropy, place", "n", "r", "95 %", "p from r", "printed", "follows")
    figures = [
        (
            f"{row['setting']}, {row['entropy']}, {row['where'].partition(' (')[0]}",
            row["num_rules"],
            number(row["r"], digits=2),
            span(row["ci_low"], row["ci_high"], significant),
            significant(row["p_value"]),
            significant(row["printed_p"]),
            {None: None, True: "yes", False: "NO"}[row["follows"]],
        )
        for row in check["correlations"]
    ]
    yield compact_table(names, figures, title="Correlation of entropy with accuracy over rules")
    yield "p assumes independent rules, with r and n as printed; 95 %: Fisher's interval.\n"
    follows = [row["follows"] for table in check["tables"] for row in table["rows"]]
    yield f"{sum(follows)} of {len(follows)} rows of Safety follow."


def _theorem_tables(checked: Theory, title: str) -> Iterator[Renderable]:
    rule_ids = [rule.rule_id for rule in checked.rules]
    entropy: TableColumns = {"entropy": "entropy_nats"}
    gradients: TableColumns = {
        "half": percent_of("half_accuracy"),
        "margin": "mean_margin",
        "gradient": "gradient_at_zero",
        "z": "z",
        "near zero": "gradient_near_zero",
    }
    steps: TableColumns = {
        f"step {step}": partial(_learned_weight, index) for index, step in enumerate(checked.steps)
    }
    of_gradients = f"Gradient of the mean loss at zero weights, {title}"
    yield rule_table(rule_ids, checked.rules, {**entropy, **gradients}, title=of_gradients)
    weights = {**entropy, "ENCORE": "encore_weight", **steps}
    of_weights = f"Weights by gradient descent from zero, {title}"
    yield rule_table(rule_ids, checked.rules, weights, title=of_weights)
    yield rule_legend(rule_ids)


def _learned_weight(step_index: int, rule: TheoryRule) -> float:
    return rule.learned_weights[step_index]
