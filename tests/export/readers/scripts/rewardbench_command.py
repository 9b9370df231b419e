"""The `rewardbench` command as it is, on a machine without CUDA too.

Version 0.1.4 moves every batch to "cuda" by name, whatever device the model is on. Without CUDA
the batch goes to the CPU instead; nothing else is changed.
"""

import sys
from typing import Any

import torch
from transformers import BatchEncoding


def main() -> None:
    """Patch what is named above, then hand over."""
    if not torch.cuda.is_available():
        _send_to_cpu()
    from rewardbench import rewardbench as command

    sys.argv[0] = "rewardbench"
    command.main()


def _send_to_cpu() -> None:
    own = BatchEncoding.to

    def to(self: Any, device: Any, **options: Any) -> Any:
        return own(self, "cpu" if device == "cuda" else device, **options)

    BatchEncoding.to = to


if __name__ == "__main__":
    main()
