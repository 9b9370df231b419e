"""The plan of a training run equals memory and tokens that are derived by hand."""

from __future__ import annotations

import pytest

from encore.core.errors import InputError
from encore.model.backbone_shape import find_shape, flops_per_token, shape_from_config
from encore.model.gpus import peak_flops
from encore.training.training_plan import PlanTrainConfig, plan_training
from tests.worlds.models import tiny_model

LLAMA = find_shape("llama-3.1-8b")
PAPER = {"pairs": 70_000, "tokens_per_response": 300}


def plan(**settings):
    return plan_training(None, PlanTrainConfig(**{**PAPER, **settings}))


def memory_of(recipe="full-stochastic", **settings):
    return plan(**settings).recipes[recipe]


def test_llama_8b_is_counted_as_its_config_says():
    """A layer: queries and outputs 2 x 4096 x 4096, keys and values 2 x 4096 x 1024, feed-forward
    3 x 4096 x 14336, two norms of 4096: 218,112,000. 32 layers, the last norm 4,096 and the table
    128,256 x 4096. Six operations for each weight of a matrix: 41.9 GFLOP.
    """
    assert LLAMA.num_parameters == 32 * 218_112_000 + 4_096 + 128_256 * 4096 == 7_504_924_672
    assert flops_per_token(LLAMA) == 6 * 32 * (218_112_000 - 8192)
    # Of 300 tokens attention adds 2 operations x (scores + sum) x 4096 x half of it, three times.
    added = flops_per_token(LLAMA, sequence_length=300) - flops_per_token(LLAMA)
    assert added == 3 * 32 * 4 * 4096 * 150


@pytest.mark.parametrize("kind", ["llama", "gemma", "bert", "roberta"])
def test_a_backbone_has_about_as_many_parameters_as_transformers_builds(kind):
    trunk = tiny_model(kind).trunk
    shape = shape_from_config(trunk.config.to_dict(), name=kind)
    built = sum(parameter.numel() for parameter in trunk.parameters())
    # Biases and norms of queries and keys are left out; of tiny layers they are a larger part.
    assert shape.num_parameters == pytest.approx(built, rel=0.01)


def test_peaks_are_those_of_the_device_and_the_format():
    assert peak_flops("NVIDIA H100 80GB HBM3", weight_bytes=2) == 989.4e12
    assert peak_flops("NVIDIA H100 80GB HBM3", weight_bytes=4) == pytest.approx(66.9e12)
    assert peak_flops("another", weight_bytes=2) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # P = 7.505e9 parameters, heads are not counted. P x (2 weight + 4 states) and one layer's
        # gradients, 218,112,000 x 2 bytes = 0.41 GiB: 42.3.
        ("full-stochastic", 42.34),
        ("full-float32", 111.83),  # P x (4 + 4 + 8)
        # P x 2, and adapters of rank 64 on every matrix of a layer, 64 x 81,920 = 5,242,880
        # numbers, 32 layers x 8 bytes: 1.25 GiB.
        ("lora", 15.23),
        ("probe", 13.98),
    ],
)
def test_weights_gradients_and_states_are_bytes_times_parameters(name, expected):
    memory = memory_of(name)
    stored = memory.weights_gib + memory.gradients_gib + memory.optimizer_states_gib
    assert stored == pytest.approx(expected, abs=0.01)
    total = stored + memory.activations_gib + memory.workspace_gib
    assert memory.total_gib == pytest.approx(total, abs=0.003)


def test_checkpointing_keeps_the_inputs_of_layers_and_one_layer():
    """16,384 tokens; a layer keeps for a token, in bytes: attention 2 x 2 x (4096 + 1024),
    feed-forward 2 x 4 x 14336, norms 2 x 4 x 4096 and 2 x 4 x 4096: 200,704. Its input is 8,192;
    the last norm 24,576.
    """
    settings = {"tokens_per_microbatch": 16_384}
    checkpointed = memory_of(**settings).activations_gib
    complete = memory_of(**settings, gradient_checkpointing=False).activations_gib
    assert checkpointed == pytest.approx(16_384 * (32 * 8192 + 200_704 + 24_576) / 2**30, abs=0.001)
    assert complete == pytest.approx(16_384 * (32 * 200_704 + 24_576) / 2**30, abs=0.001)


@pytest.mark.parametrize(
    ("settings", "gradients"),
    [
        ({"tokens_per_microbatch": 32_776}, 0.41),
        ({"tokens_per_microbatch": 32_775}, 13.98),
        ({"layout": "sorted", "tokens_per_microbatch": 10**6}, 13.98),
    ],
)
def test_gradients_that_stay_between_microbatches_are_counted(settings, gradients):
    """32 pairs of 600 tokens, spread as widely: 19,200 + 4 x 600 x √32 = 32,776 tokens a step."""
    assert memory_of(**settings).gradients_gib == pytest.approx(gradients, abs=0.01)


def test_a_layout_computes_padding_and_no_shared_prefix():
    """70,000 pairs of two responses of 300 tokens: 42 M."""
    computed = plan(epochs=3).computed_tokens
    assert computed == {
        "packed": 3 * 42_000_000,
        "sorted": round(3 * 42_000_000 / 0.98),
        "prefix-shared": round(3 * 42_000_000 * 0.635),
    }
    assert plan(recipe="probe", epochs=3).computed_tokens["packed"] == 42_000_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "minilm", "layout": "prefix-shared"}, "backbone 'minilm' is an encoder"),
        ({"backbone": "nothing"}, "backbone 'nothing': no such folder"),
    ],
)
def test_a_model_or_layout_that_cannot_be_planned_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        plan(**settings)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": None}, "hidden_size is None in config.json"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not trained here"),
    ],
)
def test_a_config_json_without_a_known_shape_is_refused(changed, message):
    config = tiny_model("llama").trunk.config.to_dict()
    with pytest.raises(InputError, match=message):
        shape_from_config({**config, **changed}, name="m")
