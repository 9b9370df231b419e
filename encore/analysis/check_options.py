"""Options of a check: a floor under the rules' agreement with people, and an older run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from encore.core.config import option
from encore.data.study_options import RunChoice, StudyArgument


class CheckConfig(RunChoice):
    """Options of a check of the rules of one rating run."""

    study: StudyArgument
    floor: float | None = option(None, gt=0, lt=1, metavar="SHARE")
    """Share of untied pairs on which each rule must agree with people's preferences: the lower
    one-sided 95 % bound must lie above it."""
    rule: tuple[str, ...] = option((), metavar="RULE")
    """A rule to check: its rule_id, or its number in `encore analyze`. May be repeated. Default:
    all rules of the run."""
    against: str | None = option(None, metavar="OLD_RUN")
    """Also check that no rule agrees less with people than in OLD_RUN, on the pairs of both: a run
    key or judge of the study, or the path of another study."""
    margin: float = option(0.02, ge=0, lt=1, metavar="SHARE")
    """Loss of agreement against OLD_RUN (ties count one half) that is accepted: the lower
    one-sided 95 % bound of the difference must lie above its negative."""
    rating: Literal["level", "expected"] = option("level")
    """level: the label that the judge gave. expected: the mean over the labels' probabilities, in
    runs of --decode expected."""
    record: Path | None = option(None, metavar="FILE")
    """Record of the check (JSON). If FILE exists, it must be of the same judge, wording, rules and
    limits, else it is stale and the check fails. Default: STUDY/checks/RUN_KEY.json, which is
    written anew."""
