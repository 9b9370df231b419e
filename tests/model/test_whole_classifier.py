"""A sequence classifier of any kind scores as it does in transformers, one row at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from encore.core.errors import InputError
from encore.data.records import Message
from encore.exports.write_export import export_model
from encore.model.open_model import OpenedModel, model_digest, open_reward_model
from encore.model.reward_model import WholeClassifier
from encore.model.score_sequences import best_layout, score_sequences
from tests.worlds.models import make_classifier
from tests.worlds.tokenizers import bert

PROMPT = (Message(role="user", content="hello there"),)
ANSWERS = ("be kind .", "no", "a very much longer answer than the others " * 3, "assistant : hello")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES = {**SMALL, "intermediate_size": 48, "max_position_embeddings": 160}
#: Encoders with different heads, and decoders that are not in `TRUNKS`.
KINDS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "deberta-v2": {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 160},
    "gemma2": {**SIZES, "num_key_value_heads": 2, "head_dim": 8},
}
CAP_AND_WINDOW = {"attn_logit_softcapping": 0.5, "sliding_window": 8, "query_pre_attn_scalar": 1}


def classifier(folder: Path, kind: str, **changes: Any) -> Path:
    """Write a classifier of a kind with one label."""
    tokenizer = bert()
    settings = {"vocab_size": len(tokenizer), "num_labels": 1} | KINDS.get(kind, {}) | changes
    config = AutoConfig.for_model(kind, pad_token_id=tokenizer.pad_token_id, **settings)
    return make_classifier(folder, config, tokenizer)


def sequences_of(opened: OpenedModel) -> list[Any]:
    return [opened.tokenizer.encode(PROMPT, answer).token_ids for answer in ANSWERS]


def scores_of(opened: OpenedModel, **settings: Any) -> np.ndarray:
    pad_token_id = opened.tokenizer.pad_token_id
    return score_sequences(
        opened.model, sequences_of(opened), pad_token_id=pad_token_id, **settings
    )


def scores_by_transformers(folder: Path, opened: OpenedModel) -> np.ndarray:
    """Score each sequence alone with transformers, without padding."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    inputs = [torch.tensor(ids[None].astype(np.int64)) for ids in sequences_of(opened)]
    with torch.inference_mode():
        return torch.cat([model.eval()(ids).logits for ids in inputs]).numpy()


# transformers' DeBERTa uses a deprecated way to compile functions.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "settings"), [*((kind, {}) for kind in KINDS), ("gemma2", CAP_AND_WINDOW)]
)
def test_any_classifier_scores_as_in_transformers_in_every_batch(kind, settings, tmp_path):
    folder = classifier(tmp_path / "rm", kind, **settings)
    opened = open_reward_model(folder, device="cpu")
    expected = scores_by_transformers(folder, opened)
    assert isinstance(opened.model, WholeClassifier)
    assert np.ptp(expected) > 0.01  # or a wrong token would not be noticed
    for layout, budget in (("packed", 30), ("sorted", 64), ("single", None)):
        score_NR = scores_of(opened, layout=layout, tokens_per_microbatch=budget)
        np.testing.assert_allclose(score_NR, expected, atol=2e-6 * np.abs(expected).max() + 1e-6)


@pytest.mark.parametrize(("kind", "positions"), [("roberta", 159), ("gpt2", 160)])
def test_a_conversation_is_never_longer_than_the_learnt_positions(kind, positions, tmp_path):
    folder = classifier(tmp_path / "rm", kind)  # RoBERTa counts from its padding id + 1
    opened = open_reward_model(folder, device="cpu", max_length=4000)
    assert opened.tokenizer.max_length == positions


def test_a_kind_that_reads_padding_is_refused(tmp_path):
    settings = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
    with pytest.raises(InputError, match="'xlnet' reads padding in transformers"):
        open_reward_model(classifier(tmp_path / "rm", "xlnet", **settings), device="cpu")


def test_a_bfloat16_model_has_scores_with_more_digits_than_bfloat16(tmp_path):
    folder = classifier(tmp_path / "rm", "bert")
    opened = open_reward_model(folder, device="cpu", dtype="bfloat16")
    score_NR = scores_of(opened)
    assert (score_NR != torch.from_numpy(score_NR).bfloat16().float().numpy()).any()


def test_a_whole_classifier_has_a_digest_but_no_export_and_no_gate(tmp_path):
    opened = open_reward_model(classifier(tmp_path / "rm", "bert"), device="cpu")
    assert best_layout(opened.model) == "sorted"
    with torch.no_grad():
        opened.model.trunk.classifier.bias += 1
    assert model_digest(opened.model, opened.tokenizer) != opened.digest
    with pytest.raises(InputError, match="run whole"):
        export_model(opened, out=tmp_path / "out", weights={"reward": 1.0})
    with pytest.raises(InputError, match="nobody knows what its head reads"):
        opened.model.embed(None)
