"""Compiled norms and gated layers give the same scores and gradients, with few compilations."""

from __future__ import annotations

import copy

import pytest
import torch

from encore.model.fusing import fuse_elementwise, has_compiler
from tests.worlds.models import scores_and_gradients, tiny_model, token_ids

# Torch reads the gradient of an intermediate tensor while it traces.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.mark.parametrize(("kind", "is_checkpointed"), [("llama", False), ("qwen3", True)])
def test_fused_layers_give_the_same_scores_and_gradients(kind, is_checkpointed):
    eager = tiny_model(kind)
    fused = copy.deepcopy(eager)
    compiled_graphs = []

    def count_graphs(graph, _inputs):
        compiled_graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    # Each of the two layers has two norms and a gated layer; one norm follows the last layer. Qwen3
    # also has norms of queries and keys.
    assert fuse_elementwise(fused.trunk, backend=count_graphs) == (7 if kind == "llama" else 11)
    if is_checkpointed:
        eager.enable_gradient_checkpointing()
        fused.enable_gradient_checkpointing()
    # Training, evaluation and all batch shapes need more graphs than torch's default limit of 8.
    assert torch._dynamo.config.recompile_limit >= 64
    for lengths in [(7, 12, 5), (20, 3)]:  # the second batch must not be compiled again
        sequences = [token_ids(length, seed=index) for index, length in enumerate(lengths)]
        expected_NR, expected_gradients = scores_and_gradients(eager, sequences)
        score_NR, gradients = scores_and_gradients(fused, sequences)
        torch.testing.assert_close(score_NR, expected_NR, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-6)
    # One graph for each class of layer and number of input dimensions, for all layers and batches.
    # The recomputation of checkpointing adds graphs.
    assert 2 <= len(compiled_graphs) <= 6


def test_kernels_are_compiled_only_with_a_c_compiler_and_pythons_headers(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "Python.h").touch()
    assert not has_compiler({}, headers=tmp_path)
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    assert has_compiler({}, headers=tmp_path)
    assert has_compiler({"CC": str(compiler)}, headers=tmp_path)
    (tmp_path / "Python.h").unlink()  # a Python without its development files
    assert not has_compiler({}, headers=tmp_path)
