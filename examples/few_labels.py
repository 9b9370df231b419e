"""A study of weights from few labels, and of agreement with the other rules, over ten seeds.

``python -m examples.few_labels hh-harmless-dev.jsonl.gz xstest-dev.jsonl --labels
rbr-gold-dev.jsonl.gz --out study.md`` writes a table: half-credit accuracy on held-out prompts of
each file, and the difference to uniform weights. The judge is the probe of
`examples.never_below_start`. Per seed ten of its rules are drawn, and half of a file's prompts,
from which the labels are. Whatever comes out is written. ``--rated RUN`` adds a table of the
ratings in the folder of a run, which another judge made.

A script of one study, not a part of the library: it takes inner parts of ENCORE, which may change.

Suffixes: P pairs, S seeds, R rules, 2 responses.
"""

from __future__ import annotations

from pathlib import Path

import cyclopts
import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from encore.analysis.answer_options import DEFAULT_TAU, DOUBLE_CORRELATION
from encore.analysis.consensus import consensus_weights, mean_correlations, same_rules
from encore.analysis.entropy import entropy_weights
from encore.analysis.level_codes import LevelCodes, rule_entropies
from encore.warehouse import RatingKind, open_ratings, read_pairs_of
from encore.weighting.composed_ratings import pair_credits
from encore.weighting.schemes.bradley_terry import fit_scores, weights_of_scores
from encore.weighting.schemes.shrunk import fit_shrunk, uniform_target
from examples.never_below_start import Pairs, fit_judges, pairs_and_seeds, rate, read

_Floats = NDArray[np.float64]
NUM_RULES = 10
NUM_LABELS = (20, 100, 200)


def margins_of(pairs: Pairs) -> _Floats:
    """Return the chosen response's ratings minus the rejected one's, shape [P, R]."""
    return np.asarray(pairs.rating_P2R[:, 0] - pairs.rating_P2R[:, 1])


def correlations_of(margin_PR: _Floats) -> _Floats:
    """Return the correlation of margins about 0, shape [R, R]; NaN for a rule with ties only."""
    product_RR = margin_PR.T @ margin_PR
    with np.errstate(divide="ignore", invalid="ignore"):
        norm_R = np.sqrt(np.diag(product_RR))
        return np.asarray(product_RR / np.outer(norm_R, norm_R))


def entropies_of(pairs: Pairs) -> _Floats:
    """Return the entropy of each rule's ratings in nats, shape [R]."""
    return rule_entropies(LevelCodes.from_ratings(pairs.rating_P2R.transpose(1, 0, 2)).histogram())


def read_run(run: Path, rating: RatingKind) -> tuple[Pairs, _Floats]:
    """Return the pairs of a rating run without states, and its rules' entropies, those of labels.

    Pairs that lack a rating are left out.
    """
    rated, labelled = (read_pairs_of(open_ratings(run, rating=kind)) for kind in (rating, "level"))
    rating_P2R, label_P2R = (
        np.stack([pairs.chosen_PR, pairs.rejected_PR], axis=1) for pairs in (rated, labelled)
    )
    is_full_P = ~np.isnan(rating_P2R).any(axis=(1, 2))
    pairs, labels = (
        Pairs(state_P2D=np.empty((len(part), 2, 0)), rating_P2R=part, group_P=rated.group_P).take(
            is_full_P
        )
        for part in (rating_P2R, label_P2R)
    )
    return pairs, entropies_of(labels)


def credits_of_seed(pairs: Pairs, entropy_R: _Floats, *, seed: int) -> dict[str, _Floats]:
    """Return the credit of each pair under each way to weigh, NaN for pairs that were learnt from.

    Args:
        pairs: Rated pairs.
        entropy_R: Entropy of each rule's ratings in nats.
        seed: Seed that draws the rules, the tested prompts and the labels.
    """
    rng = np.random.default_rng(seed)
    num_rules = min(NUM_RULES, len(entropy_R))
    rule_R = np.sort(rng.choice(len(entropy_R), num_rules, replace=False))
    margin_PR = margins_of(pairs)[:, rule_R]
    _, group_P = np.unique(pairs.group_P, return_inverse=True)
    num_groups = int(group_P.max()) + 1
    is_learnt_P = rng.permutation(num_groups)[group_P] < num_groups // 2
    row_N = rng.permutation(np.flatnonzero(is_learnt_P))
    consensus_R = consensus_weights(
        correlations_of(margin_PR), tau=DEFAULT_TAU, threshold=DOUBLE_CORRELATION
    )
    targets = {**uniform_target(num_rules), "consensus": consensus_R}
    weight_R = {
        "uniform": targets["uniform"],
        "encore": entropy_weights(entropy_R[rule_R], tau=DEFAULT_TAU),
        "consensus": consensus_R,
    }
    for num in NUM_LABELS:
        if num <= len(row_N):
            margins, groups = margin_PR[row_N[:num]], group_P[row_N[:num]]
            weight_R[f"shrunk to uniform, {num} labels"] = fit_shrunk(margins, groups)[0]
            weight_R[f"shrunk, {num} labels"] = fit_shrunk(margins, groups, targets)[0]
            weight_R[f"bradley-terry, {num} labels"] = weights_of_scores(fit_scores(margins))[0]
    return {
        name: np.where(is_learnt_P, np.nan, pair_credits(margin_PR @ weights))
        for name, weights in weight_R.items()
    }


def lines_of_pairs(name: str, pairs: Pairs, entropy_R: _Floats, *, num_seeds: int) -> list[str]:
    """Return a Markdown table of rated pairs, and how well two figures order the rules."""
    margin_PR = margins_of(pairs)
    correlation_RR = correlations_of(margin_PR)
    same_RR = same_rules(correlation_RR, threshold=DOUBLE_CORRELATION)
    accuracy_R = [pair_credits(margin_P).mean() for margin_P in margin_PR.T]
    ranks = [
        spearmanr(figure_R, accuracy_R).statistic
        for figure_R in (mean_correlations(correlation_RR, same_RR), -entropy_R)
    ]
    seeds = [credits_of_seed(pairs, entropy_R, seed=seed) for seed in range(num_seeds)]
    lines = [
        f"\n{name} ({num_seeds} seeds)\n",
        "| weights | accuracy | to uniform |",
        "|---|---|---|",
    ]
    for row in seeds[0]:
        credit_SP, uniform_SP = (
            np.stack([seed[key] for seed in seeds]) for key in (row, "uniform")
        )
        accuracy = "{:.1f} ({:.1f} to {:.1f})".format(*_percents(credit_SP, pairs))
        difference = "{:+.1f} ({:+.1f} to {:+.1f})".format(
            *_percents(credit_SP - uniform_SP, pairs)
        )
        lines.append(f"| {row} | {accuracy} | {'' if row == 'uniform' else difference} |")
    lines.append(
        f"\nSpearman's rank correlation with accuracy over {len(accuracy_R)} rules: agreement with "
        f"the other rules {ranks[0]:+.2f}, −entropy {ranks[1]:+.2f}."
    )
    return lines


def _percents(credit_SP: _Floats, pairs: Pairs) -> list[float]:
    return [100 * end for end in pairs_and_seeds(credit_SP, pairs.group_P)]


def few_labels(
    pairs: Path | None = None,
    transfer: Path | None = None,
    /,
    *,
    labels: Path | None = None,
    rated: tuple[Path, ...] = (),
    rating: RatingKind = "level",
    out: Path,
    num_seeds: int = 10,
) -> None:
    """Write the accuracy of weights from few labels, with intervals over pairs and seeds.

    Args:
        pairs: Preference pairs.
        transfer: Preference pairs of another kind.
        labels: People's labels of single responses, from which the judge of each rule learns.
        rated: Folders of rating runs of other judges.
        rating: Kind of rating by which the pairs of these runs are compared.
        out: Markdown file to write.
        num_seeds: Number of seeds; each draws rules, tested prompts and labels anew.
    """
    lines = []
    if pairs and transfer and labels:
        probes = fit_judges(labels)
        files = {"pairs": pairs, "transfer": transfer}
        for name, records in read(files).items():
            rated_pairs = rate(records, probes)
            entropy_R = entropies_of(rated_pairs)
            lines += lines_of_pairs(files[name].name, rated_pairs, entropy_R, num_seeds=num_seeds)
    for run in rated:
        lines += lines_of_pairs(run.name, *read_run(run, rating), num_seeds=num_seeds)
    out.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    cyclopts.run(few_labels)
