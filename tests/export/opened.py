"""Reward models in memory, small enough to export in a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing

from encore.model.conversation import ConversationTokenizer
from encore.model.opening import OpenedModel
from tests.worlds.models import tiny_model
from tests.worlds.tokenizers import byte_level, llama_3

RULES = ("be-kind", "be-brief", "be-true")
WEIGHTS = {"be-kind": 0.5, "be-brief": 0.3, "be-true": 0.2}
MEANS = (0.25, 0.5, 0.75)
MAX_LENGTH = 500
#: Every kind of token of the byte-level tokenizers has a row.
_VOCABULARY = 300
_CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def trapful_tokenizer() -> Any:
    """It pads with the token that ends a turn, adds the first token that its template writes too,
    and the template puts a line break after the last turn."""
    specials = ("<|begin|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
    names = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer = byte_level(specials, template=_CHATML, **names)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer


def opened_model(
    model_type: str = "llama",
    *,
    tokenizer: Any = None,
    metadata: Mapping[str, Any] | None = None,
    **config: Any,
) -> OpenedModel:
    """A random model of three rules; its tokenizer came with the end of a turn to pad with."""
    model = tiny_model(
        model_type,
        head_ids=RULES,
        **({"vocab_size": _VOCABULARY, "max_position_embeddings": 512} | config),
    )
    model.mean_R.copy_(torch.tensor(MEANS, dtype=torch.float64))
    model.trunk.config.auto_map = {"AutoModel": "somebody--code.Model"}
    return OpenedModel(
        model=model.eval(),
        tokenizer=ConversationTokenizer(tokenizer or llama_3(), max_length=MAX_LENGTH),
        metadata=metadata or {},
        name="tiny",
        digest="0" * 64,
    )
