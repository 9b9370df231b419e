"""Two trained-looking Llamas: the demo's, and one in which every packaging trap is laid.

Legend: R heads, D hidden.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from encore.data.rules import load_rule_set
from encore.demo import judge_path
from encore.model.config import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.loading import load_reward_model, load_tokenizer
from encore.model.saved_model import save_model
from tests.model.tiny_models import tiny_model
from tests.model.tokenizers import byte_level

#: Plain numbers that differ by rule and sum to 1.
WEIGHTS = {
    rule_id: (2 + place) / 65 for place, rule_id in enumerate(load_rule_set("encore-10").rule_ids)
}
TRAP_WEIGHTS = {"rule-0": 0.5, "rule-1": 0.3, "rule-2": 0.2}

_SPECIALS = ("<|begin|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def save_demo_model(folder: Path) -> None:
    """The demo's backbone with ten random heads: a real vocabulary, scores of about one."""
    config = BackboneConfig(model=str(judge_path()), max_length=1024)
    model = load_reward_model(config, head_ids=list(WEIGHTS))
    _draw_heads(model)
    save_model(folder, model, load_tokenizer(config), metadata={})


def save_trapful_model(folder: Path) -> None:
    """A random Llama that only a careful export makes readers agree on.

    It pads with the token that ends a turn; its tokenizer adds the first token that its template
    writes too; the template puts a line break after the last turn; its rotary base and scaling are
    not the defaults; keys have fewer heads than queries.
    """
    model = tiny_model(
        "llama",
        num_heads=len(TRAP_WEIGHTS),
        vocab_size=300,
        hidden_size=128,
        intermediate_size=256,
        max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    )
    _draw_heads(model)
    tokenizer = ConversationTokenizer(_chatml_tokenizer(), max_length=4096)
    save_model(folder, model.eval(), tokenizer, metadata={})


def _chatml_tokenizer() -> Any:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_level(
        _SPECIALS,
        template=CHATML,
        bos_token="<|begin|>",  # noqa: S106
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|im_end|>",  # noqa: S106
    )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer


def _draw_heads(model: Any) -> None:
    """Random heads, and means that a reader must not see in any score."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        model.heads.weight.normal_(std=0.1, generator=generator)
        model.mean_R.uniform_(0.2, 0.9, generator=generator)
