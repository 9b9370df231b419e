"""The files of an export that every version of transformers reads: tensors and tokenizer.

Whoever renders a conversation with the template and tokenises the text gets the tokens that the
model was trained on, whether or not his library adds special tokens to a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file

from encore.errors import InputError
from encore.model.conversation import ConversationTokenizer

INDEX_FILE = "model.safetensors.index.json"
_PROBE = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
#: Part of a post-processor that changes offsets and no token.
_HARMLESS_PROCESSOR = "ByteLevel"
_OPEN = "{%- set whole_text -%}"
_CLOSE = (
    "{%- endset -%}"
    "{%- if add_generation_prompt -%}{{- whole_text -}}"
    "{%- else -%}{{- whole_text.rstrip() -}}{%- endif -%}"
)


def write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write a JSON object and a line break."""
    text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")


def write_tensors(
    tensors: Mapping[str, Any], folder: Path, *, dtype: Any, max_shard_bytes: int = 5_000_000_000
) -> None:
    """Write ``model.safetensors``, or several files and their index; one file in memory at a time.

    Args:
        tensors: By name, in any format and on any device.
        folder: Where they go; it is there.
        dtype: Torch's, of every tensor on disk.
        max_shard_bytes: Of one file; a larger tensor has a file of its own.
    """
    shapes = {
        name: torch.empty(tensor.shape, dtype=dtype, device="meta")
        for name, tensor in tensors.items()
    }
    split = split_torch_state_dict_into_shards(shapes, max_shard_size=max_shard_bytes)
    for filename, names in split.filename_to_tensors.items():
        shard = {name: rounded(tensors[name], dtype) for name in names}
        # transformers 4 refuses a file without this mark.
        save_file(shard, folder / filename, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / INDEX_FILE, index)


def rounded(tensor: Any, dtype: Any) -> Any:
    """The tensor as it is written: rounded once, contiguous, on the CPU."""
    return tensor.detach().to(device="cpu", dtype=dtype).contiguous()


def write_tokenizer(tokenizer: ConversationTokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Args:
        tokenizer: The reward model's.
        folder: Where they go; it is there.

    Raises:
        InputError: A tokenizer that has no tokenizer.json (a Python-only one).
    """
    hf_tokenizer, template = tokenizer.hf_tokenizer, _ending_template(tokenizer)
    backend = getattr(hf_tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(
            f"tokenizer {type(hf_tokenizer).__name__}: it has no tokenizer.json, which every "
            "reader needs; convert it to a fast tokenizer first"
        )
    content: dict[str, Any] = json.loads(backend.to_str())
    content["post_processor"] = _without_special_tokens(content.get("post_processor"))
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


def _without_special_tokens(processor: dict[str, Any] | None) -> dict[str, Any] | None:
    """The post-processor without what adds tokens: the template has written them already."""
    if processor is None or processor["type"] == _HARMLESS_PROCESSOR:
        return processor
    parts = processor["processors"] if processor["type"] == "Sequence" else []
    kept = [part for part in parts if part["type"] == _HARMLESS_PROCESSOR]
    return {"type": "Sequence", "processors": kept} if kept else None
