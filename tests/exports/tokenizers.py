"""A tokenizer that other tools misread unless an export takes care."""

from __future__ import annotations

from typing import Any

from tokenizers.processors import TemplateProcessing

from tests.worlds.tokenizers import byte_level

_CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def misleading_tokenizer() -> Any:
    """Return a tokenizer that pads with the token that ends a turn.

    It adds the first token, which its template also writes, and the template writes a line break
    after the last turn.
    """
    specials = ("<|begin|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
    names = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer = byte_level(specials, template=_CHATML, **names)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer
