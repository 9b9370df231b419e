"""The rows of `examples.never_below_start` for a small model that is trained whole.

``python -m examples.never_below_start_trained hh-harmless-dev.jsonl.gz xstest-dev.jsonl BACKBONE
--labels rbr-gold-dev.jsonl.gz --work folder --out trained.md`` trains four models for each seed:
the initial reward model, on a fifth of the prompts; and from it, on half of the prompts, a
Bradley-Terry model and two with head 0 and the heads of the rules, whose two losses share the trunk
(rating_loss_weight 1 and 0.1). A tenth is held out for scales and beta, a fifth is the test.

A script of one study, not a part of the library: beside `import encore` it takes inner parts of
ENCORE, which may change.

Suffixes: as in `examples.never_below_start`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cyclopts
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore import (
    ScoringConfig,
    TrainingRunConfig,
    export,
    ingest,
    open_study,
    read_head_scores,
    train,
)
from encore import score as score_study
from encore.data.records import PreferencePair
from encore.model.backbone_options import BackboneConfig
from encore.model.saved_model import load_model
from encore.training.pooled_states import embed, prompt_tokens
from encore.training.training_examples import group_draw, prompt_group, read_examples
from examples.never_below_start import (
    FITTED,
    INITIAL,
    Pairs,
    Scores,
    SeedResult,
    compose,
    fit_judges,
    rate,
    ratings_table,
    read,
    summary_lines,
)

_Floats = NDArray[np.float64]
JOINT = "head 0 of joint"
RATING_LOSS_WEIGHTS = (1.0, 0.1)
#: Ends of the parts by a prompt's draw, which training also holds out by: held out for scales and
#: beta, test, training. The rest trains the initial model.
SCALES_END, TEST_END, TRAINING_END = 0.1, 0.3, 0.8

_Parts = tuple[NDArray[np.intp], list[list[PreferencePair]]]


def ingest_pairs(pairs: list[PreferencePair], study: Path) -> None:
    """Write pairs as a study, unless it has them already."""
    rows = [
        {
            "prompt": [{"role": turn.role, "content": turn.content} for turn in pair.prompt],
            "chosen": pair.chosen,
            "rejected": pair.rejected,
        }
        for pair in pairs
    ]
    ingest({"pairs": rows}, out=study)


def train_models(folder: Path, config: Mapping[str, Any]) -> dict[str, Path]:
    """Train the initial model, and the others from it; return their folders.

    Args:
        folder: Folder with the studies ``initial`` and ``study``, and the ratings of the latter.
        config: Settings of all trainings, with the backbone of the initial model.
    """
    first = TrainingRunConfig(
        **config, objective="bradley-terry", head_init="probe", evaluation_share=0
    )
    models = {INITIAL: train(folder / "initial", first).model_dir}
    if not (folder / "start").is_dir():
        export(models[INITIAL], out=folder / "start")
    start = config["backbone"].model_copy(update={"model": str(folder / "start")})
    common = {
        **config,
        "backbone": start,
        "ratings": folder / "ratings.parquet",
        "evaluation_share": TEST_END,
        "evaluate_every": 1_000_000,  # after the last step alone
    }
    options: dict[str, dict[str, Any]] = {
        FITTED: {"objective": "bradley-terry", "head_init": "probe"}
    }
    for weight in RATING_LOSS_WEIGHTS:
        options[f"{JOINT} {weight}"] = {
            "preference_head": "joint",
            "rating_loss_weight": weight,
            "head_init": "probe",
        }
    for name, of_model in options.items():
        second = TrainingRunConfig(**common, **of_model)
        models[name] = train(folder / "study", second).model_dir
    return models


def score(study: Path, pairs: list[PreferencePair], models: Mapping[str, Path]) -> list[Scores]:
    """Return the scores of pairs with the rules' heads of each joint model."""
    score_P2R, row_of = {}, {}
    for name, model in models.items():
        scores = read_head_scores(score_study(study, ScoringConfig(model=str(model))).out)
        row_of = {pair_id: row for row, pair_id in enumerate(scores.pair_id_P)}
        rows = np.array([row_of[pair.pair_id] for pair in pairs])
        score_P2R[name] = scores.score_P2R[rows].astype(np.float64)
    group_P = np.array([prompt_group(pair) for pair in pairs])
    return [
        Scores(
            preference_P2={
                INITIAL: score_P2R[INITIAL][:, :, 0],
                FITTED: score_P2R[FITTED][:, :, 0],
                JOINT: score_P2R[f"{JOINT} {weight}"][:, :, 0],
            },
            rule_P2R=score_P2R[f"{JOINT} {weight}"][:, :, 1:],
            prompt_PD=prompt_states(study, pairs, models[f"{JOINT} {weight}"]),
            group_P=group_P,
        )
        for weight in RATING_LOSS_WEIGHTS
    ]


def prompt_states(study: Path, pairs: list[PreferencePair], model: Path) -> NDArray[np.float32]:
    """Return the states at the beginning of the assistant's turn, [P, D]."""
    loaded, tokenizer, _ = load_model(model, device="cpu")
    examples = read_examples(open_study(study), tokenizer=tokenizer, objective="bradley-terry")
    texts = zip(examples.chosen, examples.prompt_tokens_P, strict=True)
    state_P1D = embed(
        loaded,
        [(prompt_tokens(chosen, num_prompt),) for chosen, num_prompt in texts],
        cache=model.parent / "prompt-states",
        pad_token_id=tokenizer.pad_token_id,
    )
    row_of = {pair_id: row for row, pair_id in enumerate(examples.pair_id_P)}
    return state_P1D[[row_of[pair.pair_id] for pair in pairs], 0]


def write_studies(
    pairs: Sequence[PreferencePair], rated: Pairs, folder: Path, *, seed: int
) -> _Parts:
    """Divide the pairs by a seed, and write the studies of the initial model and of the others.

    Returns:
        The part of each pair, [P], and the pairs of each part: held out, test, training, and those
        of the initial model.
    """
    draw_P = np.array([group_draw(int(group), seed=seed) for group in rated.group_P])
    part_P = np.searchsorted([SCALES_END, TEST_END, TRAINING_END], draw_P, side="right")
    parts = [[pairs[row] for row in np.flatnonzero(part_P == part)] for part in range(4)]
    ingest_pairs(parts[3], folder / "initial")
    ingest_pairs(parts[0] + parts[1] + parts[2], folder / "study")
    is_in_study_P = part_P != 3
    table = ratings_table(
        rated.rating_P2R[is_in_study_P],
        [pairs[row].pair_id for row in np.flatnonzero(is_in_study_P)],
    )
    pq.write_table(table, folder / "ratings.parquet")
    return part_P, parts


def never_below_start_trained(
    pairs: Path,
    transfer: Path,
    backbone: Path,
    /,
    *,
    labels: Path,
    work: Path,
    out: Path,
    num_seeds: int = 5,
    epochs: int = 2,
    learning_rate: float = 3e-4,
) -> None:
    """Write accuracies of all rewards with intervals over pairs and seeds, after each seed.

    Args:
        pairs: Preference pairs that are divided into training and test.
        transfer: Preference pairs that are all tested and never learnt from.
        backbone: Folder of the language model that the initial reward model is trained from.
        labels: People's labels of single responses, from which the judge of each rule learns.
        work: Folder of studies and models. A stopped run continues from it.
        out: Markdown file to write.
        num_seeds: Number of seeds; each divides the prompts anew.
        epochs: Passes over the training pairs.
        learning_rate: Learning rate of all trainings.
    """
    records = read({"pairs": pairs, "transfer": transfer})
    rated = rate(records["pairs"], fit_judges(labels))
    ingest_pairs(records["transfer"], work / "transfer")
    group_P = {
        "held-out": rated.group_P,
        "transfer": np.array([prompt_group(pair) for pair in records["transfer"]]),
    }
    results: dict[float, list[SeedResult]] = {weight: [] for weight in RATING_LOSS_WEIGHTS}
    for seed in range(num_seeds):
        folder = work / f"seed-{seed}"
        part_P, parts = write_studies(records["pairs"], rated, folder, seed=seed)
        config = {
            "backbone": BackboneConfig(model=str(backbone), max_length=128),
            "epochs": epochs,
            "batch_pairs": 8,
            "learning_rate": learning_rate,
            "seed": seed,
        }
        models = train_models(folder, config)
        held_out, test, training = (score(folder / "study", part, models) for part in parts[:3])
        moved = score(work / "transfer", records["transfer"], models)
        lines: list[str] = []
        for index, weight in enumerate(RATING_LOSS_WEIGHTS):
            margins, losses = compose(
                training[index],
                held_out[index],
                {"held-out": test[index], "transfer": moved[index]},
                rating_P2R=rated.rating_P2R[part_P == 2],
                seed=seed,
            )
            results[weight].append((margins, part_P == 1, losses))
            title = f"rating_loss_weight {weight}"
            lines += summary_lines(results[weight], group_P, title=title)
        out.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    cyclopts.run(never_below_start_trained)
