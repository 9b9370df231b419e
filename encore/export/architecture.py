"""Which class of transformers can say a reward model, and who is refused because none can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
from transformers.modeling_layers import GenericForSequenceClassification

from encore.errors import InputError
from encore.model.whole_classifier import WholeClassifier

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel

#: Keys by which a config.json asks its readers to put something between head and score.
_ACTIVATION_KEYS = (
    "function_to_apply",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
)

#: The oldest transformers that exports are tested with; `rewardbench` from PyPI has it.
OLDEST_TESTED = "4.51"
#: Classifiers that came later: the oldest tested one that has them.
_SINCE = {"olmo2": "5.19"}


def minimum_transformers(model_type: str) -> str:
    """The oldest version of transformers that is known to read an export of this architecture."""
    return _SINCE.get(model_type, OLDEST_TESTED)


def classifier_class(model: MultiHeadRewardModel, *, name: str) -> Any:
    """The backbone's own ``…ForSequenceClassification``: linear, without bias, on the last token.

    Args:
        model: A reward model.
        name: What messages call it.

    Raises:
        InputError: An encoder or another pooling than the last token's, heads that are more than
            linear, an architecture without such a class: why, and what would do.
    """
    _refuse_other_pooling(model, name=name)
    _refuse_other_heads(model, name=name)
    config = model.trunk.config
    found = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    if found is None or not issubclass(found, GenericForSequenceClassification):
        raise InputError(
            f"model {name!r}: transformers has no sequence classifier for {config.model_type!r} "
            "that is one linear layer on the last token, so no plain folder can say this model; "
            "serve it with `encore serve`, or train on a Llama, Mistral, Qwen, Gemma or Phi"
        )
    return found


def _refuse_other_pooling(model: MultiHeadRewardModel, *, name: str) -> None:
    if isinstance(model, WholeClassifier):
        raise InputError(
            f"model {name!r}: a classifier of transformers that is run whole; it is a folder that "
            "other tools read already, and there is no linear layer to fold: give them that folder"
        )
    if model.is_causal and model.pooling == "last":
        return
    kind = "a causal backbone" if model.is_causal else "an encoder"
    raise InputError(
        f"model {name!r}: {kind} whose heads read the {_POOLED[model.pooling]}; the classifier of "
        f"{model.trunk.config.model_type!r} in transformers reads something else, so the export "
        "would score differently; expected a causal backbone pooled at its last token: serve this "
        "one with `encore serve`"
    )


_POOLED = {
    "last": "last token",
    "mean": "mean of the tokens",
    "class-token": "class token without its dense layer",
}


def _refuse_other_heads(model: MultiHeadRewardModel, *, name: str) -> None:
    heads = model.heads
    if type(heads) is not torch.nn.Linear:
        raise InputError(
            f"model {name!r}: its heads are {type(heads).__name__}, not one linear layer; a "
            "sigmoid or a gate cannot be folded or said by a plain classifier: export the linear "
            "heads, or serve the model with `encore serve`"
        )
    if heads.bias is not None:
        raise InputError(
            f"model {name!r}: its heads have a bias, which transformers would drop without a word; "
            "expected heads without one (train on centred targets)"
        )
    if not torch.isfinite(heads.weight).all():
        raise InputError(
            f"model {name!r}: its heads hold values that are no finite numbers; train again"
        )
    config = model.trunk.config.to_dict()
    for key in _ACTIVATION_KEYS:
        if "sigmoid" in str(config.get(key, "")).casefold():
            raise InputError(
                f"model {name!r}: its config.json asks for a sigmoid after the head ({key}), which "
                "cannot be folded; remove that key if the head's own score is wanted"
            )
