"""Exports of the two models and what ENCORE itself scores, once for all readers.

Legend: P pairs, 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from encore.data.records import PreferencePair
from encore.export.write_export import export_model
from encore.model.opening import OpenedModel, open_reward_model
from encore.model.scoring import score_sequences
from encore.scoring.head_scores import HeadScores
from tests.export.readers.models import (
    TRAP_WEIGHTS,
    WEIGHTS,
    save_demo_model,
    save_trapful_model,
)

ModelName = Literal["demo", "trapful"]
_MODELS: Mapping[ModelName, tuple[Callable[[Path], None], Mapping[str, float]]] = {
    "demo": (save_demo_model, WEIGHTS),
    "trapful": (save_trapful_model, TRAP_WEIGHTS),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exported:
    """One model, its two exports and its own scores of the readers' pairs.

    Attributes:
        opened: The model as ENCORE opens it.
        weights: By head id.
        heads: Its export with a label per rule.
        composed: Its export with one label.
        scores: By its heads.
    """

    opened: OpenedModel
    weights: Mapping[str, float]
    heads: Path
    composed: Path
    scores: HeadScores

    @property
    def score_NR(self) -> NDArray[np.float32]:
        """Scores conversation by conversation, as readers are given them."""
        return self.scores.score_P2R.reshape(-1, len(self.scores.head_ids))

    @property
    def reward_P2(self) -> NDArray[np.float64]:
        """The heads' scores composed by ENCORE, nothing folded."""
        return self.scores.compose(self.weights)


def export_both(name: ModelName, folder: Path, pairs: Sequence[PreferencePair]) -> Exported:
    """Make a model, export it twice in float32, score the pairs."""
    save, weights = _MODELS[name]
    save(folder / "model")
    opened = open_reward_model(folder / "model", device="cpu", dtype="float32")
    heads, composed = folder / f"{name}-heads", folder / name
    export_model(opened, out=heads, weights=None, dtype="float32")
    export_model(opened, out=composed, weights=weights, dtype="float32")
    return Exported(
        opened=opened,
        weights=weights,
        heads=heads,
        composed=composed,
        scores=own_scores(opened, pairs),
    )


def own_scores(opened: OpenedModel, pairs: Sequence[PreferencePair]) -> HeadScores:
    """ENCORE's scores of pairs that fit: what is too long, readers cut in ways of their own."""
    encoded = [
        response
        for pair in opened.tokenizer.encode_pairs(pairs)
        for response in (pair.chosen, pair.rejected)
    ]
    assert not any(response.num_cut for response in encoded)
    score_NR = score_sequences(
        opened.model,
        [response.token_ids for response in encoded],
        pad_token_id=opened.tokenizer.pad_token_id,
    )
    head_ids = opened.model.head_ids
    return HeadScores(
        pair_id_P=np.array([pair.pair_id for pair in pairs], dtype=np.object_),
        source_P=np.array([pair.source for pair in pairs], dtype=np.object_),
        subset_P=np.array([None for _ in pairs], dtype=np.object_),
        score_P2R=score_NR.reshape(-1, 2, len(head_ids)),
        head_ids=head_ids,
        mean_R=opened.model.mean_R.numpy(),
    )
