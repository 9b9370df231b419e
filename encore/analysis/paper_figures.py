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
from encore.data.rules import load_rule_set

#: How the paper counts ties: equation "Acc" has a strict inequality.
PAPER_POLICY: TiePolicy = "strict"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSetting:
    """One of the paper's five settings.

    Attributes:
        name: As here.
        sources: The data sets, as `encore ingest` labels them.
        num_rules: Of the paper's rules, the first so many.
        judge: Who rated.
        num_pairs: As the paper says; None where it does not.
    """

    name: str
    sources: frozenset[str]
    num_rules: int
    judge: str
    num_pairs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """A number of the paper.

    Attributes:
        setting: Where it holds.
        quantity: ``r, discrete``, ``p, discrete`` or ``r, differential``.
        value: As printed.
        source_in_paper: Where it stands.
        remark: What does not fit with it, elsewhere in the paper or by arithmetic.
    """

    setting: str
    quantity: str
    value: float
    source_in_paper: str
    remark: str = ""


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
    paper_num_pairs: int | None
    remark: str


@cache
def paper_settings() -> dict[str, PaperSetting]:
    """The paper's settings by name."""
    return {
        row["name"]: PaperSetting(**row | {"sources": frozenset(row["sources"])})
        for row in _data()["settings"]
    }


@cache
def paper_figures() -> tuple[PaperFigure, ...]:
    """The paper's numbers."""
    return tuple(PaperFigure(**row) for row in _data()["figures"])


def _data() -> dict[str, Any]:
    path = Path(__file__).parent / "paper_correlations.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


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
    found = []
    for figure in paper_figures():
        setting = paper_settings()[figure.setting]
        source = _our_source(setting, rules, sources)
        quantity, entropy = figure.quantity.split(", ")
        ours = {
            row.accuracy: row.p_value if quantity == "p" else row.pearson_r
            for row in correlation
            if (row.source, row.entropy) == (source, entropy)
        }
        remark = figure.remark
        if source is not None:
            paper_rules = load_rule_set(f"encore-{setting.num_rules}").rule_ids
            if {rule.rule_id for rule in rules if rule.source == source} != set(paper_rules):
                remark = "; ".join(filter(None, (remark, "the rules here have other names")))
        comparison = PaperComparison(
            setting=figure.setting,
            quantity=figure.quantity,
            paper_value=figure.value,
            our_value=ours.get(PAPER_POLICY),
            our_half=ours.get("half"),
            our_untied=ours.get("untied"),
            our_source=source,
            source_in_paper=figure.source_in_paper,
            paper_judge=setting.judge,
            paper_num_pairs=setting.num_pairs,
            remark=remark,
        )
        found.append(comparison)
    return tuple(found)


def _our_source(
    setting: PaperSetting, rules: Sequence[RuleStats], sources: Sequence[str]
) -> str | None:
    """The reported source that holds the data of a setting, if as many rules were rated."""
    reported = [rule.source for rule in rules]
    for source in dict.fromkeys(reported):
        names = {name.lower() for name in (sources if source == POOLED else [source])}
        if names == setting.sources and reported.count(source) == setting.num_rules:
            return source
    return None
