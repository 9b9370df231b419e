"""The paper's correlations between entropy and accuracy, and ours beside them.

Where the paper contradicts itself, both values stand here with a remark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from encore.analysis.correlation import Correlation
from encore.analysis.statistics import POOLED, EntropyKind, RuleStats, TiePolicy
from encore.data.rules import load_rule_set

#: How the paper counts ties: equation "Acc" has a strict inequality.
PAPER_POLICY: TiePolicy = "strict"
#: What a reader must know before comparing.
READING = (
    "the paper's r is with +H, though its figures plot -H; its accuracy is strict (a tie is a "
    "miss); its judges and pairs are others"
)

SettingName = Literal["HH", "PKU", "HH-PKU", "HH-170K, 10 rules", "HH-170K, 20 rules"]
Quantity = Literal["r, discrete", "p, discrete", "r, differential"]

_TABLE_DISCRETE = "Table 3 (tab:diff_entropy), row Discrete Entropy"
_TABLE_DIFFERENTIAL = "Table 3 (tab:diff_entropy), row Differential Entropy"
_TWO_VALUES = "the paper prints -0.84 (figure) and -0.87 (table) for the same correlation"


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

    name: SettingName
    sources: frozenset[str]
    num_rules: int
    judge: str
    num_pairs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """A number of the paper.

    Attributes:
        setting: Where it holds.
        quantity: r or p of Pearson's correlation, and the kind of entropy.
        value: As printed.
        source_in_paper: Where it stands.
        remark: What does not fit with it, elsewhere in the paper or by arithmetic.
    """

    setting: SettingName
    quantity: Quantity
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

    setting: SettingName
    quantity: Quantity
    paper_value: float
    our_value: float | None
    our_half: float | None
    our_untied: float | None
    our_source: str | None
    source_in_paper: str
    paper_judge: str
    paper_num_pairs: int | None
    remark: str


SETTINGS: tuple[PaperSetting, ...] = (
    PaperSetting(
        name="HH",
        sources=frozenset({"hh"}),
        num_rules=10,
        judge="Llama3-70B-Instruct",
        num_pairs=None,
    ),
    PaperSetting(
        name="PKU",
        sources=frozenset({"pku"}),
        num_rules=10,
        judge="Llama3-70B-Instruct",
        num_pairs=None,
    ),
    PaperSetting(
        name="HH-PKU",
        sources=frozenset({"hh", "pku"}),
        num_rules=10,
        judge="Llama3-70B-Instruct",
        num_pairs=70_000,
    ),
    PaperSetting(
        name="HH-170K, 10 rules",
        sources=frozenset({"hh"}),
        num_rules=10,
        judge="Llama3-8B-Instruct",
        num_pairs=170_000,
    ),
    PaperSetting(
        name="HH-170K, 20 rules",
        sources=frozenset({"hh"}),
        num_rules=20,
        judge="Llama3-8B-Instruct",
        num_pairs=170_000,
    ),
)


def _figure(
    setting: SettingName, quantity: Quantity, value: float, where: str, remark: str = ""
) -> PaperFigure:
    return PaperFigure(
        setting=setting, quantity=quantity, value=value, source_in_paper=where, remark=remark
    )


FIGURES: tuple[PaperFigure, ...] = (
    _figure("HH", "r, discrete", -0.84, "Figure 2a (fig:sub1)", _TWO_VALUES),
    _figure("HH", "r, discrete", -0.87, _TABLE_DISCRETE, _TWO_VALUES),
    _figure("HH", "p, discrete", 2e-3, "Figure 2a (fig:sub1)"),
    _figure("HH", "r, differential", -0.66, _TABLE_DIFFERENTIAL),
    _figure("PKU", "r, discrete", -0.96, "Figure 2b (fig:sub2)"),
    _figure("PKU", "p, discrete", 1e-5, "Figure 2b (fig:sub2)"),
    _figure("PKU", "r, differential", -0.76, _TABLE_DIFFERENTIAL),
    _figure("HH-PKU", "r, discrete", -0.93, "Figure 2c (fig:sub3)"),
    _figure("HH-PKU", "p, discrete", 8e-5, "Figure 2c (fig:sub3)"),
    _figure("HH-PKU", "r, differential", -0.76, _TABLE_DIFFERENTIAL),
    _figure("HH-170K, 10 rules", "r, discrete", -0.94, "Figure 4a (fig:Appendix-RatingModel)"),
    _figure(
        "HH-170K, 10 rules",
        "p, discrete",
        1e-5,
        "Figure 4a (fig:Appendix-RatingModel)",
        "r = -0.94 over 10 rules has p = 5.3e-05",
    ),
    _figure("HH-170K, 10 rules", "r, differential", -0.93, _TABLE_DIFFERENTIAL),
    _figure("HH-170K, 20 rules", "r, discrete", -0.89, "Figure 4b (fig:Appendix-MoreRules)"),
    _figure(
        "HH-170K, 20 rules",
        "p, discrete",
        7e-5,
        "Figure 4b (fig:Appendix-MoreRules)",
        "r = -0.89 over 20 rules has p = 1.5e-07",
    ),
    _figure("HH-170K, 20 rules", "r, differential", -0.77, _TABLE_DIFFERENTIAL),
)


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
    settings = {setting.name: setting for setting in SETTINGS}
    ours = {(row.source, row.entropy, row.accuracy): row for row in correlation}
    return tuple(
        _comparison(figure, setting, ours, rules=rules, source=_our_source(setting, rules, sources))
        for figure in FIGURES
        for setting in [settings[figure.setting]]
    )


def _our_source(
    setting: PaperSetting, rules: Sequence[RuleStats], sources: Sequence[str]
) -> str | None:
    """The reported source that holds the data of a setting, if as many rules were rated."""
    reported = dict.fromkeys(rule.source for rule in rules)
    held: dict[str, frozenset[str]] = {
        source: frozenset({source.lower()} if source != POOLED else map(str.lower, sources))
        for source in reported
    }
    matching = [
        source
        for source, names in held.items()
        if names == setting.sources
        and sum(rule.source == source for rule in rules) == setting.num_rules
    ]
    return matching[0] if matching else None


def _comparison(
    figure: PaperFigure,
    setting: PaperSetting,
    ours: Mapping[tuple[str, EntropyKind, TiePolicy], Correlation],
    *,
    rules: Sequence[RuleStats],
    source: str | None,
) -> PaperComparison:
    entropy: EntropyKind = "differential" if figure.quantity == "r, differential" else "discrete"

    def our(policy: TiePolicy) -> float | None:
        if source is None:
            return None
        row = ours[source, entropy, policy]
        return row.p_value if figure.quantity == "p, discrete" else row.pearson_r

    remarks = [figure.remark]
    if source is not None:
        rule_ids = [rule.rule_id for rule in rules if rule.source == source]
        remarks.append(_rules_remark(rule_ids, setting.num_rules))
    return PaperComparison(
        setting=figure.setting,
        quantity=figure.quantity,
        paper_value=figure.value,
        our_value=our(PAPER_POLICY),
        our_half=our("half"),
        our_untied=our("untied"),
        our_source=source,
        source_in_paper=figure.source_in_paper,
        paper_judge=setting.judge,
        paper_num_pairs=setting.num_pairs,
        remark="; ".join(filter(None, remarks)),
    )


def _rules_remark(rule_ids: Sequence[str], num_rules: int) -> str:
    paper_rules = load_rule_set(f"encore-{num_rules}").rule_ids
    return "" if set(rule_ids) == set(paper_rules) else "the rules here have other names"
