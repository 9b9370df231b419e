"""Embeddings of a frozen backbone: the same for every layout, kept, and continued after a stop."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from encore.core.reporting import Reporter
from encore.model.layouts import lay_out
from encore.training import pooled_states as embeddings
from tests.training.tiny_training import PAD, random_examples, tiny_bert, tiny_llama

NUM_PAIRS = 10


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 4, 4 and 2 pairs."""
    monkeypatch.setattr(embeddings, "ROWS_PER_CHUNK", 4)


def rows_of(seed=3):
    examples = random_examples(NUM_PAIRS, seed=seed)
    return list(zip(examples.chosen, examples.rejected, strict=True))


ROWS = rows_of()


def embed(model, rows=ROWS, **how):
    return embeddings.embed(model, rows, pad_token_id=PAD, **how)


class Counting(Reporter):
    """Keeps what it hears; stops the work at the first count if told so."""

    def __init__(self, *, stops=False):
        self.counts, self.stops = [], stops

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        self.counts.append(count)
        if self.stops:
            raise KeyboardInterrupt


class Forwards:
    """Counts the forward passes of a trunk and the most tokens that one computed."""

    def __init__(self, model):
        self.num, self.most_tokens = 0, 0
        model.trunk.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module, arguments, named):
        self.num += 1
        self.most_tokens = max(self.most_tokens, named["input_ids"].numel())


def alone(model, tokens):
    """The embedding of one sequence by itself."""
    model.eval()
    one = lay_out([tokens], layout="single", pad_token_id=PAD, is_causal=model.is_causal)
    with torch.no_grad():
        return model.embed(one)[0].numpy()


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_each_response_has_its_own_embedding_within_the_budget(name, tmp_path):
    model = tiny_llama(["a"]) if name == "llama" else tiny_bert(["a"], dropout=0.5)
    model.train()
    forwards = Forwards(model)
    found = embed(model, cache=tmp_path, tokens_per_microbatch=50)
    assert model.training
    assert forwards.most_tokens <= 50
    assert forwards.num < 2 * NUM_PAIRS
    assert (found.shape, found.dtype) == ((NUM_PAIRS, 2, 32), np.float32)
    for row, sequences in enumerate(ROWS):
        for place, tokens in enumerate(sequences):
            assert found[row, place] == pytest.approx(alone(model, tokens), abs=1e-5)


def test_a_stopped_embedding_goes_on_where_it_was(tmp_path):
    model = tiny_llama(["a"])
    whole = embed(model, cache=tmp_path / "whole")
    cache = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        embed(model, cache=cache, reporter=Counting(stops=True))
    forwards = Forwards(model)
    resumed = embed(model, cache=cache, tokens_per_microbatch=1)
    assert forwards.num == NUM_PAIRS - 4  # the first chunk of 4 pairs was there
    assert np.array_equal(resumed[:4], whole[:4])
    assert resumed == pytest.approx(whole, abs=1e-5)
    forwards, reporter = Forwards(model), Counting()
    assert np.array_equal(embed(model, cache=cache, reporter=reporter), resumed)
    assert (forwards.num, reporter.counts) == (0, [4, 4, 2])


def test_a_damaged_file_is_computed_again(tmp_path, caplog):
    model = tiny_llama(["a"])
    first = embed(model, cache=tmp_path)
    one_bit, cut_short, _ = sorted(tmp_path.rglob("*.safetensors"))
    data = one_bit.read_bytes()
    one_bit.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    cut_short.write_bytes(cut_short.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(embed(model, cache=tmp_path), first)
    assert caplog.text.count("computed again") == 2


@pytest.mark.parametrize(
    ("seed", "rows"),
    [(1, ROWS), (0, rows_of(seed=4)), (0, [row[::-1] for row in ROWS])],
    ids=["weights", "tokens", "order"],
)
def test_other_weights_or_tokens_find_nothing(tmp_path, seed, rows):
    embed(tiny_llama(["a"], seed=0), cache=tmp_path)
    model = tiny_llama(["a"], seed=seed)
    forwards = Forwards(model)
    kept = embed(model, rows, cache=tmp_path)
    assert forwards.num > 0
    assert np.array_equal(kept, embed(model, rows, cache=tmp_path / "none"))
