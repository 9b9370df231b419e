"""Embeddings of a frozen backbone: the same for every layout, kept, and continued after a stop."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from encore.model.layouts import lay_out
from encore.reporting import SilentReporter
from encore.training import embeddings
from encore.training.embeddings import embed_examples, embed_prompts
from tests.training.tiny_training import PAD, random_examples, tiny_bert, tiny_llama

NUM_PAIRS = 10


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 4, 4 and 2 pairs."""
    monkeypatch.setattr(embeddings, "PAIRS_PER_CHUNK", 4)


@pytest.fixture(scope="module")
def examples():
    return random_examples(NUM_PAIRS, seed=3)


def models():
    return {"llama": tiny_llama(["a"]), "bert": tiny_bert(["a"], dropout=0.5)}


class Counting(SilentReporter):
    """Counts embedded pairs; may stop after the first file."""

    def __init__(self, *, stops: bool = False):
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


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(("llama", layout) for layout in ("packed", "prefix-shared", "sorted", "single")),
        *(("bert", layout) for layout in ("packed", "sorted", "single")),
    ],
)
def test_every_layout_gives_each_response_its_own_embedding(examples, name, layout):
    model = models()[name]
    found = embed_examples(model, examples, layout=layout, tokens_per_microbatch=60)
    for table, state_PD in (
        (examples.chosen, found.chosen_PD),
        (examples.rejected, found.rejected_PD),
    ):
        assert state_PD.shape == (NUM_PAIRS, 32)
        assert state_PD.dtype == np.float32
        for row in range(NUM_PAIRS):
            assert state_PD[row] == pytest.approx(alone(model, table[row]), abs=1e-5)


@pytest.mark.parametrize("layout", ["packed", "sorted"])
def test_no_forward_pass_exceeds_the_budget(examples, layout):
    model = tiny_llama(["a"])
    forwards = Forwards(model)
    embed_examples(model, examples, layout=layout, tokens_per_microbatch=50)
    longest = max(*examples.chosen.lengths, *examples.rejected.lengths)
    assert longest <= forwards.most_tokens <= 50
    assert forwards.num < 2 * NUM_PAIRS


def test_a_model_in_training_is_left_in_training_and_embeds_without_dropout(examples):
    model = tiny_bert(["a"], dropout=0.5).train()
    first, second = embed_examples(model, examples), embed_examples(model, examples)
    assert np.array_equal(first.chosen_PD, second.chosen_PD)
    assert model.training


def test_prompts_are_embedded_where_the_response_begins(examples):
    model = tiny_llama(["a"])
    found = embed_prompts(model, examples)
    for row in range(NUM_PAIRS):
        prompt = examples.chosen[row][: examples.prompt_tokens_P[row]]
        assert found[row] == pytest.approx(alone(model, prompt), abs=1e-5)


# --- the cache --------------------------------------------------------------------------------


def test_what_is_kept_is_not_computed_again(examples, tmp_path):
    model = tiny_llama(["a"])
    first = embed_examples(model, examples, cache=tmp_path)
    forwards = Forwards(model)
    reporter = Counting()
    again = embed_examples(model, examples, cache=tmp_path, reporter=reporter)
    assert forwards.num == 0
    assert np.array_equal(first.chosen_PD, again.chosen_PD)
    assert np.array_equal(first.rejected_PD, again.rejected_PD)
    assert reporter.counts == [4, 4, 2]


def test_a_stopped_embedding_goes_on_where_it_was(examples, tmp_path):
    model = tiny_llama(["a"])
    whole = embed_examples(model, examples)

    with pytest.raises(KeyboardInterrupt):
        embed_examples(model, examples, cache=tmp_path, reporter=Counting(stops=True))
    forwards = Forwards(model)
    resumed = embed_examples(model, examples, cache=tmp_path, tokens_per_microbatch=1)
    assert forwards.num == 2 * (NUM_PAIRS - 4)  # the first chunk of 4 pairs was there
    assert np.array_equal(resumed.chosen_PD[:4], whole.chosen_PD[:4])
    assert resumed.chosen_PD == pytest.approx(whole.chosen_PD, abs=1e-5)


@pytest.mark.parametrize("damage", ["cut short", "one bit"])
def test_a_damaged_file_is_computed_again(examples, tmp_path, caplog, damage):
    model = tiny_llama(["a"])
    first = embed_examples(model, examples, cache=tmp_path)
    path = sorted(tmp_path.rglob("*.safetensors"))[1]
    data = bytearray(path.read_bytes())
    if damage == "one bit":
        data[-5] ^= 1
    path.write_bytes(data if damage == "one bit" else data[: len(data) // 2])
    with caplog.at_level(logging.WARNING):
        again = embed_examples(model, examples, cache=tmp_path)
    assert np.array_equal(first.chosen_PD, again.chosen_PD)
    assert np.array_equal(first.rejected_PD, again.rejected_PD)
    assert "computed again" in caplog.text


def test_other_weights_or_tokens_find_nothing(examples, tmp_path):
    embed_examples(tiny_llama(["a"], seed=0), examples, cache=tmp_path)
    for model, pairs in (
        (tiny_llama(["a"], seed=1), examples),
        (tiny_llama(["a"], seed=0), random_examples(NUM_PAIRS, seed=4)),
    ):
        forwards = Forwards(model)
        kept = embed_examples(model, pairs, cache=tmp_path)
        assert forwards.num > 0
        assert np.array_equal(kept.chosen_PD, embed_examples(model, pairs).chosen_PD)


def test_prompts_and_responses_are_kept_apart(examples, tmp_path):
    model = tiny_llama(["a"])
    embed_examples(model, examples, cache=tmp_path)
    prompts = embed_prompts(model, examples, cache=tmp_path)
    assert np.array_equal(prompts, embed_prompts(model, examples))
