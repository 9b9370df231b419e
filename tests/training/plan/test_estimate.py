"""Hours and advice: the design notes' floor, what is refused, and what is named instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from encore.errors import InputError
from encore.training.plan.estimate import Settings, estimate_training
from encore.training.plan.flops import flops_per_token
from encore.training.plan.gpus import GPUS, gpu_named
from encore.training.plan.lengths import lengths_from_average
from encore.training.plan.named import named_shape
from encore.training.plan.recipes import RECIPES, recipe_named
from encore.training.plan.summary import as_dict, refusal

LLAMA = named_shape("llama-3.1-8b")
PAPER = lengths_from_average(70_000, tokens_per_response=300, max_length=1024)


def estimate(name="full-stochastic", *, shape=LLAMA, gpu="h100-80", lengths=PAPER, **settings):
    return estimate_training(
        shape,
        recipe=recipe_named(name),
        gpu=gpu_named(gpu),
        lengths=lengths,
        settings=Settings(**settings),
    )


def test_the_floor_of_the_notes_without_attention_over_the_sequence():
    """140K responses of 300 tokens at 40 % of 989.4 TFLOPS: 42 M x 41.876 G / 395.8 T = 4,444 s.

    The notes' 1.2 h packed, 0.8 h with shared prompts (x 0.635), 4.2 h padded (x 1024 / 300).
    """
    seconds = 140_000 * 300 * flops_per_token(LLAMA) / (0.4 * 989.4e12)
    assert seconds / 3600 == pytest.approx(1.2, abs=0.05)
    assert 0.635 * seconds / 3600 == pytest.approx(0.8, abs=0.05)
    assert 1024 / 300 * seconds / 3600 == pytest.approx(4.2, abs=0.05)


def test_with_attention_the_floor_is_the_same_packed_and_higher_padded():
    """Attention adds 0.56 % at 300 tokens, 1.9 % at 1,024: 4.3 h where the notes leave it out."""
    hours = {found.layout: found.hours for found in estimate().hours}
    assert hours["packed"] == pytest.approx(1.24, abs=0.005)
    assert hours["prefix-shared"] == pytest.approx(0.79, abs=0.005)
    assert hours["padded"] == pytest.approx(4.29, abs=0.01)
    assert hours["sorted"] == pytest.approx(hours["packed"] / 0.98, rel=1e-6)


def test_the_default_recipe_trains_the_papers_model_on_the_papers_gpu():
    found = estimate()
    assert found.fits
    assert found.advice is None
    assert found.memory.total < gpu_named("h100-80").usable_gib


def test_gradients_that_stay_between_microbatches_are_counted_and_said():
    """32 pairs of 600 tokens, spread as widely: 19,200 + 4 x 600 x √32 = 32,776 tokens a step."""
    found = estimate(tokens_per_microbatch=16_384)
    assert found.largest_step == 32_776
    assert found.memory.gradients == pytest.approx(13.98, abs=0.01)
    [note] = found.notes
    assert "in microbatches of 16,384" in note
    assert "14.0 GiB instead of 0.4" in note
    whole = estimate(tokens_per_microbatch=32_776)
    assert whole.notes == ()
    assert whole.memory.model_and_optimizer == pytest.approx(42.34, abs=0.01)


def test_padded_rows_are_always_several_microbatches():
    found = estimate(layout="sorted", tokens_per_microbatch=10**6)
    assert found.memory.gradients == pytest.approx(13.98, abs=0.01)


def test_float32_does_not_fit_and_what_does_is_named():
    found = estimate("full-float32")
    assert not found.fits
    message = refusal(found)
    assert "\n" not in message
    assert "recipe full-float32: needs" in message
    assert "recipe full-stochastic with microbatches of 40,960 tokens fits" in message
    assert message.endswith("--optimizer adamw-stochastic --tokens-per-microbatch 40960")


def test_the_same_recipe_with_smaller_microbatches_comes_first():
    """131,072 tokens keep 131,072 x 488 kB = 60 GiB of activations with checkpointing."""
    large = lengths_from_average(10_000, tokens_per_response=1000, max_length=1024)
    found = estimate(lengths=large, batch_pairs=128, tokens_per_microbatch=131_072)
    assert not found.fits
    assert found.advice.recipe == found.recipe
    assert found.advice.tokens_per_microbatch in (65_536, 32_768, 16_384)
    again = estimate(
        lengths=large,
        batch_pairs=128,
        tokens_per_microbatch=found.advice.tokens_per_microbatch,
    )
    assert again.fits
    assert again.memory.total == found.advice.memory.total


@pytest.mark.parametrize("gpu", [gpu.name for gpu in GPUS])
@pytest.mark.parametrize("name", [recipe.name for recipe in RECIPES])
def test_what_is_advised_fits_and_can_be_run(gpu, name):
    found = estimate(name, gpu=gpu)
    if found.fits:
        assert found.advice is None
        return
    if found.advice is None:
        assert "no recipe fits" in refusal(found)
        return
    assert found.advice.recipe.options is not None
    assert found.advice.memory.total <= gpu_named(gpu).usable_gib


def test_seventy_billion_parameters_fit_nowhere_here():
    """70.6 B x 2 bytes = 129 GiB for the weights alone."""
    found = estimate("lora", shape=named_shape("llama-3-70b"))
    assert found.advice is None
    assert "no recipe fits (the smallest, probe, needs 1" in refusal(found)
    assert as_dict(found)["advice"] is None


def test_frozen_weights_need_four_operations_of_six_and_a_probe_two():
    full, lora, probe = (
        estimate(name).hours[0].hours for name in ("full-bfloat16", "lora", "probe")
    )
    assert lora / full == pytest.approx(4 / 6)
    assert probe / full == pytest.approx(2 / 6)


def test_epochs_multiply_training_but_not_a_probe_and_utilisation_divides():
    assert estimate(epochs=3).hours[0].hours == pytest.approx(3 * estimate().hours[0].hours)
    assert estimate("probe", epochs=3).hours == estimate("probe").hours
    halved = estimate(utilisation=0.2).hours[0].hours
    assert halved == pytest.approx(2 * estimate().hours[0].hours)


def test_updating_weights_costs_bandwidth_and_is_named_where_it_is_slow():
    """Weights and states both ways, gradients once: P x (2 x 2 + 2 + 2 x 4) = 105 GB, 31 ms."""
    found = estimate(tokens_per_microbatch=16_384)
    assert found.optimizer_seconds == pytest.approx(7.504_924_672e9 * 14 / 3350e9, rel=0.001)
    tiny = lengths_from_average(100, tokens_per_response=20, max_length=64)
    notes = estimate(lengths=tiny, batch_pairs=1).notes
    assert any("updating the weights takes about" in note for note in notes)


def test_an_encoder_shares_no_prefix_and_has_no_such_row():
    found = estimate(shape=named_shape("minilm"), lengths=_short())
    assert [hours.layout for hours in found.hours] == ["packed", "sorted", "padded"]
    with pytest.raises(InputError, match="layout prefix-shared: backbone 'minilm' is an encoder"):
        estimate(shape=named_shape("minilm"), lengths=_short(), layout="prefix-shared")


def test_sequences_longer_than_the_model_knows_are_refused():
    with pytest.raises(InputError, match="maximum length 1024: backbone 'minilm' knows 512"):
        estimate(shape=named_shape("minilm"))


def test_a_model_whose_attention_is_not_trained_here_is_refused():
    with pytest.raises(InputError, match="backbone 'gemma-2-9b': its attention scores are capped"):
        estimate(shape=named_shape("gemma-2-9b"))


def test_switching_checkpointing_off_needs_all_layers_activations():
    found = estimate(is_checkpointed=False, tokens_per_microbatch=16_384)
    assert not found.fits
    assert found.memory.activations == pytest.approx(98.5, abs=0.5)


def test_the_json_has_the_figures_of_the_tables():
    found = estimate()
    values = as_dict(found)
    assert values["model"]["num_parameters"] == LLAMA.num_parameters
    assert values["memory"]["total_gib"] == pytest.approx(found.memory.total, abs=0.001)
    assert [row["name"] for row in values["recipes"]] == [recipe.name for recipe in RECIPES]
    assert values["hours"]["packed"]["computed_tokens"] == 42_000_000
    assert values["fits"] is True


def _short():
    return replace(PAPER, max_length=512)
