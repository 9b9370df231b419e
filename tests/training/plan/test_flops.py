"""Operations per token, peaks and utilisation; the design notes' figures, derived again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import InputError
from encore.training.plan.flops import attention_length, flops_per_token, mfu, peak_flops
from encore.training.plan.gpus import GPUS, gpu_named
from encore.training.plan.named import named_shape

LLAMA = named_shape("llama-3.1-8b")


def test_llama_8b_without_its_output_layer_has_7_5_billion_parameters():
    """The count that gives the notes' 7.5 B: with the embedding table, without ``lm_head``.

    A layer: queries and outputs 2 x 4096 x 4096, keys and values 2 x 4096 x 1024, feed-forward
    3 x 4096 x 14336, two norms of 4096: 218,112,000. 32 layers, the last norm 4,096 and the
    embedding table 128,256 x 4096 = 525,336,576. Without the table it would be 6.98 B.
    """
    assert LLAMA.num_layer_parameters == 218_112_000
    assert LLAMA.num_parameters == 32 * 218_112_000 + 4_096 + 525_336_576 == 7_504_924_672
    assert LLAMA.num_active_parameters == 6_979_588_096


def test_llama_8b_takes_41_9_gflop_per_token():
    """The count that gives the notes' 41.9: six for each weight of the layers' matrices.

    6 x 32 x (218,112,000 - 2 x 4096) = 41.876 x 10⁹; the embedding table, looked up, not multiplied
    with, is in the 7.5 B above but not here.
    """
    assert flops_per_token(LLAMA) == 6 * 32 * (218_112_000 - 8192)
    assert flops_per_token(LLAMA) / 1e9 == pytest.approx(41.9, abs=0.05)


def test_attention_over_300_tokens_adds_little_and_over_8192_a_lot():
    """Forward, a layer: 2 operations x (scores + sum) x 4096 x half the length; x 3 with backward.

    Of 300 tokens: 3 x 32 x 4 x 4096 x 150 = 0.236 GFLOP, 0.56 %; of 8,192: 6.44 GFLOP, 15 %.
    """
    short = flops_per_token(LLAMA, sequence_length=300) - flops_per_token(LLAMA)
    long = flops_per_token(LLAMA, sequence_length=8192) - flops_per_token(LLAMA)
    assert short == 3 * 32 * 4 * 4096 * 150
    assert long / flops_per_token(LLAMA) == pytest.approx(0.154, abs=0.001)


def test_an_encoder_attends_to_the_whole_sequence_a_causal_model_to_half_of_it():
    encoder = named_shape("minilm")
    added = flops_per_token(encoder, sequence_length=100) - flops_per_token(encoder)
    assert added == 3 * 6 * 4 * 384 * 100


def test_forward_is_a_third_and_recomputation_adds_a_forward_pass():
    full = flops_per_token(LLAMA, sequence_length=300)
    assert flops_per_token(LLAMA, sequence_length=300, is_training=False) == full / 3
    assert flops_per_token(LLAMA, sequence_length=300, is_checkpointed=True) == full * 4 / 3


def test_a_negative_length_is_refused():
    with pytest.raises(InputError, match="sequence_length -1"):
        flops_per_token(LLAMA, sequence_length=-1)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_an_average_token_is_in_a_sequence_at_least_as_long_as_the_average_one(lengths):
    assert attention_length(lengths) >= sum(lengths) / len(lengths) - 1e-9
    assert attention_length(lengths) <= max(lengths) + 1e-9
    attended = sum(length * length / 2 for length in lengths)  # Σ over tokens of half the length
    assert sum(lengths) * attention_length(lengths) / 2 == pytest.approx(attended)


def test_no_tokens_attend_to_nothing():
    assert attention_length([]) == 0.0


def test_utilisation_of_an_h100_at_9_443_tokens_a_second_is_40_percent():
    """0.4 x 989.4 x 10¹² / 41.876 x 10⁹ = 9,451 tokens a second."""
    peak = peak_flops("NVIDIA H100 80GB HBM3")
    share = mfu(9_451, flops_per_token=flops_per_token(LLAMA), peak_flops=peak)
    assert share == pytest.approx(0.4, abs=1e-4)


def test_an_unknown_device_has_no_peak_and_no_utilisation():
    assert peak_flops("AMD EPYC") is None
    assert peak_flops("NVIDIA H100 80GB HBM3", dtype="int8") is None
    assert mfu(1.0, flops_per_token=1.0, peak_flops=None) is None


def test_float32_is_slower_than_bfloat16_everywhere_and_float16_the_same():
    for gpu in GPUS:
        for device in gpu.device_names:
            bfloat16 = peak_flops(device, dtype="torch.bfloat16")
            assert peak_flops(device, dtype="float16") == bfloat16
            assert peak_flops(device, dtype="float32") < bfloat16


def test_a_gpu_is_found_by_its_short_name_and_by_what_cuda_calls_it():
    assert gpu_named("H100-80") is gpu_named("NVIDIA H100 80GB HBM3")
    with pytest.raises(InputError, match=r"GPU 'tpu'.*h100-80, h100-pcie-80"):
        gpu_named("tpu")


def test_usable_memory_is_less_than_the_brochure_says():
    """80 GB sold; 79.2 GiB seen; 76.9 for tensors."""
    gpu = gpu_named("h100-80")
    assert gpu.usable_gib == pytest.approx((79.2 - 0.75) * 0.98)
    for other in GPUS:
        advertised = float(other.name.rsplit("-", 1)[1])
        assert 0.85 * advertised < other.usable_gib < advertised
