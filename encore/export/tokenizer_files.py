"""The tokenizer of an export: plain files that every version reads, and that say one thing only.

Whoever renders a conversation with the template and tokenises the text gets the tokens that the
model was trained on, whether or not his library adds special tokens to a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from encore.data.records import Message
from encore.errors import InputError
from encore.model.conversation import ConversationTokenizer

_PROBE = (Message(role="user", content="Hi."),)
_PROBE_RESPONSE = "Yes."
#: Parts of a post-processor that change offsets and no token.
_HARMLESS_PROCESSORS = frozenset({"ByteLevel"})
_OPEN = "{%- set whole_text -%}"
_CLOSE = (
    "{%- endset -%}"
    "{%- if add_generation_prompt -%}{{- whole_text -}}"
    "{%- else -%}{{- whole_text.rstrip() -}}{%- endif -%}"
)


def write_tokenizer(tokenizer: ConversationTokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Args:
        tokenizer: The reward model's.
        folder: Where they go; it is there.

    Raises:
        InputError: A tokenizer that has no tokenizer.json (a Python-only one).
        OSError: As the file system reports it.
    """
    template = ending_template(tokenizer)
    _write_json(folder / "tokenizer.json", _tokenizer_json(tokenizer), indent=None)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(tokenizer, template), indent=2)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def ending_template(tokenizer: ConversationTokenizer) -> str:
    """The frozen template, made to end where the assistant's turn ends.

    Many templates put a line break after ``<|im_end|>``. ENCORE never scores that token; a reader
    that takes the template as it is would pool it instead of the end of the turn. A downloaded
    reward model does score it, and keeps its template.
    """
    if tokenizer.is_as_downloaded:
        return tokenizer.template
    messages = [{"role": message.role, "content": message.content} for message in _PROBE]
    messages.append({"role": "assistant", "content": _PROBE_RESPONSE})
    text: str = tokenizer.hf_tokenizer.apply_chat_template(messages, tokenize=False)
    if text == text.rstrip():
        return tokenizer.template
    # Jinja drops one line break at a template's very end; inside it would be kept.
    return _OPEN + tokenizer.template.removesuffix("\n") + _CLOSE


def _tokenizer_json(tokenizer: ConversationTokenizer) -> dict[str, Any]:
    backend = getattr(tokenizer.hf_tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(
            f"tokenizer {type(tokenizer.hf_tokenizer).__name__}: it has no tokenizer.json, which "
            "every reader needs; convert it to a fast tokenizer first"
        )
    content: dict[str, Any] = json.loads(backend.to_str())
    content["post_processor"] = _without_special_tokens(content.get("post_processor"))
    return content


def _without_special_tokens(processor: dict[str, Any] | None) -> dict[str, Any] | None:
    """The post-processor without what adds tokens: the template has written them already."""
    if processor is None:
        return None
    if processor["type"] == "Sequence":
        kept = [one for one in processor["processors"] if one["type"] in _HARMLESS_PROCESSORS]
        return {"type": "Sequence", "processors": kept} if kept else None
    return processor if processor["type"] in _HARMLESS_PROCESSORS else None


def _tokenizer_config(tokenizer: ConversationTokenizer, template: str) -> dict[str, Any]:
    special = {
        name: str(token)
        for name, token in tokenizer.hf_tokenizer.special_tokens_map.items()
        if isinstance(name, str) and name.endswith("_token")
    }
    return {
        **special,
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


def _write_json(path: Path, content: dict[str, Any], *, indent: int | None) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")
