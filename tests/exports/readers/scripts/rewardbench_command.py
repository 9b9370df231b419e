"""Run the unchanged `rewardbench` command, also on a machine without CUDA.

Version 0.1.4 moves every batch to "cuda" by name, whatever device the model is on. Without CUDA
the batch goes to the CPU instead; nothing else is changed.
"""

import sys
from typing import Any

import torch
from transformers import BatchEncoding

if __name__ == "__main__":
    original_to = BatchEncoding.to

    def to(self: Any, device: Any, **options: Any) -> Any:
        return original_to(self, "cpu" if device == "cuda" else device, **options)

    if not torch.cuda.is_available():
        BatchEncoding.to = to
    from rewardbench import rewardbench as command

    sys.argv[0] = "rewardbench"
    command.main()
