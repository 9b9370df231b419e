"""A reward model as a sequence classifier of transformers: class, config.json, weights, tokenizer.

Readers fill in what a config does not say, and each version fills in something else; so everything
is said.

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
from encore.export.weights_input import Composition
from encore.model.conversation import ConversationTokenizer
from encore.model.layouts import TokenIds
from encore.model.opening import OpenedModel
from encore.model.reward_model import MultiHeadRewardModel, WholeClassifier
from encore.model.score_sequences import score_sequences
from encore.weighting.weight_vector import head_weights

ExportDtype = Literal["float32", "bfloat16"]
Scores = NDArray[np.float64]

#: Keys by which a config.json asks its readers to put something between head and score.
_ACTIVATION_KEYS = (
    "function_to_apply",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
)
#: Settings of a machine or of how a model was loaded, not of the model.
_OF_THE_LOADER = ("_name_or_path", "name_or_path", "_attn_implementation", "auto_map")
#: What `Phi3Config` of transformers 4 wants in `rope_scaling`: exactly these.
_PHI3_SCALING = ("long_factor", "short_factor")
#: Rotary settings that transformers 4 reads beside its `rope_scaling`, not in it.
_MOVED = ("rope_theta", "partial_rotary_factor")
_ORIGINAL = "original_max_position_embeddings"
_PROBE = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
_OPEN = "{%- set whole_text -%}"
_CLOSE = (
    "{%- endset -%}"
    "{%- if add_generation_prompt -%}{{- whole_text -}}"
    "{%- else -%}{{- whole_text.rstrip() -}}{%- endif -%}"
)


def classifier_class(model: MultiHeadRewardModel, *, name: str) -> Any:
    """The backbone's own ``…ForSequenceClassification``: linear, without bias, on the last token.

    Args:
        model: A reward model.
        name: What messages call it.

    Raises:
        InputError: An encoder, a sigmoid after the head, an architecture without such a class: why,
            and what would do.
    """
    config = model.trunk.config
    settings, found = config.to_dict(), _CLASSIFIERS.get(type(config), None)
    activated = [one for one in _ACTIVATION_KEYS if "sigmoid" in str(settings.get(one)).casefold()]
    problem = None
    if isinstance(model, WholeClassifier):
        problem = "it is a classifier that is run whole, in a folder that other tools read already"
    elif not model.is_causal:
        problem = (
            "an encoder, whose heads read the mean of the tokens; the classifier of "
            f"{config.model_type!r} in transformers would score otherwise"
        )
    elif activated:
        problem = (
            f"its config.json asks for a sigmoid after the head ({activated[0]}), which cannot be "
            "folded"
        )
    elif found is None or not issubclass(found, GenericForSequenceClassification):
        problem = (
            f"transformers has no sequence classifier for {config.model_type!r} that is one linear "
            "layer on the last token"
        )
    if problem is not None:
        raise InputError(
            f"model {name!r}: {problem}; serve it with `encore serve`, or train a causal backbone "
            "such as Llama, Mistral, Qwen, Gemma or Phi"
        )
    return found


def fold(weight_RD: Any, weights: Mapping[str, float], head_ids: Sequence[str]) -> Any:
    """The one head whose score is the weighted sum of all: Σ w_k W_k, shape [1, D], float64.

    Exact, because heads are linear and without bias (paper, eq. "encore"). Summed in float64 and
    not rounded: the caller rounds once, to what it writes.

    Args:
        weight_RD: The heads' weights, shape [R, D].
        weights: One per head, by head id.
        head_ids: The heads, in order.

    Raises:
        InputError: Weights for other rules than the heads, or that are no finite numbers, or all 0.
    """
    weight_R = torch.from_numpy(head_weights(weights, head_ids=head_ids))
    return weight_R[None] @ weight_RD.detach().cpu().double()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An export on disk and what it was made from.

    Attributes:
        folder: Where it is.
        source: The model in memory, its trunk in float32.
        composition: Weights of the heads; without weights every head is a label.
        tensors: What was written, before it was rounded, by name.
        dtype: Of the tensors on disk.
        architecture: Name of its class in transformers.
    """

    folder: Path
    source: OpenedModel
    composition: Composition
    tensors: Mapping[str, Any]
    dtype: ExportDtype
    architecture: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the scores, in order; ``reward`` of a composed model."""
        return ("reward",) if self.composition.weights else self.source.model.head_ids

    def scores(self, sequences: Sequence[TokenIds]) -> Scores:
        """The labels' scores by the model in memory, [N, K]."""
        model, pad_token_id = self.source.model, self.source.tokenizer.pad_token_id
        score_NR = score_sequences(model, sequences, pad_token_id=pad_token_id).astype(np.float64)
        weights = self.composition.weights
        if weights:
            score_NR = score_NR @ head_weights(weights, head_ids=model.head_ids)[:, np.newaxis]
        return score_NR

    def wrong(self, problem: str) -> EncoreError:
        """What the folder says that the model does not."""
        return EncoreError(
            f"export of {self.source.name!r}: read back with plain transformers it is not this "
            f"model: {problem}; nothing was kept: please report it with the model's config.json"
        )


def classifier_config(written: Written) -> dict[str, Any]:
    """The content of an export's config.json, with all settings that have a default too.

    Raises:
        InputError: A rotary embedding that transformers 4 cannot be told.
    """
    labels, trunk_config = written.labels, written.source.model.trunk.config
    config: dict[str, Any] = trunk_config.to_dict()
    general = PretrainedConfig().to_dict()
    found = {
        key: value
        for key, value in config.items()
        if key not in _OF_THE_LOADER and not (key in general and value == general[key])
    } | {"transformers_version": config["transformers_version"]}
    return (
        found
        | rope_in_both_forms(found, model_type=trunk_config.model_type)
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
    """Rotary settings as transformers 5 writes them (``rope_parameters``) and as 4 reads them.

    Version 4 passes over ``rope_parameters`` and falls back on its own base without a word.

    Args:
        config: With ``rope_parameters``.
        model_type: The architecture.

    Raises:
        InputError: Settings by layer type, or that some version 4 would take for others: of Phi-3
            beyond the three that it knows, of YaRN where it would compute another factor.
    """
    rope, num_positions = config.get("rope_parameters"), config["max_position_embeddings"]
    found = rope if isinstance(rope, dict) else {}
    kind = found.get("rope_type", "default")
    scaling = {key: found[key] for key in found if key not in (*_MOVED, "type")}
    is_tellable = "rope_theta" in found
    if model_type == "phi3" and kind != "default":
        # Version 4 refuses any other set; the original length stands in the config itself.
        is_tellable &= set(scaling) <= {"rope_type", _ORIGINAL, *_PHI3_SCALING}
        scaling = {"type": kind, **{key: scaling.get(key) for key in _PHI3_SCALING}}
    elif kind == "yarn":
        # 4.51 passes over `factor` where the original length is said, and divides the positions by
        # that length; where it is not said, every version takes the positions for the original
        # length. 4.57 wants a factor. Only 4.51 cannot leave the ramp's ends as they are.
        original = scaling.pop(_ORIGINAL, None) or num_positions
        ratio = num_positions / original
        factor = scaling["factor"] = float(scaling.get("factor") or ratio)
        is_tellable &= scaling.pop("truncate", True) and (
            factor == ratio or original == num_positions
        )
        scaling |= {_ORIGINAL: original} if factor == ratio else {}
    elif kind == "longrope":  # version 4 reads its original length in another place than 5
        is_tellable = False
    if not is_tellable:
        raise InputError(
            f"config of the {model_type!r} backbone: transformers 4 would refuse rope_parameters "
            f"{rope!r} of {num_positions} positions or score otherwise; serve this model with "
            "`encore serve`"
        )
    return {
        "rope_parameters": {key: found[key] for key in found if key != "type"},
        **{key: found[key] for key in _MOVED if key in found},
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
        tensors: By name, in any format and on any device.
        folder: Where they go; it is there.
        dtype: Of every tensor on disk.
        max_shard_bytes: Of one file; a larger tensor has a file of its own.
    """
    on_disk = {name: rounded(tensor, dtype) for name, tensor in tensors.items()}
    save_torch_state_dict(on_disk, folder, max_shard_size=max_shard_bytes)


def rounded(tensor: Any, dtype: ExportDtype) -> Any:
    """The tensor as it is written: rounded once, contiguous, on the CPU."""
    return tensor.detach().to(device="cpu", dtype=getattr(torch, dtype)).contiguous()


def write_tokenizer(tokenizer: ConversationTokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Args:
        tokenizer: The reward model's.
        folder: Where they go; it is there.
    """
    hf_tokenizer, template = tokenizer.hf_tokenizer, _ending_template(tokenizer)
    content: dict[str, Any] = json.loads(hf_tokenizer.backend_tokenizer.to_str())
    # It would add special tokens, and the template has written them already.
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
    """The frozen template, made to end where the assistant's turn ends.

    Many templates put a line break after ``<|im_end|>``. ENCORE never scores that token; a reader
    that takes the template as it is would pool it instead of the end of the turn. A downloaded
    reward model does score it, and keeps its template.
    """
    if tokenizer.is_as_downloaded:
        return tokenizer.template
    text: str = tokenizer.hf_tokenizer.apply_chat_template(_PROBE, tokenize=False)
    if text == text.rstrip():
        return tokenizer.template
    # Jinja drops one line break at a template's very end; inside it would be kept.
    return _OPEN + tokenizer.template.removesuffix("\n") + _CLOSE
