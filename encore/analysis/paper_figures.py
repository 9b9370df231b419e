"""The paper's correlations of entropy with accuracy (`paper_correlations.toml`) beside ours."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from encore.analysis.correlation import Correlation
from encore.analysis.statistics import POOLED, RuleStats, TiePolicy
from encore.data.rule_sets import load_rule_set

#: How the paper counts ties: equation "Acc" has a strict inequality.
PAPER_POLICY: TiePolicy = "strict"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperComparison:
    """A number of the paper beside ours.

    Attributes:
        setting: The paper's setting.
        quantity: What is compared.
        paper_value: The paper's.
        our_value: Ours with ties as the paper counts them (strict); None, as the two below, where
            the ratings at hand hold no such thing: another data set, another number of rules.
        our_half: Ours when a tie counts one half.
        our_untied: Ours when ties are left out.
        our_source: Which of our sources it is.
        source_in_paper: Where the paper's number stands.
        paper_judge: Who rated there.
        paper_num_pairs: How many pairs; None where the paper does not say.
        remark: What does not fit with it, in the paper; or that our rules are others.
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
    """The paper's numbers, each with what `paper_correlations.toml` says of it and its setting.

    That is ``setting``, ``quantity`` (``r, discrete``, ``p, discrete`` or ``r, differential``),
    ``paper_value`` and ``source_in_paper``; ``sources`` as `encore ingest` labels them,
    ``num_rules`` and ``paper_judge``; where there is one ``remark`` and ``paper_num_pairs``.
    """
    path = Path(__file__).parent / "paper_correlations.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    settings = {row["setting"]: row for row in data["settings"]}
    return tuple(settings[row["setting"]] | row for row in data["figures"])


def paper_comparisons(
    correlation: Sequence[Correlation], rules: Sequence[RuleStats], *, sources: Sequence[str]
) -> tuple[PaperComparison, ...]:
    """Every number of the paper, with ours where the ratings at hand have the same quantity.

    The same means: the source is labelled as `encore ingest` labels the paper's data sets, and as
    many rules were rated.

    Args:
        correlation: Ours, of the sources that are reported.
        rules: Statistics of the same sources.
        sources: All sources of the ratings, reported on their own or not.
    """
    reported = [rule.source for rule in rules]
    names = {one: {one.lower()} for one in reported} | {POOLED: {one.lower() for one in sources}}
    found = []
    for figure in paper_figures():
        kept = dict(figure)
        num_rules, wanted = kept.pop("num_rules"), set(kept.pop("sources"))
        # The reported source that holds the setting's data, if as many rules were rated.
        fitting = (one for one in reported if names[one] == wanted)
        source = next((one for one in fitting if reported.count(one) == num_rules), None)
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
                kept["remark"] = "; ".join(filter(None, remarks))
        comparison = PaperComparison(
            **kept,
            our_value=ours.get(PAPER_POLICY),
            our_half=ours.get("half"),
            our_untied=ours.get("untied"),
            our_source=source,
        )
        found.append(comparison)
    return tuple(found)
