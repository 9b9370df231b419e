"""Scores and gradients do not depend on the layout (float32: 1e-5, and 1e-4 relative)."""

from __future__ import annotations

import pytest
import torch

from tests.worlds.models import pair_with_shared_beginning, scores_and_gradients, tiny_model

PAIRS = [(0, 1), (2, 3), (4, 5)]
#: Three pairs: they share a long beginning, nothing, and all but the last token.
BATCH = [
    *pair_with_shared_beginning(40, 9, 17, seed=1),
    *pair_with_shared_beginning(0, 5, 30, seed=2),
    *pair_with_shared_beginning(12, 1, 1, seed=3),
]


def assert_close(actual, expected):
    (score_NR, gradients), (expected_NR, expected_gradients) = actual, expected
    torch.testing.assert_close(score_NR, expected_NR, atol=1e-5, rtol=0)
    # A gradient that is zero in exact arithmetic (a key's bias) consists of rounding alone.
    rounding = 1e-6 * torch.cat([g.flatten() for g in expected_gradients.values()]).norm()
    for name, gradient in gradients.items():
        limit = 1e-4 * expected_gradients[name].norm() + rounding
        assert (gradient - expected_gradients[name]).norm() <= limit, name


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        *(("llama", layout) for layout in ("packed", "sorted", "prefix-shared")),
        *(("bert", layout) for layout in ("packed", "sorted")),
    ],
)
def test_layouts_and_checkpointing_change_neither_scores_nor_gradients(kind, layout):
    model = tiny_model(kind)
    groups = PAIRS if layout == "prefix-shared" else ()
    expected = scores_and_gradients(model, BATCH, layout="single")
    assert expected[0].std() > 1e-2  # scores differ, so equality is a test
    assert_close(scores_and_gradients(model, BATCH, layout=layout, groups=groups), expected)
    # Gradient checkpointing computes every layer twice.
    calls = []
    name = "layers.0.mlp.up_proj" if kind == "llama" else "encoder.layer.0.intermediate.dense"
    model.trunk.get_submodule(name).register_forward_hook(lambda *_: calls.append("layer"))
    model.enable_gradient_checkpointing()
    assert_close(scores_and_gradients(model, BATCH, layout=layout, groups=groups), expected)
    assert len(calls) == 2
