"""Which model this is, by everything that its scores follow from."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from encore.model.conversation import ConversationTokenizer
    from encore.model.reward_model import MultiHeadRewardModel

#: Fields of a config.json that say where a model lay or what wrote it, not what it computes.
_NOT_COMPUTED = ("_name_or_path", "transformers_version")


def parameter_digest(module: Any) -> str:
    """SHA-256 over a module's weights: names, formats, shapes, bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def architecture_text(model: MultiHeadRewardModel) -> str:
    """What the trunk's config says of how it computes, as canonical JSON."""
    config = json.loads(model.trunk.config.to_json_string(use_diff=False))
    for name in _NOT_COMPUTED:
        config.pop(name, None)
    return json.dumps(config, sort_keys=True)


def model_digest(model: MultiHeadRewardModel, tokenizer: ConversationTokenizer) -> str:
    """SHA-256 over a reward model: architecture, weights and their format, heads, input format.

    Two models with one digest give a conversation the same scores, but for rounding on another
    device. Reading 8 billion weights takes some ten seconds.

    Args:
        model: Its means count too: they are part of what its scores mean.
        tokenizer: Vocabulary, frozen template and maximum length.
    """
    parts = [
        architecture_text(model),
        model.pooling,
        json.dumps(model.head_ids),
        parameter_digest(model),
        _vocabulary_digest(tokenizer.hf_tokenizer),
        _special_roles(tokenizer.hf_tokenizer),
        tokenizer.template_sha256,
        str(tokenizer.max_length),
        *(["as downloaded"] if tokenizer.is_as_downloaded else []),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _special_roles(hf_tokenizer: Any) -> str:
    """Which tokens begin, end and part texts: templates print them, and cutting keeps the first."""
    roles = {name: str(token) for name, token in hf_tokenizer.special_tokens_map.items()}
    return json.dumps(roles, sort_keys=True)


def _vocabulary_digest(hf_tokenizer: Any) -> str:
    """Of everything that turns text into ids; of the vocabulary alone where that is all there is.

    Truncation, padding and the switch for special tokens are set by whoever calls the tokenizer.
    """
    backend = getattr(hf_tokenizer, "backend_tokenizer", None)
    if backend is None:
        content = dict(hf_tokenizer.get_vocab())
    else:
        content = json.loads(backend.to_str())
        content = {name: content[name] for name in content if name not in ("padding", "truncation")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
