"""Check ratings that were asked for all rules at once against one rule a call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from encore.analysis.list_position import PositionEffect, position_effects
from encore.analysis.run_comparison import RunComparison, compare_runs
from encore.core.errors import InputError
from encore.data.rating_runs import RatingManifest, list_runs, num_computed_pairs, read_run
from encore.warehouse import Ratings, open_ratings

#: Parts of the identity that two runs share whose ratings differ by the way of asking alone.
_SHARED_PARTS = ("judge", "rules_sha256", "data_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRulesCheck:
    """Effects on the ratings of asking for all rules at once.

    Attributes:
        run_key: Run that asked the same judge for one rule a call; None if the study has none.
        comparison: The ratings of all rules at once, minus those of one rule a call, on the same
            responses; None without such a run.
        positions: Effect of the position in the list for each rule, then for all rules.
    """

    run_key: str | None
    comparison: RunComparison | None
    positions: tuple[PositionEffect, ...]


def check_all_rules(ratings: Ratings) -> AllRulesCheck:
    """Compare a run of ``--layout all-rules`` with a run of its study of one rule a call.

    Of several runs with the same judge, rules and data, one with the same decoding (and, of a
    decision model, the same questions) is taken, then one in the paper's layout, then the one with
    most pairs.

    Args:
        ratings: The opened ratings of a run with this layout, which lies in a study.

    Raises:
        InputError: They are of another layout, or of no run.
    """
    study, manifest = ratings.study, ratings.manifest
    if manifest is None or not manifest.asks_all_rules:
        raise InputError(
            f"ratings {ratings.label}: they are not of a run with --layout all-rules; compare two "
            "other runs with compare_runs"
        )
    run_dir = None if study is None else _one_rule_run(study.ratings_dir, manifest)
    return AllRulesCheck(
        run_key=None if run_dir is None else run_dir.name,
        comparison=None if run_dir is None else compare_runs(open_ratings(run_dir), ratings),
        positions=position_effects(ratings),
    )


def _one_rule_run(ratings_dir: Path, manifest: RatingManifest) -> Path | None:
    """Return the folder of the run to compare with; None if there is none with a rating."""
    identity, ranked_runs = manifest.identity, []
    for run_dir in list_runs(ratings_dir):
        candidate = read_run(run_dir)
        is_same = all(candidate.identity.get(part) == identity[part] for part in _SHARED_PARTS)
        num_pairs = num_computed_pairs(run_dir, candidate) if is_same else 0
        if num_pairs and not candidate.asks_all_rules:
            ways = [
                (run.settings.get("decode"), run.identity.get("questions"))
                for run in (candidate, manifest)
            ]
            rank = (ways[0] == ways[1], "layout" not in candidate.settings, num_pairs)
            ranked_runs.append((rank, run_dir))
    return max(ranked_runs)[1] if ranked_runs else None
