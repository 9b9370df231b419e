"""`encore paper`: a check whether the paper's figures follow from each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from encore.cli.output import Renderable, compact_table, show_result, span
from encore.core.command_parser import JsonOption, command
from encore.core.number_text import number, significant

#: Short names of RewardBench's subsets, for 80 columns. The table has a legend.
_SHORT = {
    "donotanswer": "DNA",
    "refusals-dangerous": "RD",
    "refusals-offensive": "RO",
    "xstest-should-refuse": "XR",
    "xstest-should-respond": "XA",
}


@command
def paper(*, json: JsonOption = False) -> None:
    """Recompute the paper's figures from each other.

    Safety is the mean of the five sub-scores weighted by RewardBench's numbers of pairs. A row
    follows if this mean is within 0.15 points of the printed Safety (sub-scores have one decimal,
    some cut instead of rounded). p follows from r and the number of rules. Further figures that do
    not follow are in docs/paper-audit.md.

    The command reads no data and no model. Its exit code is 0 whether the figures follow or not.

    Examples: `encore paper`, `encore paper --json`.
    """
    from encore.benchmarks.paper_tables import check_paper

    check = check_paper()
    show_result(check, _tables(check), as_json=json)


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
