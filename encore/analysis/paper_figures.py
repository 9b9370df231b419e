"""Compare the paper's correlations of entropy with accuracy (`paper_correlations.toml`) to ours."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from encore.analysis.correlation import Correlation
from encore.analysis.statistics import POOLED, RuleStats
from encore.data.rule_sets import load_rule_set


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperComparison:
    """A number of the paper beside ours.

    Our values are None if the ratings do not have this quantity: another data set, or another
    number of rules.

    Attributes:
        setting: The paper's setting, e.g. ``HH``.
        quantity: ``r, discrete``, ``p, discrete`` or ``r, differential``.
        paper_value: The number that the paper prints.
        our_value: Our number with the paper's tie policy, strict.
        our_half: Our number if a tie counts one half.
        our_untied: Our number over pairs without a tie.
        our_source: Our source that has the setting's data.
        source_in_paper: Section, table or figure of the paper's number.
        paper_judge: The judge that rated in the paper.
        paper_num_pairs: Number of the paper's pairs; None if the paper does not say.
        remark: A contradiction within the paper, or that our rules have other names.
    """

    setting: str
    quantity: str
    paper_value: float
    our_value: float | None
    our_half: float | None
    our_untied: float | None
    our_source: str | None
    source_in_paper: str
    paper_judge: str
    paper_num_pairs: int | None = None
    remark: str = ""


@cache
def paper_figures() -> tuple[dict[str, Any], ...]:
    """Return the paper's numbers with their settings, from `paper_correlations.toml`.

    Each has the fields of `PaperComparison` without ours, and ``num_rules`` and ``sources``, the
    labels that `encore ingest` gives the paper's data sets. ``remark`` and ``paper_num_pairs`` may
    be missing.
    """
    path = Path(__file__).parent / "paper_correlations.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    settings = {row["setting"]: row for row in data["settings"]}
    return tuple(settings[row["setting"]] | row for row in data["figures"])


def paper_comparisons(
    correlation: Sequence[Correlation], rules: Sequence[RuleStats], *, sources: Sequence[str]
) -> tuple[PaperComparison, ...]:
    """Return every number of the paper, with ours where our ratings have the same quantity.

    They have it if a source has the label that `encore ingest` gives the paper's data set, and if
    the number of rules is the same.

    Args:
        correlation: Our correlations, of the reported sources.
        rules: Our statistics of the same sources.
        sources: All sources of the ratings, reported on their own or not.
    """
    reported = [rule.source for rule in rules]
    labels = {source: {source.lower()} for source in reported}
    labels[POOLED] = {source.lower() for source in sources}
    comparisons = []
    for figure in paper_figures():
        fields = dict(figure)
        num_rules, paper_sources = fields.pop("num_rules"), set(fields.pop("sources"))
        # The reported source that holds the setting's data, if as many rules were rated.
        matching = [
            label
            for label in reported
            if labels[label] == paper_sources and reported.count(label) == num_rules
        ]
        source = matching[0] if matching else None
        quantity, entropy = figure["quantity"].split(", ")
        ours = {
            row.accuracy: row.p_value if quantity == "p" else row.pearson_r
            for row in correlation
            if (row.source, row.entropy) == (source, entropy)
        }
        if source is not None:
            paper_rules = load_rule_set(f"encore-{num_rules}").rule_ids
            if {rule.rule_id for rule in rules if rule.source == source} != set(paper_rules):
                remarks = (figure.get("remark"), "the rules here have other names")
                fields["remark"] = "; ".join(filter(None, remarks))
        comparisons.append(
            PaperComparison(
                **fields,
                our_value=ours.get("strict"),  # equation "Acc" has a strict inequality
                our_half=ours.get("half"),
                our_untied=ours.get("untied"),
                our_source=source,
            )
        )
    return tuple(comparisons)
