"""Pooled states of a frozen backbone are the same in every layout, stored, and continued."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from encore.core.reporting import Reporter
from encore.model.layouts import lay_out
from encore.training import pooled_states
from tests.worlds.models import PAD, tiny_model
from tests.worlds.studies import flip_bit
from tests.worlds.trainings import random_examples

NUM_PAIRS = 10


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Make chunks of 4, 4 and 2 pairs."""
    monkeypatch.setattr(pooled_states, "ROWS_PER_CHUNK", 4)


def rows_of(seed=3):
    examples = random_examples(NUM_PAIRS, seed=seed)
    return list(zip(examples.chosen, examples.rejected, strict=True))


ROWS = rows_of()


def embed(model, rows=ROWS, **settings):
    return pooled_states.embed(model, rows, pad_token_id=PAD, **settings)


def count_forwards(model) -> list[object]:
    """Return a list that gets one element for each further forward pass of the trunk."""
    forwards: list[object] = []
    model.trunk.register_forward_hook(lambda *_: forwards.append(model))
    return forwards


@pytest.mark.parametrize(("kind", "settings"), [("llama", {}), ("bert", {"dropout": 0.5})])
def test_batched_states_equal_those_of_single_sequences(kind, settings, tmp_path):
    model = tiny_model(kind, **settings)
    forwards = count_forwards(model)
    state_PKD = embed(model, cache=tmp_path, tokens_per_microbatch=50)
    assert model.training
    assert len(forwards) < 2 * NUM_PAIRS
    assert (state_PKD.shape, state_PKD.dtype) == ((NUM_PAIRS, 2, 32), np.float32)
    model.eval()
    for row, index in np.ndindex(NUM_PAIRS, 2):
        tokens = ROWS[row][index]
        batch = lay_out([tokens], layout="single", pad_token_id=PAD, is_causal=model.is_causal)
        with torch.no_grad():
            expected_D = model.embed(batch)[0].numpy()
        assert state_PKD[row, index] == pytest.approx(expected_D, abs=1e-5)


def test_a_stopped_call_continues_from_its_files(tmp_path):
    model = tiny_model("llama")
    expected = embed(model, cache=tmp_path / "uninterrupted")
    cache = tmp_path / "stopped"
    reporter = Mock(spec=Reporter, **{"advanced.side_effect": KeyboardInterrupt})
    with pytest.raises(KeyboardInterrupt):
        embed(model, cache=cache, reporter=reporter)
    forwards = count_forwards(model)
    resumed = embed(model, cache=cache, tokens_per_microbatch=1)
    assert len(forwards) == NUM_PAIRS - 4  # the first chunk of 4 pairs was stored
    assert np.array_equal(resumed[:4], expected[:4])
    assert resumed == pytest.approx(expected, abs=1e-5)
    forwards, reporter = count_forwards(model), Mock(spec=Reporter)
    assert np.array_equal(embed(model, cache=cache, reporter=reporter), resumed)
    assert forwards == []
    assert [advanced.args for advanced in reporter.advanced.call_args_list] == [(4,), (4,), (2,)]


def test_a_damaged_file_is_computed_again(tmp_path, caplog):
    model = tiny_model("llama")
    first = embed(model, cache=tmp_path)
    flipped, short, _ = sorted(tmp_path.rglob("*.safetensors"))
    flip_bit(flipped)
    short.write_bytes(short.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(embed(model, cache=tmp_path), first)
    assert caplog.text.count("computed again") == 2


@pytest.mark.parametrize(
    ("seed", "rows"),
    [(1, ROWS), (0, rows_of(seed=4)), (0, [row[::-1] for row in ROWS])],
    ids=["weights", "tokens", "order"],
)
def test_stored_states_of_other_weights_or_tokens_are_not_used(tmp_path, seed, rows):
    embed(tiny_model("llama"), cache=tmp_path)
    model = tiny_model("llama", seed=seed)
    forwards = count_forwards(model)
    state_PKD = embed(model, rows, cache=tmp_path)
    assert len(forwards) > 0
    assert np.array_equal(state_PKD, embed(model, rows, cache=tmp_path / "none"))
