"""The ways to train that a plan compares: how many bytes each keeps for a parameter.

The bytes are those of paper-size training in bfloat16: two for a weight, two for its gradient, and
AdamW's two running means in 4, 2 or 1 byte each.
"""

from __future__ import annotations

from dataclasses import dataclass

from encore.errors import InputError
from encore.training.config import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to train.

    Attributes:
        name: For the command line.
        method: As in `encore.training.config.TrainingConfig`.
        weight_bytes: A parameter of the trunk; also the width of its activations.
        gradient_bytes: The gradient of one; 0 where the trunk is frozen.
        state_bytes: The optimizer's means of one, both together, and a master copy if there is one.
        state_block: Elements that share one float32 scale in each of the two states; 0: no scales.
        is_in_backward: Whether a gradient is applied and freed as soon as it is there.
        options: What `encore train` is called with; None for a recipe it has not, for comparison.
        about: What it is, in a few words.
    """

    name: str
    method: Method
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    state_block: int = 0
    is_in_backward: bool = False
    options: str | None
    about: str
    #: An adapter's weight, gradient and states; as the other bytes.
    adapter_bytes: tuple[int, int, int] = (0, 0, 0)

    @property
    def dtype(self) -> str:
        """Number format of weights and activations."""
        return "float32" if self.weight_bytes == 4 else "bfloat16"


#: In the order in which they are recommended: the first that fits is named.
RECIPES = (
    Recipe(
        name="full-stochastic",
        method="full",
        weight_bytes=2,
        gradient_bytes=2,
        state_bytes=4,
        is_in_backward=True,
        options="--method full --optimizer adamw-stochastic",
        about="bfloat16 with stochastic rounding, applied in the backward pass; the default",
    ),
    Recipe(
        name="full-8bit-in-backward",
        method="full",
        weight_bytes=2,
        gradient_bytes=2,
        state_bytes=2,
        state_block=256,
        is_in_backward=True,
        options="--method full --optimizer adamw-8bit",
        about="8-bit states, applied in the backward pass; needs bitsandbytes or torchao",
    ),
    Recipe(
        name="lora",
        method="lora",
        weight_bytes=2,
        gradient_bytes=0,
        state_bytes=0,
        adapter_bytes=(2, 2, 4),
        options="--method lora",
        about="frozen trunk, low-rank adapters on every matrix, all bfloat16, rounded "
        "stochastically",
    ),
    Recipe(
        name="probe",
        method="probe",
        weight_bytes=2,
        gradient_bytes=0,
        state_bytes=0,
        options="--method probe",
        about="frozen bfloat16 trunk, heads in closed form",
    ),
    Recipe(
        name="full-8bit",
        method="full",
        weight_bytes=2,
        gradient_bytes=2,
        state_bytes=2,
        state_block=256,
        options=None,
        about="8-bit states, gradients kept to the end of the step",
    ),
    Recipe(
        name="full-bfloat16",
        method="full",
        weight_bytes=2,
        gradient_bytes=2,
        state_bytes=4,
        options="--method full --optimizer adamw",
        about="plain bfloat16 AdamW: at a learning rate of 2e-5 rounding leaves most weights where "
        "they are",
    ),
    Recipe(
        name="lora-float32",
        method="lora",
        weight_bytes=2,
        gradient_bytes=0,
        state_bytes=0,
        adapter_bytes=(4, 4, 8),
        options=None,
        about="frozen bfloat16 trunk, float32 adapters",
    ),
    Recipe(
        name="full-float32-states",
        method="full",
        weight_bytes=2,
        gradient_bytes=2,
        state_bytes=8,
        options=None,
        about="bfloat16 weights and gradients, float32 states",
    ),
    Recipe(
        name="full-float32",
        method="full",
        weight_bytes=4,
        gradient_bytes=4,
        state_bytes=8,
        options="--method full --dtype float32 --optimizer adamw",
        about="float32 throughout: AdamW as its authors meant it",
    ),
)

_BY_NAME = {recipe.name: recipe for recipe in RECIPES}


def recipe_named(name: str) -> Recipe:
    """A recipe of this table.

    Raises:
        InputError: not in the table.
    """
    if name not in _BY_NAME:
        raise InputError(f"recipe {name!r}: expected one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
