"""The config.json of an export: what every reader needs to score as we do, in every version.

Readers fill in what is not said, and each version fills in something else; so everything is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig

from encore.errors import InputError
from encore.export.records import ExportDtype

#: Settings of a machine or of how a model was loaded, not of the model.
_OF_THE_LOADER = ("_name_or_path", "name_or_path", "_attn_implementation", "auto_map")
#: What `Phi3Config` of transformers 4 wants in `rope_scaling`: exactly these.
_PHI3_SCALING = ("long_factor", "short_factor")


def export_config(
    trunk_config: Any,
    *,
    architecture: str,
    labels: Sequence[str],
    pad_token_id: int,
    dtype: ExportDtype,
) -> dict[str, Any]:
    """The content of an export's config.json.

    Args:
        trunk_config: The transformers config of the backbone.
        architecture: Name of the sequence classifier's class.
        labels: One per score, in order.
        pad_token_id: Of a token that ends nothing.
        dtype: Of the weights beside it.

    Raises:
        InputError: A rotary embedding that transformers 4 cannot be told.
    """
    found = _of_the_model(trunk_config)
    found |= rope_in_both_forms(found, model_type=trunk_config.model_type)
    return found | {
        "architectures": [architecture],
        # Without it vLLM takes labels for classes and serves their sigmoid or softmax.
        "problem_type": "regression",
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        # The last token that is not this one is what readers pool.
        "pad_token_id": pad_token_id,
        # transformers 5 reads the one, transformers 4 and others the other.
        "dtype": dtype,
        "torch_dtype": dtype,
        "use_cache": False,
    }


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
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        raise InputError(
            f"config of the {model_type!r} backbone: rope_parameters {rope!r}; expected one set of "
            "them with rope_theta, for all layers, as transformers 4 knows them"
        )
    rope = {key: value for key, value in rope.items() if key != "type"}
    both: dict[str, Any] = {"rope_parameters": rope, "rope_theta": rope["rope_theta"]}
    if "partial_rotary_factor" in rope:
        both["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if rope.get("rope_type", "default") == "default":
        return both | {"rope_scaling": None}
    kept = ("rope_theta", "partial_rotary_factor")
    scaling = {key: value for key, value in rope.items() if key not in kept}
    if model_type == "phi3":
        scaling = _phi3_scaling(scaling)
    elif rope["rope_type"] == "yarn":
        scaling = _yarn_scaling(scaling, max_positions=config["max_position_embeddings"])
    elif rope["rope_type"] == "longrope":
        raise InputError(
            f"config of the {model_type!r} backbone: longrope, whose original length transformers "
            "4 reads in another place than 5; expected it of phi3 only: serve this model with "
            "`encore serve`"
        )
    return both | {"rope_scaling": scaling}


def _yarn_scaling(scaling: Mapping[str, Any], *, max_positions: int) -> dict[str, Any]:
    """YaRN as 4.51, 4.57 and 5 compute the same of it.

    4.51 passes over ``factor`` where the original length is said, and divides the positions by that
    length; where it is not said, every version takes the positions for the original length. 4.57
    wants a factor, and only 4.51 cannot leave the ramp's ends as they are (``truncate`` false).
    """
    if not scaling.get("truncate", True):
        raise InputError(
            "config of the backbone: YaRN with truncate false, which transformers 4.51 does not "
            "know and would score otherwise; serve this model with `encore serve`"
        )
    known = {key: value for key, value in scaling.items() if key != "truncate"}
    original = known.get("original_max_position_embeddings") or max_positions
    ratio = max_positions / original
    factor = ratio if known.get("factor") is None else float(known["factor"])
    if factor == ratio:
        return known | {"factor": factor, "original_max_position_embeddings": original}
    if original == max_positions:
        without = "original_max_position_embeddings"
        return {key: value for key, value in known.items() if key != without} | {"factor": factor}
    raise InputError(
        f"config of the backbone: YaRN factor {factor:g}, {max_positions} positions of {original} "
        f"original ones; transformers 4.51 would take {ratio:g} for the factor: expected "
        f"max_position_embeddings {round(factor * original)}, or the positions for the original "
        "ones"
    )


def _phi3_scaling(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Version 4 refuses any other set of keys; the original length stands in the config itself."""
    known = {"rope_type", "original_max_position_embeddings", *_PHI3_SCALING}
    if strangers := sorted(set(scaling) - known):
        raise InputError(
            f"config of the 'phi3' backbone: rope settings {', '.join(strangers)}, which "
            "transformers 4 does not take; expected long_factor and short_factor only"
        )
    return {"type": scaling["rope_type"], **{key: scaling[key] for key in _PHI3_SCALING}}


def _of_the_model(trunk_config: Any) -> dict[str, Any]:
    """All settings of the architecture, defaults too: they change from version to version."""
    config: dict[str, Any] = trunk_config.to_dict()
    general = PretrainedConfig().to_dict()
    version = config["transformers_version"]
    return {
        key: value
        for key, value in config.items()
        if key not in _OF_THE_LOADER and not (key in general and value == general[key])
    } | {"transformers_version": version}
