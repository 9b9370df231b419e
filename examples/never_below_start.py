"""A study of composed rewards beside the reward that they begin from, over ten seeds.

``python -m examples.never_below_start hh-harmless-dev.jsonl.gz xstest-dev.jsonl --labels
rbr-gold-dev.jsonl.gz --out study.md`` writes two tables: half-credit accuracy on held-out pairs of
the first file, and on the second. The judge of a rule is a probe that is trained on people's labels
of single responses, as in `examples.rbr_probe`. Features are frozen MiniLM embeddings of a response
and of its prompt's last turn, and every reward but the gate is linear in them. Whatever comes out
is written. `examples.never_below_start_trained` has the same rows for a model that is trained
whole.

Per seed the prompts are divided: a fifth trains the head that stands in for an initial reward
model, half trains everything else, a tenth is held out for scales and beta, a fifth is the test.

A script of one study, not a part of the library: beside `import encore` it takes inner parts of
ENCORE, which may change.

Suffixes: P pairs, S seeds, G prompts, D dimensions, N responses, R rules, B draws, 2 responses.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cyclopts
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from encore import ingest, open_study, weights
from encore.analysis.bootstrap import middle_95
from encore.core.reporting import SILENT
from encore.data.pairs import iter_pairs
from encore.data.records import RESPONSES, PreferencePair
from encore.model.held_out_scores import HeldOutScores
from encore.people.labelled_responses import read_labels
from encore.rules.sentence_embeddings import embed
from encore.training.baselines.gate import stop_pairs
from encore.training.baselines.gating_network import best_constant_weights, fit_gate
from encore.training.baselines.linear_probe import fit_bradley_terry, fit_ridge
from encore.training.training_examples import prompt_group
from encore.training.training_options import GateConfig
from encore.weighting.composed_ratings import pair_credits
from encore.weighting.head_mix import Beta, mix_heads
from encore.weighting.preference_head import PREFERENCE_HEAD
from encore.weighting.schemes.shrunk import fit_shrunk

_Floats = NDArray[np.float64]
#: Margins by row and set, the mask of tested pairs, and losses of the gate and constant weights.
SeedResult = tuple[dict[str, dict[str, _Floats]], NDArray[np.bool_], dict[str, float]]
#: Propositions with at least ten labels of either kind, with the answer of Rule Based Rewards' own
#: classes of an ideal refusal: a rule is kept if the answer is yes, or if it is no.
RULES = {
    "apology": True,
    "apology_acknowledges_emotional_state": True,
    "disclaimer": True,
    "gentle_encouragement_for_help": True,
    "inability_to_comply": True,
    "additional_content": False,
    "definitive_verbiage": False,
    "disallowed_content": False,
    "fully_complies": False,
    "illogical_continuation_of_prompt": False,
    "judgement": False,
    "meta_commentary": False,
    "prescribes_solutions": False,
    "reference_safety_policy": False,
    "requests_information": False,
    "third_person": False,
}
NUM_LABELS = (10, 30, 100, 300)
#: Shares of the prompts: initial head, training, held out; the rest is the test.
SHARES = (0.2, 0.5, 0.1)
#: Smaller than ArmoRM's gate, which has more parameters than these data have words.
GATE = GateConfig(hidden_size=64, num_steps=500)
#: Penalties of the Bradley-Terry heads, for differences with a mean square of 1.
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
INITIAL, FITTED = "initial head", "Bradley-Terry head"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Pairs as numbers: states [P, 2, D], ratings [P, 2, R] and prompt groups [P]."""

    state_P2D: _Floats
    rating_P2R: _Floats
    group_P: NDArray[np.int64]

    def take(self, is_taken_P: NDArray[np.bool_]) -> Pairs:
        """Return the pairs that a mask keeps."""
        columns = (self.state_P2D, self.rating_P2R, self.group_P)
        state_P2D, rating_P2R, group_P = (column[is_taken_P] for column in columns)
        return Pairs(state_P2D=state_P2D, rating_P2R=rating_P2R, group_P=group_P)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Scores of pairs, from which every reward is composed.

    Attributes:
        preference_P2: Scores of each candidate for head 0, by its name, [P, 2].
        rule_P2R: Scores of the rules' heads, [P, 2, R].
        prompt_PD: States of the prompts, which the gate reads, [P, D].
        group_P: Prompt of each pair, [P].
    """

    preference_P2: Mapping[str, _Floats]
    rule_P2R: _Floats
    prompt_PD: NDArray[np.float32]
    group_P: NDArray[np.int64]

    @property
    def rule_margin_PR(self) -> _Floats:
        """Return the chosen response's scores minus the rejected one's."""
        return np.asarray(self.rule_P2R[:, 0] - self.rule_P2R[:, 1])


# --- the judge ------------------------------------------------------------------------------------


def states(prompt_turns: list[str], responses: list[str]) -> _Floats:
    """Return the embedding of each response, followed by that of its prompt's last turn."""
    parts = [embed(texts, model=None, reporter=SILENT) for texts in (responses, prompt_turns)]
    return np.concatenate(parts, axis=1).astype(np.float64)


def fit_judges(labels: Path) -> list[LogisticRegression]:
    """Fit a probe for each rule to people's labels."""
    rows = [row for row in read_labels([labels]) if row.rule_id in RULES and row.pair is not None]
    pair_of = {row.content_id: row.pair for row in rows if row.pair is not None}
    turns = [pair.prompt[-1].content for pair in pair_of.values()]
    learnt = states(turns, [pair.chosen for pair in pair_of.values()])
    state_of = dict(zip(pair_of, learnt, strict=True))
    probes = []
    for rule_id in RULES:
        of_rule = [row for row in rows if row.rule_id == rule_id]
        probe = LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000)
        probe.fit(
            [state_of[row.content_id] for row in of_rule], [row.label > 0.5 for row in of_rule]
        )
        probes.append(probe)
    return probes


def ratings_of(probes: list[LogisticRegression], state_ND: _Floats) -> _Floats:
    """Return ratings from 0 to 1 in hundredths, higher is better; shape [N, R]."""
    ratings = [
        probe.predict_proba(state_ND)[:, int(is_good)]
        for probe, is_good in zip(probes, RULES.values(), strict=True)
    ]
    return np.stack(ratings, axis=1).round(2)


def read(files: Mapping[str, Path]) -> dict[str, list[PreferencePair]]:
    """Return the pairs of each file."""
    with tempfile.TemporaryDirectory() as folder:
        ingest(dict(files), out=Path(folder) / "study")
        records = [*iter_pairs(open_study(Path(folder) / "study"))]
    by_file: dict[str, list[PreferencePair]] = defaultdict(list)
    for pair in records:
        by_file[pair.source].append(pair)
    return by_file


def rate(pairs: list[PreferencePair], probes: list[LogisticRegression]) -> Pairs:
    """Return the states and ratings of pairs."""
    turns = [pair.prompt[-1].content for pair in pairs for _ in RESPONSES]
    texts = [pair.response_text(response) for pair in pairs for response in RESPONSES]
    state_ND = states(turns, texts)
    return Pairs(
        state_P2D=state_ND.reshape(len(pairs), 2, -1),
        rating_P2R=ratings_of(probes, state_ND).reshape(len(pairs), 2, -1),
        group_P=np.array([prompt_group(pair) for pair in pairs]),
    )


# --- one seed -------------------------------------------------------------------------------------


def ratings_table(rating_P2R: _Floats, pair_ids: Sequence[str] | None = None) -> pa.Table:
    """Return ratings as `encore.weights` reads them."""
    num_pairs, _, num_rules = rating_P2R.shape
    pair_ids = pair_ids or [f"{index:06}" for index in range(num_pairs)]
    return pa.table(
        {
            "pair_id": np.repeat(pair_ids, 2 * num_rules),
            "source": ["pairs"] * rating_P2R.size,
            "response": np.tile(np.repeat(RESPONSES, num_rules), num_pairs),
            "rule_id": np.tile([*RULES], 2 * num_pairs),
            "rating": rating_P2R.ravel(),
        }
    )


def rewards_of_states(pairs: Pairs, tests: Mapping[str, Pairs], *, seed: int) -> SeedResult:
    """Fit heads on frozen states, and every reward; return what `compose` returns.

    The mask between its two results is that of the test pairs, the test ``held-out``.
    """
    group_G, index_P = np.unique(pairs.group_P, return_inverse=True)
    rank_P = np.random.default_rng(seed).permutation(len(group_G))[index_P] / len(group_G)
    part_P = np.searchsorted(np.cumsum(SHARES), rank_P, side="right")
    before, training, held_out = (pairs.take(part_P == part) for part in range(3))
    tests = {"held-out": pairs.take(part_P == 3), **tests}
    # The heads: two candidates for head 0, and one head for each rule.
    dimensions = training.state_P2D.shape[2]
    preference_D = {}
    for name, part in ((INITIAL, before), (FITTED, training)):
        # The prompt's half of a difference is 0.
        response_P2D = part.state_P2D[:, :, : dimensions // 2]
        head_D = fit_bradley_terry(
            response_P2D[:, 0] - response_P2D[:, 1],
            group_P=part.group_P,
            penalties=PENALTIES,
            seed=seed,
        )
        preference_D[name] = np.concatenate([head_D, np.zeros_like(head_D)])
    head_RD, _ = fit_ridge(
        training.state_P2D.reshape(-1, dimensions), training.rating_P2R.reshape(-1, len(RULES))
    )

    def score(part: Pairs) -> Scores:
        return Scores(
            preference_P2={name: part.state_P2D @ head_D for name, head_D in preference_D.items()},
            rule_P2R=part.state_P2D @ head_RD.T,
            prompt_PD=part.state_P2D[:, 0, dimensions // 2 :].astype(np.float32),
            group_P=part.group_P,
        )

    margins, losses = compose(
        score(training),
        score(held_out),
        {name: score(part) for name, part in tests.items()},
        rating_P2R=training.rating_P2R,
        seed=seed,
    )
    return margins, part_P == 3, losses


def compose(
    training: Scores,
    held_out: Scores,
    tests: Mapping[str, Scores],
    *,
    rating_P2R: _Floats,
    seed: int,
) -> tuple[dict[str, dict[str, _Floats]], dict[str, float]]:
    """Compose every reward; return margins by row and test, and losses on the first test.

    Args:
        training: Pairs whose labels fit weights and the gate.
        held_out: Pairs that give head 0 and the rules one scale, and choose beta.
        tests: Pairs to compute margins of.
        rating_P2R: The judge's ratings of the training pairs.
        seed: Seed of the order of labels and of the gate.
    """
    margin_PR = training.rule_margin_PR
    table = ratings_table(rating_P2R)
    schemes = ("uniform", "encore", "one-minus-entropy", "inverse-sd", "bradley-terry")
    weight_R = {name: np.array(weights(table, scheme=name).weights) for name in schemes}
    weight_R["bradley-terry on ratings"] = weight_R.pop("bradley-terry")
    order_P = np.random.default_rng([seed, 1]).permutation(len(margin_PR))
    for num in (*NUM_LABELS, len(order_P)):
        rows = order_P[:num]
        name = "all" if num == len(order_P) else str(num)
        weight_R[f"shrunk, {name} labels"] = fit_shrunk(margin_PR[rows], training.group_P[rows])[0]
    constant_R, _ = best_constant_weights(margin_PR)
    weight_R["best constant weights of heads"] = constant_R
    # A reward is a candidate for head 0 or none, its factor, and weights of the rules.
    rewards = {name: (name, 1.0, np.zeros(len(RULES))) for name in training.preference_P2}
    rewards |= {name: ("", 0.0, weight) for name, weight in weight_R.items()}
    betas: tuple[Beta, ...] = (1.0, "auto")
    for first, preference_P2 in held_out.preference_P2.items():
        score_P2R = np.concatenate([preference_P2[:, :, None], held_out.rule_P2R], axis=2)
        scores = HeldOutScores(score_P2R=score_P2R.astype(np.float32), group_P=held_out.group_P)
        for name in ("uniform", "encore", "shrunk, 100 labels", "shrunk, all labels"):
            for beta in betas:
                rules = dict(zip(RULES, weight_R[name].tolist(), strict=True))
                mix = mix_heads(rules, scores, head_ids=(PREFERENCE_HEAD, *RULES), beta=beta)
                factor, *rule_weights = mix.weights.values()
                label = f"{first} + {name}, beta {beta if beta == 'auto' else 1}"
                rewards[label] = (first, factor, np.array(rule_weights))
    margins: dict[str, dict[str, _Floats]] = {}
    for label, (first, factor, weight) in rewards.items():
        margins[label] = {}
        for test, scores_of_test in tests.items():
            margins[label][test] = scores_of_test.rule_margin_PR @ weight
            if first:
                preference_P2 = scores_of_test.preference_P2[first]
                margins[label][test] += factor * (preference_P2[:, 0] - preference_P2[:, 1])
    gate = fit_gate(
        training.prompt_PD,
        margin_PR.astype(np.float32),
        head_ids=[*RULES],
        config=GATE.model_copy(update={"seed": seed}),
        is_stop_P=stop_pairs(training.group_P, seed=seed),
    )
    margins["gate"] = {
        name: (gate.weights(test.prompt_PD) * test.rule_margin_PR).sum(axis=1)
        for name, test in tests.items()
    }
    first_test = next(iter(tests.values()))
    test_margin_PR = first_test.rule_margin_PR
    losses = {
        "gate": gate.mean_loss(first_test.prompt_PD, test_margin_PR.astype(np.float32)),
        "best constant weights": float(np.logaddexp(0, -test_margin_PR @ constant_R).mean()),
    }
    return margins, losses


# --- intervals over pairs and seeds ---------------------------------------------------------------


def pairs_and_seeds(
    credit_SP: _Floats, group_P: NDArray[np.int64], *, num_draws: int = 2000
) -> tuple[float, float, float]:
    """Return the mean credit with its 95 % interval: seeds and prompts are drawn with replacement.

    Args:
        credit_SP: Credit of each pair with each seed, or a difference; NaN if it was not tested.
        group_P: Prompt of each pair; a prompt is drawn whole, the same prompts for every seed.
        num_draws: Number of draws of the bootstrap.
    """
    index_P = np.unique(group_P, return_inverse=True)[1]
    num_seeds, num_groups = len(credit_SP), int(index_P.max()) + 1
    is_tested_SP = ~np.isnan(credit_SP)
    sum_SG, num_SG = (
        np.stack([np.bincount(index_P, weights=row_P, minlength=num_groups) for row_P in array_SP])
        for array_SP in (np.nan_to_num(credit_SP), is_tested_SP.astype(np.float64))
    )
    rng = np.random.default_rng(0)
    times_BS = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=num_draws)
    times_BG = rng.multinomial(num_groups, np.full(num_groups, 1 / num_groups), size=num_draws)
    drawn_B = ((times_BS @ sum_SG) * times_BG).sum(axis=1)
    drawn_B /= ((times_BS @ num_SG) * times_BG).sum(axis=1)
    low, high = middle_95(drawn_B)
    return float(sum_SG.sum() / num_SG.sum()), low, high


def summary_lines(
    results: Sequence[SeedResult], group_P: Mapping[str, NDArray[np.int64]], *, title: str
) -> list[str]:
    """Return a Markdown table and a sentence on the gate.

    The table has the accuracy of each row and its difference to the first row, in percent.

    Args:
        results: Margins by row and set, the mask of the pairs that are tested of the set
            ``held-out``, and losses, of each seed.
        group_P: Prompt of each pair, by set.
        title: Line above the table.
    """

    def credits_of(name: str, test: str) -> _Floats:
        credit_SP = np.full((len(results), len(group_P[test])), np.nan)
        for credit_P, (margins, is_test_P, _) in zip(credit_SP, results, strict=True):
            credit_P[is_test_P if test == "held-out" else ...] = pair_credits(margins[name][test])
        return credit_SP

    columns = [text for test in group_P for text in (test, f"to the {INITIAL}")]
    lines = [f"\n{title} ({len(results)} seeds)\n"]
    lines += [f"| reward | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name in results[0][0]:
        cells = [name]
        for test, group in group_P.items():
            credit_SP = credits_of(name, test)
            difference_SP = credit_SP - credits_of(INITIAL, test)
            cells.append(_percent(credit_SP, group, form="{:.1f} ({:.1f} to {:.1f})"))
            text = _percent(difference_SP, group, form="{:+.1f} ({:+.1f} to {:+.1f})")
            cells.append("" if name == INITIAL else text)
        lines.append(f"| {' | '.join(cells)} |")
    gate, constant = (
        np.array([losses[name] for _, _, losses in results])
        for name in ("gate", "best constant weights")
    )
    lines.append(
        f"\nHeld-out loss of the gate {gate.mean():.3f}, of the best constant weights "
        f"{constant.mean():.3f}; the gate is worse by more than 0.01 with "
        f"{int((gate > constant + 0.01).sum())} of {len(gate)} seeds."
    )
    return lines


def _percent(credit_SP: _Floats, group_P: NDArray[np.int64], *, form: str) -> str:
    return form.format(*(100 * end for end in pairs_and_seeds(credit_SP, group_P)))


def never_below_start(
    pairs: Path, transfer: Path, /, *, labels: Path, out: Path, num_seeds: int = 10
) -> None:
    """Write accuracies of all rewards with intervals over pairs and seeds.

    Args:
        pairs: Preference pairs that are divided into training and test.
        transfer: Preference pairs that are all tested and never learnt from.
        labels: People's labels of single responses, from which the judge of each rule learns.
        out: Markdown file to write.
        num_seeds: Number of seeds; each divides the prompts anew.
    """
    probes = fit_judges(labels)
    records = read({"pairs": pairs, "transfer": transfer})
    rated = {name: rate(of_file, probes) for name, of_file in records.items()}
    results = [
        rewards_of_states(rated["pairs"], {"transfer": rated["transfer"]}, seed=seed)
        for seed in range(num_seeds)
    ]
    group_P = {"held-out": rated["pairs"].group_P, "transfer": rated["transfer"].group_P}
    lines = summary_lines(results, group_P, title=f"{pairs.name} and {transfer.name}")
    out.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    cyclopts.run(never_below_start)
