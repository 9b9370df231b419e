"""Real conversations score the same in every batch: to 1e-5, and no pair changes its order."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from encore.demo import JUDGE_PATH
from encore.model.backbone_options import BackboneConfig
from encore.model.layouts import lay_out
from encore.model.load_backbone import load_reward_model
from encore.model.open_model import OpenedModel
from tests.exports.readers.conversations import read_hh
from tests.worlds.scorings import score_pairs
from tests.worlds.tokenizers import demo_tokenizer

# Suffixes: P pairs, 2 responses, N responses, R heads.

BATCH_SIZES = (1, 2, 8, 64)
NUM_HEADS = 10
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def judge() -> OpenedModel:
    """The demo's judge with ten random heads of the size that training gives them."""
    config = BackboneConfig(model=str(JUDGE_PATH), max_length=1024, dtype="float32")
    model = load_reward_model(config, head_ids=[f"rule-{head}" for head in range(NUM_HEADS)])
    with torch.no_grad():
        model.heads.weight.normal_(std=0.02, generator=torch.Generator().manual_seed(0))
    return OpenedModel(
        model=model.eval(), tokenizer=demo_tokenizer(), metadata={}, name="judge", digest=""
    )


def in_batches(
    opened: OpenedModel, sequences: list[NDArray[np.int32]], *, batch_size: int
) -> NDArray[np.float32]:
    """Score right-padded batches in the given order, without code of `encore.scoring`."""
    pad_token_id = opened.tokenizer.pad_token_id
    layout: Any = {"layout": "sorted", "pad_token_id": pad_token_id, "is_causal": True}
    batches = [sequences[n : n + batch_size] for n in range(0, len(sequences), batch_size)]
    with torch.inference_mode():
        return torch.cat([opened.model(lay_out(batch, **layout)) for batch in batches]).numpy()


@pytest.mark.parametrize(
    "num_pairs",
    [pytest.param(20, marks=pytest.mark.services), pytest.param(740, marks=pytest.mark.full)],
    ids=lambda num: f"{num}-pairs",
)
def test_scores_do_not_depend_on_the_batch_and_no_pair_flips(judge, shared_data, num_pairs):
    pairs = list(islice(read_hh(shared_data / "hh-harmless-dev.jsonl.gz"), num_pairs))
    assert len(pairs) == num_pairs
    score_P2R = score_pairs(judge, pairs)
    encoded = judge.tokenizer.encode_pairs(pairs)
    sequences = [
        response.token_ids for pair in encoded for response in (pair.chosen, pair.rejected)
    ]
    scores_by_batching = {
        f"batches of {size}": in_batches(judge, sequences, batch_size=size) for size in BATCH_SIZES
    }
    scores_by_batching["packed"] = score_pairs(
        judge, pairs, layout="packed", tokens_per_microbatch=3000
    )
    scores_by_batching["backwards"] = score_pairs(judge, pairs[::-1])[::-1]
    assert np.abs(score_P2R).max() > 100 * TOLERANCE  # the bound says something
    margin_PR = score_P2R[:, 0] - score_P2R[:, 1]
    for name, scores in scores_by_batching.items():
        other_P2R = scores.reshape(num_pairs, 2, NUM_HEADS)
        assert np.abs(other_P2R - score_P2R).max() <= TOLERANCE, name
        other_margin_PR = other_P2R[:, 0] - other_P2R[:, 1]
        is_clear_PR = np.abs(margin_PR) > TOLERANCE
        assert (np.sign(other_margin_PR) == np.sign(margin_PR))[is_clear_PR].all(), name
