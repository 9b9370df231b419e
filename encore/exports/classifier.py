"""A reward model as a sequence classifier of transformers: class, config.json, weights, tokenizer.

A reader fills in every setting that a config leaves out, and each version fills in another value.
Therefore the config that is written here states every setting.

Suffixes: R heads, K labels, D hidden.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from numpy.typing import NDArray
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as _CLASSIFIERS
from transformers import PretrainedConfig
from transformers.modeling_layers import GenericForSequenceClassification

from encore.core.errors import EncoreError, InputError
from encore.core.files import write_json
from encore.exports.weights_input import Composition
from encore.model.conversation import ConversationTokenizer
from encore.model.layouts import TokenIds
from encore.model.open_model import OpenedModel
from encore.model.reward_model import MultiHeadRewardModel, WholeClassifier
from encore.model.score_sequences import score_sequences
from encore.weighting.weight_vector import head_weights

ExportDtype = Literal["float32", "bfloat16"]
Scores = NDArray[np.float64]

#: Keys of a config.json that ask its readers to apply a function between head and score.
_ACTIVATION_KEYS = (
    "function_to_apply",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
)
#: Settings that describe how a model was loaded, not the model.
_LOADER_KEYS = ("_name_or_path", "name_or_path", "_attn_implementation", "auto_map")
#: The keys that `Phi3Config` of transformers 4 expects in `rope_scaling`, and no others.
_PHI3_SCALING = ("long_factor", "short_factor")
#: Rotary settings that transformers 4 reads beside its `rope_scaling`, not in it.
_KEYS_BESIDE_SCALING = ("rope_theta", "partial_rotary_factor")
_ORIGINAL = "original_max_position_embeddings"
_PROBE = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
_OPEN = "{%- set whole_text -%}"
_CLOSE = (
    "{%- endset -%}"
    "{%- if add_generation_prompt -%}{{- whole_text -}}"
    "{%- else -%}{{- whole_text.rstrip() -}}{%- endif -%}"
)


def classifier_class(model: MultiHeadRewardModel, *, name: str) -> Any:
    """Return the backbone's own ``…ForSequenceClassification``: linear, no bias, on the last token.

    Args:
        model: The reward model to export.
        name: Name of the model in messages.

    Raises:
        InputError: The model is an encoder, has a sigmoid after the head, or transformers has no
            such class for its architecture. The message says why and what can be done.
    """
    config = model.trunk.config
    settings, classifier = config.to_dict(), _CLASSIFIERS.get(type(config), None)
    sigmoid_keys = [
        key for key in _ACTIVATION_KEYS if "sigmoid" in str(settings.get(key)).casefold()
    ]
    problem = None
    if isinstance(model, WholeClassifier):
        problem = "it is a classifier that is run whole, in a folder that other tools read already"
    elif not model.is_causal:
        problem = (
            "an encoder, whose heads read the mean of the tokens; the classifier of "
            f"{config.model_type!r} in transformers would score otherwise"
        )
    elif sigmoid_keys:
        problem = (
            f"its config.json asks for a sigmoid after the head ({sigmoid_keys[0]}), which cannot "
            "be folded"
        )
    elif classifier is None or not issubclass(classifier, GenericForSequenceClassification):
        problem = (
            f"transformers has no sequence classifier for {config.model_type!r} that is one linear "
            "layer on the last token"
        )
    if problem is not None:
        raise InputError(
            f"model {name!r}: {problem}; serve it with `encore serve`, or train a causal backbone "
            "such as Llama, Mistral, Qwen, Gemma or Phi"
        )
    return classifier


def fold(weight_RD: Any, weights: Mapping[str, float], head_ids: Sequence[str]) -> Any:
    """Return one head whose score is the weighted sum of all heads: Σ w_k W_k, shape [1, D].

    The fold is exact, because heads are linear and have no bias (paper, eq. "encore"). The sum is
    in float64 and not rounded: the caller rounds once, to the format that it writes.

    Args:
        weight_RD: Weight matrix of the heads, shape [R, D].
        weights: Weight of each head in the sum, by head id.
        head_ids: Ids of the heads, in head order.

    Raises:
        InputError: The weights name other rules than the heads, are not finite, or are all 0.
    """
    weight_R = torch.from_numpy(head_weights(weights, head_ids=head_ids))
    return weight_R[None] @ weight_RD.detach().cpu().double()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An export on disk and the model that it was made from.

    Attributes:
        folder: Folder of the export.
        source: The model in memory, its trunk in float32.
        composition: Weights of the heads; without weights every head is a label.
        tensors: Tensors of the export before rounding, by name.
        dtype: Number format of the tensors on disk.
        architecture: Name of the model's class in transformers.
    """

    folder: Path
    source: OpenedModel
    composition: Composition
    tensors: Mapping[str, Any]
    dtype: ExportDtype
    architecture: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the scores, in order; a composed model has one, ``reward``."""
        return ("reward",) if self.composition.weights else self.source.model.head_ids

    def scores(self, sequences: Sequence[TokenIds]) -> Scores:
        """Return the labels' scores by the model in memory, shape [N, K]."""
        model, pad_token_id = self.source.model, self.source.tokenizer.pad_token_id
        score_NR = score_sequences(model, sequences, pad_token_id=pad_token_id).astype(np.float64)
        weights = self.composition.weights
        if weights:
            score_NR = score_NR @ head_weights(weights, head_ids=model.head_ids)[:, np.newaxis]
        return score_NR

    def mismatch_error(self, problem: str) -> EncoreError:
        """Return the error of a folder that does not describe this model."""
        return EncoreError(
            f"export of {self.source.name!r}: read back with plain transformers it is not this "
            f"model: {problem}; nothing was kept: please report it with the model's config.json"
        )


def classifier_config(written: Written) -> dict[str, Any]:
    """Return the content of an export's config.json, including settings that have a default.

    Raises:
        InputError: The format of transformers 4 cannot express the rotary embedding.
    """
    labels, trunk_config = written.labels, written.source.model.trunk.config
    config: dict[str, Any] = trunk_config.to_dict()
    library_defaults = PretrainedConfig().to_dict()
    settings = {
        key: value
        for key, value in config.items()
        if key not in _LOADER_KEYS
        and not (key in library_defaults and value == library_defaults[key])
    } | {"transformers_version": config["transformers_version"]}
    return (
        settings
        | rope_in_both_forms(settings, model_type=trunk_config.model_type)
        | {
            "architectures": [written.architecture],
            # Without it vLLM takes labels for classes and serves their sigmoid or softmax.
            "problem_type": "regression",
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
            # The last token that is not this one is what readers pool.
            "pad_token_id": written.source.tokenizer.pad_token_id,
            # transformers 5 reads the one, transformers 4 and others the other.
            "dtype": written.dtype,
            "torch_dtype": written.dtype,
            "use_cache": False,
        }
    )


def rope_in_both_forms(config: Mapping[str, Any], *, model_type: str) -> dict[str, Any]:
    """Return rotary settings in the form of transformers 5 (``rope_parameters``) and of version 4.

    Version 4 ignores ``rope_parameters`` and silently uses its own base.

    Args:
        config: Settings of the backbone, with ``rope_parameters``.
        model_type: Name of the architecture in transformers.

    Raises:
        InputError: The settings differ by layer type, or some version 4 would misread them: Phi-3
            with more than the three keys that it knows, YaRN where it would compute another factor.
    """
    rope, num_positions = config.get("rope_parameters"), config["max_position_embeddings"]
    parameters = rope if isinstance(rope, dict) else {}
    kind = parameters.get("rope_type", "default")
    scaling = {
        key: value
        for key, value in parameters.items()
        if key not in (*_KEYS_BESIDE_SCALING, "type")
    }
    is_expressible = "rope_theta" in parameters
    if model_type == "phi3" and kind != "default":
        # Version 4 refuses any other set; the original length stands in the config itself.
        is_expressible &= set(scaling) <= {"rope_type", _ORIGINAL, *_PHI3_SCALING}
        scaling = {"type": kind, **{key: scaling.get(key) for key in _PHI3_SCALING}}
    elif kind == "yarn":
        # If the original length is given, 4.51 ignores `factor` and divides the positions by that
        # length. If it is not given, every version takes the positions for the original length.
        # 4.57 needs a factor. 4.51 alone cannot keep the ends of the ramp (`truncate` false).
        original = scaling.pop(_ORIGINAL, None) or num_positions
        ratio = num_positions / original
        factor = scaling["factor"] = float(scaling.get("factor") or ratio)
        is_expressible &= scaling.pop("truncate", True) and (
            factor == ratio or original == num_positions
        )
        scaling |= {_ORIGINAL: original} if factor == ratio else {}
    elif kind == "longrope":  # version 4 reads its original length in another place than 5
        is_expressible = False
    if not is_expressible:
        raise InputError(
            f"config of the {model_type!r} backbone: transformers 4 would refuse rope_parameters "
            f"{rope!r} of {num_positions} positions or score otherwise; serve this model with "
            "`encore serve`"
        )
    return {
        "rope_parameters": {key: value for key, value in parameters.items() if key != "type"},
        **{key: parameters[key] for key in _KEYS_BESIDE_SCALING if key in parameters},
        "rope_scaling": None if kind == "default" else scaling,
    }


# --- files ----------------------------------------------------------------------------------------


def write_tensors(
    tensors: Mapping[str, Any],
    folder: Path,
    *,
    dtype: ExportDtype,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write ``model.safetensors``, or several files and their index.

    Args:
        tensors: Tensors by name, in any format and on any device.
        folder: Existing folder to write to.
        dtype: Number format of every tensor on disk.
        max_shard_bytes: Largest size of one file in bytes; a larger tensor gets its own file.
    """
    on_disk = {name: rounded(tensor, dtype) for name, tensor in tensors.items()}
    save_torch_state_dict(on_disk, folder, max_shard_size=max_shard_bytes)


def rounded(tensor: Any, dtype: ExportDtype) -> Any:
    """Return a tensor as it is written: rounded once, contiguous, on the CPU."""
    return tensor.detach().to(device="cpu", dtype=getattr(torch, dtype)).contiguous()


def write_tokenizer(tokenizer: ConversationTokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Args:
        tokenizer: Tokenizer of the reward model.
        folder: Existing folder to write to.
    """
    hf_tokenizer, template = tokenizer.hf_tokenizer, _ending_template(tokenizer)
    content: dict[str, Any] = json.loads(hf_tokenizer.backend_tokenizer.to_str())
    # A post-processor would add special tokens, which the template has written already.
    content["post_processor"] = None
    special = {
        name: str(token)
        for name, token in hf_tokenizer.special_tokens_map.items()
        if isinstance(name, str) and name.endswith("_token")
    }
    config = special | {
        # transformers 5 writes a class that version 4 does not have.
        "tokenizer_class": "PreTrainedTokenizerFast",
        # The fast tokenizer's own default has token_type_ids, which decoders refuse.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": tokenizer.max_length,
        "padding_side": "right",
        "truncation_side": "left",
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    write_json(folder / "tokenizer.json", content, indent=None)
    write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _ending_template(tokenizer: ConversationTokenizer) -> str:
    """Return the frozen template, changed to end where the assistant's turn ends.

    Many templates put a line break after ``<|im_end|>``. ENCORE never scores that token, but a
    reader of the unchanged template would pool it instead of the end of the turn. A downloaded
    reward model does score it and keeps its template.
    """
    if tokenizer.is_as_downloaded:
        return tokenizer.template
    text: str = tokenizer.hf_tokenizer.apply_chat_template(_PROBE, tokenize=False)
    if text == text.rstrip():
        return tokenizer.template
    # Jinja drops one line break at a template's very end; inside it would be kept.
    return _OPEN + tokenizer.template.removesuffix("\n") + _CLOSE
