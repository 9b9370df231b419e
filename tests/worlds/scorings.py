"""Make the smallest real reward model, score studies with it, and build head scores by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encore.core.reporting import SILENT
from encore.data.records import PreferencePair
from encore.model.held_out_scores import HeldOutScores
from encore.model.load_backbone import load_reward_model, load_tokenizer
from encore.model.model_options import ComputingOptions
from encore.model.open_model import OpenedModel
from encore.model.saved_model import save_model
from encore.scoring.head_scores import HeadScores
from encore.scoring.scoring_options import ScoringConfig, ScoringRunOptions
from encore.scoring.scoring_run import ScoreResult, score_encoded, score_study
from tests.worlds.trainings import RULES, backbone_config, make_backbone


def make_model(
    folder: Path,
    *,
    head_ids: Sequence[str] = RULES,
    seed: int = 0,
    chat_template: Path | None = None,
    **metadata: object,
) -> Path:
    """Save a reward model of two layers with random heads and means 0.5, 0.25, 0.125, ..."""
    backbone = folder.with_name(f"{folder.name}-backbone")
    config = backbone_config(backbone if backbone.is_dir() else make_backbone(backbone))
    if chat_template is not None:
        config = config.model_copy(update={"chat_template": str(chat_template), "max_length": 256})
    model = load_reward_model(config, head_ids=head_ids)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        model.heads.weight.normal_(generator=generator)
        model.mean_R.copy_(0.5 ** torch.arange(1, len(head_ids) + 1))
    save_model(folder, model, load_tokenizer(config), metadata=metadata)
    return folder


def score_pairs(
    opened: OpenedModel, pairs: Sequence[PreferencePair], **options: Any
) -> NDArray[np.float32]:
    """Return centred scores as score_P2R: [P, 2, R], the chosen response first."""
    encoded = opened.tokenizer.encode_pairs(pairs)
    score_NR, _ = score_encoded(opened, encoded, computing=ComputingOptions(**options))
    return score_NR.reshape(len(pairs), 2, -1)


def score(study: Path, model: OpenedModel | Path, **settings: Any) -> ScoreResult:
    """Score a study with an opened model or the model in a folder."""
    reporter = settings.pop("reporter", SILENT)
    names = ScoringRunOptions.model_fields.keys() & settings.keys()
    how = ScoringRunOptions(**{name: settings.pop(name) for name in names})
    is_open = isinstance(model, OpenedModel)
    config = ScoringConfig(model=model.name if is_open else str(model), **settings)
    opened = model if is_open else None
    return score_study(study, config, how, opened=opened, reporter=reporter)


def head_scores(
    score_P2R: Any,
    *,
    head_ids: Sequence[str],
    pair_ids: Sequence[str],
    sources: Sequence[str],
    subsets: Sequence[str | None] | None = None,
) -> HeadScores:
    """Return head scores of these pairs, the chosen response first; all means are 0."""
    return HeadScores(
        pair_id_P=np.array(pair_ids, dtype=np.object_),
        source_P=np.array(sources, dtype=np.object_),
        subset_P=np.array(subsets or [None] * len(pair_ids), dtype=np.object_),
        score_P2R=np.array(score_P2R, dtype=np.float32),
        head_ids=tuple(head_ids),
        mean_R=np.zeros(len(head_ids)),
    )


def held_out_scores(score_P2R: Any, group_P: Sequence[int] | None = None) -> HeldOutScores:
    """Return scores of held-out pairs; by default every pair has a prompt of its own."""
    groups = range(len(score_P2R)) if group_P is None else group_P
    return HeldOutScores(
        score_P2R=np.array(score_P2R, dtype=np.float32), group_P=np.array(groups, dtype=np.int64)
    )
