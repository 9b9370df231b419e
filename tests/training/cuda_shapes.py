"""Run the CUDA path of the 8B model on fake tensors, which have devices, formats and shapes only.

It needs a CUDA build of torch, but no GPU: `python -m tests.training.cuda_shapes` with that build
first on `PYTHONPATH`. It prints one JSON line for the result of each forward pass and each update.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import varlen

from encore.model.backbone_shape import find_shape
from encore.model.layouts import lay_out
from encore.model.reward_model import MultiHeadRewardModel
from encore.training.stochastic_adamw import _kernels
from tests.worlds.models import LAYOUTS, llama_trunk

#: Compute capability of the H100.
CAPABILITY = (9, 0)


def main() -> None:
    """Run each layout with each number of heads, and an update in each number format."""
    calls = mock.Mock(wraps=varlen.varlen_attn)
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        # The lazy constructor cannot move fake tensors. It only skips the initialisation.
        mock.patch.object(torch.nn.utils, "skip_init", _plain_constructor),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=CAPABILITY),
        mock.patch.object(varlen, "varlen_attn", calls),
    ):
        for num_heads in (1, 10):
            model = _model(num_heads)
            for layout in LAYOUTS:
                calls.reset_mock()
                score_NR = _forward(model, layout)
                _print_tensor(
                    "forward",
                    score_NR,
                    layout=layout,
                    num_heads=num_heads,
                    num_kernel_calls=calls.call_count,
                )
        for dtype in (torch.bfloat16, torch.float32):
            _print_tensor("update", _update(dtype))


def _model(num_heads: int) -> MultiHeadRewardModel:
    trunk = llama_trunk(find_shape("llama-3-8b"))
    with torch.device("cuda"):
        head_ids = [f"rule-{number}" for number in range(num_heads)]
        return MultiHeadRewardModel(trunk, head_ids=head_ids, is_causal=True)


def _forward(model: MultiHeadRewardModel, layout: Any) -> Any:
    prompt = np.arange(100, dtype=np.int32)
    sequences = [np.concatenate([prompt, np.arange(tail, dtype=np.int32)]) for tail in (50, 70)]
    if layout == "single":
        sequences = sequences[:1]
    microbatch = lay_out(sequences, layout=layout, groups=[(0, 1)], pad_token_id=0, is_causal=True)
    with torch.no_grad():
        return model(microbatch.to("cuda"))


def _update(dtype: torch.dtype) -> Any:
    """Return a parameter after one update. Its gradient is made up: a backward pass needs a GPU."""
    update = _kernels(is_compiled=False)[dtype]
    weight, first, second, gradient = torch.empty(4, 4096 * 1024, dtype=dtype, device="cuda")
    coefficients = torch.empty(6, dtype=torch.float32, device="cuda")
    start, key_2 = torch.zeros(3, dtype=torch.int32, device="cuda").split([1, 2])
    update(weight, first, second, gradient, coefficients, start[0], key_2)
    return weight


def _plain_constructor(kind: Any, *positional: Any, **named: Any) -> Any:
    return kind(*positional, **named)


def _print_tensor(event: str, tensor: Any, **settings: Any) -> None:
    result = {"device": tensor.device.type, "dtype": str(tensor.dtype), "shape": [*tensor.shape]}
    sys.stdout.write(json.dumps({"event": event, **settings, **result}) + "\n")


if __name__ == "__main__":
    main()
