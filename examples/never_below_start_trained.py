"""The second part of `examples.never_below_start`: a small model that is trained whole.

``python -m examples.never_below_start_trained hh-harmless-dev.jsonl.gz BACKBONE --labels
rbr-gold-dev.jsonl.gz --out trained.md`` trains two models for each seed: a Bradley-Terry model, and
one with head 0 and the heads of the rules, whose two losses share the trunk. Accuracies are on
prompts that the training held out, with intervals over prompts and seeds.

Suffixes: as in `examples.never_below_start`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import cyclopts
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.data.ingestion import ingest
from encore.data.pairs import iter_pairs
from encore.data.records import RESPONSES, PreferencePair
from encore.data.study import open_study
from encore.model.backbone_options import BackboneConfig
from encore.model.held_out_scores import read_held_out_scores
from encore.scoring.head_accuracy import held_out_P
from encore.scoring.head_scores import read_head_scores
from encore.scoring.scoring_options import ScoringConfig
from encore.scoring.scoring_run import score_study
from encore.training.train import train
from encore.training.training_examples import prompt_group
from encore.training.training_options import TrainConfig
from encore.weighting.composed_ratings import pair_credits
from encore.weighting.head_mix import mix_heads
from encore.weighting.preference_head import PREFERENCE_HEAD
from encore.weighting.weigh import weights
from examples.never_below_start import RULES, fit_judges, pairs_and_seeds, ratings_of, states

_Floats = NDArray[np.float64]


def rate(pairs: list[PreferencePair], labels: Path) -> pa.Table:
    """Return ratings of both responses of each pair, by probes for the rules."""
    turns = [pair.prompt[-1].content for pair in pairs for _ in RESPONSES]
    texts = [pair.response_text(response) for pair in pairs for response in RESPONSES]
    rating_NR = ratings_of(fit_judges(labels), states(turns, texts))
    return pa.table(
        {
            "pair_id": np.repeat([pair.pair_id for pair in pairs], 2 * len(RULES)),
            "source": np.repeat([pair.source for pair in pairs], 2 * len(RULES)),
            "response": np.tile(np.repeat(RESPONSES, len(RULES)), len(pairs)),
            "rule_id": np.tile([*RULES], 2 * len(pairs)),
            "rating": rating_NR.ravel(),
        }
    )


def margins_of_seed(
    config: TrainConfig, pairs: list[PreferencePair]
) -> tuple[dict[str, _Floats], NDArray[np.bool_]]:
    """Train both models; return margins of held-out pairs by row, and the mask of these pairs."""
    joint = train(config.study, config.model_copy(update={"preference_head": "joint"}))
    alone = train(config.study, config.model_copy(update={"objective": "bradley-terry"}))
    scoring = score_study(config.study, ScoringConfig(model=str(alone.model_dir)))
    scores = read_head_scores(scoring.out)
    split = {"evaluation_share": config.evaluation_share, "seed": config.seed}
    is_held_out_P = held_out_P(split, pairs, scores)
    held_out = read_held_out_scores(joint.model_dir)
    assert held_out is not None, "a share of the prompts is held out"
    margins = {}
    alone_P2 = scores.score_P2R[is_held_out_P, :, 0].astype(np.float64)
    margins["Bradley-Terry alone"] = alone_P2[:, 0] - alone_P2[:, 1]
    score_P2R = held_out.score_P2R.astype(np.float64)
    margin_PR = score_P2R[:, 0] - score_P2R[:, 1]
    margins["head 0 of joint"] = margin_PR[:, 0]
    for scheme in ("uniform", "encore"):
        vector = weights(config.ratings, scheme=scheme)
        mix = mix_heads(
            dict(zip(vector.rule_ids, vector.weights, strict=True)),
            held_out,
            head_ids=(PREFERENCE_HEAD, *vector.rule_ids),
            beta=1.0,
        )
        margins[f"{scheme}, rules of joint"] = margin_PR[:, 1:] @ np.array(vector.weights)
        margins[f"head 0 + {scheme}, beta 1"] = margin_PR @ np.array([*mix.weights.values()])
    return margins, is_held_out_P


def never_below_start_trained(
    pairs: Path,
    backbone: Path,
    /,
    *,
    labels: Path,
    out: Path,
    num_seeds: int = 3,
    epochs: int = 1,
    learning_rate: float = 3e-4,
) -> None:
    """Write accuracies of both models and of compositions, with intervals over pairs and seeds.

    Args:
        pairs: Preference pairs; 30 % of the prompts are held out, with each seed others.
        backbone: Folder of the language model that every training starts from.
        labels: People's labels of single responses, from which the judge of each rule learns.
        out: Markdown file to write.
        num_seeds: Number of seeds; each divides the prompts anew.
        epochs: Passes over the training pairs.
        learning_rate: Learning rate of both trainings.
    """
    credits_of: dict[str, list[_Floats]] = {}
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study"
        ingest({"pairs": pairs}, out=study)
        records = sorted(iter_pairs(open_study(study)), key=lambda pair: pair.pair_id)
        pq.write_table(rate(records, labels), Path(folder) / "ratings.parquet")
        for seed in range(num_seeds):
            config = TrainConfig(
                study=study,
                ratings=Path(folder) / "ratings.parquet",
                backbone=BackboneConfig(model=str(backbone), max_length=128),
                epochs=epochs,
                learning_rate=learning_rate,
                evaluation_share=0.3,
                evaluate_every=1_000_000,  # after the last step alone
                seed=seed,
            )
            margins, is_held_out_P = margins_of_seed(config, records)
            for name, margin_P in margins.items():
                credit_P = np.full(len(records), np.nan)
                credit_P[is_held_out_P] = pair_credits(margin_P)
                credits_of.setdefault(name, []).append(credit_P)
    group_P = np.array([prompt_group(pair) for pair in records])
    lines = [f"| reward ({num_seeds} seeds) | accuracy | to Bradley-Terry alone |", "|---|---|---|"]
    for name, rows in credits_of.items():
        credit_SP = np.array(rows)
        difference_SP = credit_SP - np.array(credits_of["Bradley-Terry alone"])
        cells = [
            "{:.1f} ({:.1f} to {:.1f})".format(*(100 * end for end in ends))
            for ends in (pairs_and_seeds(array, group_P) for array in (credit_SP, difference_SP))
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    cyclopts.run(never_below_start_trained)
