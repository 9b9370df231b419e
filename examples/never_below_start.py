"""A study of composed rewards beside the reward that they begin from, over ten seeds.

``python -m examples.never_below_start hh-harmless-dev.jsonl.gz xstest-dev.jsonl --labels
rbr-gold-dev.jsonl.gz --out study.md`` writes two tables: half-credit accuracy on held-out pairs of
the first file, and on the second. The judge of a rule is a probe that is trained on people's labels
of single responses, as in `examples.rbr_probe`. Features are frozen MiniLM embeddings of a response
and of its prompt's last turn, and every reward but the gate is linear in them. Whatever comes out
is written.

Per seed the prompts are divided: a fifth trains the head that stands in for an initial reward
model, half trains everything else, a tenth is held out for scales and beta, a fifth is the test.

Suffixes: P pairs, S seeds, G prompts, D dimensions, N responses, R rules, B draws, 2 responses.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cyclopts
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from encore.analysis.bootstrap import middle_95
from encore.core.reporting import SILENT
from encore.data.ingestion import ingest
from encore.data.pairs import iter_pairs
from encore.data.records import RESPONSES, PreferencePair
from encore.data.study import open_study
from encore.model.held_out_scores import HeldOutScores
from encore.people.labelled_rows import read_labels
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
from encore.weighting.weigh import weights

_Floats = NDArray[np.float64]
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

    @property
    def difference_PD(self) -> _Floats:
        """Return the chosen response's state minus the rejected one's; the prompt cancels."""
        return np.asarray(self.state_P2D[:, 0] - self.state_P2D[:, 1])

    @property
    def prompt_PD(self) -> NDArray[np.float32]:
        """Return the embedding of the prompt's last turn, the second half of a state."""
        return self.state_P2D[:, 0, self.state_P2D.shape[2] // 2 :].astype(np.float32)

    def take(self, is_taken_P: NDArray[np.bool_]) -> Pairs:
        """Return the pairs that a mask keeps."""
        columns = (self.state_P2D, self.rating_P2R, self.group_P)
        state_P2D, rating_P2R, group_P = (column[is_taken_P] for column in columns)
        return Pairs(state_P2D=state_P2D, rating_P2R=rating_P2R, group_P=group_P)


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


def read(files: Mapping[str, Path], labels: Path) -> dict[str, Pairs]:
    """Return the pairs of each file with states and ratings."""
    with tempfile.TemporaryDirectory() as folder:
        ingest(dict(files), out=Path(folder) / "study")
        records = [*iter_pairs(open_study(Path(folder) / "study"))]
    probes = fit_judges(labels)
    by_file: dict[str, list[PreferencePair]] = defaultdict(list)
    for pair in records:
        by_file[pair.source].append(pair)
    read_pairs = {}
    for name, pairs in by_file.items():
        turns = [pair.prompt[-1].content for pair in pairs for _ in RESPONSES]
        texts = [pair.response_text(response) for pair in pairs for response in RESPONSES]
        state_ND = states(turns, texts)
        read_pairs[name] = Pairs(
            state_P2D=state_ND.reshape(len(pairs), 2, -1),
            rating_P2R=ratings_of(probes, state_ND).reshape(len(pairs), 2, -1),
            group_P=np.array([prompt_group(pair) for pair in pairs]),
        )
    return read_pairs


# --- one seed -------------------------------------------------------------------------------------


def ratings_table(pairs: Pairs) -> pa.Table:
    """Return ratings as `encore.weights` reads them."""
    num_pairs, _, num_rules = pairs.rating_P2R.shape
    return pa.table(
        {
            "pair_id": np.repeat([f"{index:06}" for index in range(num_pairs)], 2 * num_rules),
            "source": ["study"] * pairs.rating_P2R.size,
            "response": np.tile(np.repeat(RESPONSES, num_rules), num_pairs),
            "rule_id": np.tile([*RULES], 2 * num_pairs),
            "rating": pairs.rating_P2R.ravel(),
        }
    )


def rewards_of_seed(
    pairs: Pairs, tests: Mapping[str, Pairs], *, seed: int
) -> tuple[dict[str, dict[str, _Floats]], NDArray[np.bool_], dict[str, float]]:
    """Fit every reward; return margins by row and test, the mask of test pairs, and losses.

    The test named ``held-out`` consists of the pairs of the mask.
    """
    group_G, index_P = np.unique(pairs.group_P, return_inverse=True)
    rank_P = np.random.default_rng(seed).permutation(len(group_G))[index_P] / len(group_G)
    part_P = np.searchsorted(np.cumsum(SHARES), rank_P, side="right")
    before, training, held_out = (pairs.take(part_P == part) for part in range(3))
    tests = {"held-out": pairs.take(part_P == 3), **tests}
    # The heads: two candidates for head 0, and one head for each rule.
    head_0 = {}
    for name, part in ((INITIAL, before), (FITTED, training)):
        # The prompt's half of a difference is 0.
        response_PD = part.difference_PD[:, : part.state_P2D.shape[2] // 2]
        head_D = fit_bradley_terry(
            response_PD, group_P=part.group_P, penalties=PENALTIES, seed=seed
        )
        head_0[name] = np.concatenate([head_D, np.zeros_like(head_D)])
    num_rules = len(RULES)
    dimensions = training.state_P2D.shape[2]
    head_RD, _ = fit_ridge(
        training.state_P2D.reshape(-1, dimensions), training.rating_P2R.reshape(-1, num_rules)
    )
    margin_PR = training.difference_PD @ head_RD.T
    table = ratings_table(training)
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
    reward_D = {**head_0, **{name: weight @ head_RD for name, weight in weight_R.items()}}
    for first, head_D in head_0.items():
        all_RD = np.concatenate([head_D[None], head_RD])
        scores = HeldOutScores(
            score_P2R=(held_out.state_P2D @ all_RD.T).astype(np.float32), group_P=held_out.group_P
        )
        betas: tuple[Beta, ...] = (1.0, "auto")
        for name in ("uniform", "encore", "shrunk, 100 labels", "shrunk, all labels"):
            for beta in betas:
                rules = dict(zip(RULES, weight_R[name].tolist(), strict=True))
                mix = mix_heads(rules, scores, head_ids=(PREFERENCE_HEAD, *RULES), beta=beta)
                label = f"{first} + {name}, beta {beta if beta == 'auto' else 1}"
                reward_D[label] = np.array([*mix.weights.values()]) @ all_RD
    margins = {
        name: {test: of_test.difference_PD @ head_D for test, of_test in tests.items()}
        for name, head_D in reward_D.items()
    }
    gate = fit_gate(
        training.prompt_PD,
        margin_PR.astype(np.float32),
        head_ids=[*RULES],
        config=GATE.model_copy(update={"seed": seed}),
        is_stop_P=stop_pairs(training.group_P, seed=seed),
    )
    margins["gate"] = {
        test: (gate.weights(of_test.prompt_PD) * (of_test.difference_PD @ head_RD.T)).sum(axis=1)
        for test, of_test in tests.items()
    }
    test = tests["held-out"]
    test_margin_PR = test.difference_PD @ head_RD.T
    losses = {
        "gate": gate.mean_loss(test.prompt_PD, test_margin_PR.astype(np.float32)),
        "best constant weights": float(np.logaddexp(0, -test_margin_PR @ constant_R).mean()),
    }
    return margins, part_P == 3, losses


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


def table_lines(credit_by_row: Mapping[str, _Floats], group_P: NDArray[np.int64]) -> list[str]:
    """Return a Markdown table: accuracy, and the difference to either head 0, in points."""
    lines = [f"| reward | accuracy | to {INITIAL} | to {FITTED} |", "|---|---|---|---|"]
    for name, credit_SP in credit_by_row.items():
        cells = [name, "{:.1f} ({:.1f} to {:.1f})".format(*_percent(credit_SP, group_P))]
        for reference in (INITIAL, FITTED):
            difference = _percent(credit_SP - credit_by_row[reference], group_P)
            text = "{:+.1f} ({:+.1f} to {:+.1f})".format(*difference)
            cells.append("" if name == reference else text)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _percent(credit_SP: _Floats, group_P: NDArray[np.int64]) -> list[float]:
    return [100 * value for value in pairs_and_seeds(credit_SP, group_P)]


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
    read_pairs = read({"pairs": pairs, "transfer": transfer}, labels)
    group_P = {"held-out": read_pairs["pairs"].group_P, "transfer": read_pairs["transfer"].group_P}
    credits_of: dict[str, dict[str, list[_Floats]]] = {"held-out": {}, "transfer": {}}
    losses_S = []
    for seed in range(num_seeds):
        margins, is_test_P, losses = rewards_of_seed(
            read_pairs["pairs"], {"transfer": read_pairs["transfer"]}, seed=seed
        )
        losses_S.append(losses)
        for name, by_test in margins.items():
            credit_P = np.full(len(is_test_P), np.nan)
            credit_P[is_test_P] = pair_credits(by_test["held-out"])
            credits_of["held-out"].setdefault(name, []).append(credit_P)
            credits_of["transfer"].setdefault(name, []).append(pair_credits(by_test["transfer"]))
    lines: list[str] = []
    for test, title in (
        ("held-out", pairs.name + ", held-out prompts"),
        ("transfer", transfer.name),
    ):
        by_name = {name: np.array(rows) for name, rows in credits_of[test].items()}
        lines += [f"\n{title} ({num_seeds} seeds)\n", *table_lines(by_name, group_P[test])]
    gate, constant = (
        np.array([losses[name] for losses in losses_S])
        for name in ("gate", "best constant weights")
    )
    lines.append(
        f"\nHeld-out loss of the gate {gate.mean():.3f}, of the best constant weights "
        f"{constant.mean():.3f}; the gate is worse by more than 0.01 with "
        f"{int((gate > constant + 0.01).sum())} of {num_seeds} seeds."
    )
    out.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    cyclopts.run(never_below_start)
