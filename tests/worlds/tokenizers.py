"""Small tokenizers that tests build: one token for each byte, and special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from encore.demo import JUDGE_PATH
from encore.model.backbone_options import BackboneConfig
from encore.model.conversation import ConversationTokenizer

LLAMA_3_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|finetune_right_pad_id|>",
)
#: The relevant part of Llama 3.1's template: a header with a date, then trimmed turns.
LLAMA_3_TEMPLATE = (
    "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\n{{ strftime_now('%d %b %Y') }}"
    "<|eot_id|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
)


def byte_level(
    specials: Sequence[str], *, template: str | None = None, **tokens_by_role: str
) -> Any:
    """Return a byte-level tokenizer with special tokens, some of them by role (``eos_token``)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens_by_role)
    fast.chat_template = template
    return fast


def trained(
    texts: Iterable[str], specials: Sequence[str], pre_tokenizer: Any, *, vocab_size: int
) -> Any:
    """Return a byte-pair tokenizer trained on texts; none of its special tokens has a role."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        vocab_size=vocab_size,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def llama_3(**tokens_by_role: str) -> Any:
    """Return a tokenizer with Llama 3's tokens; by default it pads with the end-of-turn token."""
    defaults = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "pad_token": "<|eot_id|>",
    }
    return byte_level(LLAMA_3_TOKENS, template=LLAMA_3_TEMPLATE, **(defaults | tokens_by_role))


#: The relevant part of Qwen 2.5's template: a system message by default, a newline after each turn.
CHATML_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chatml(template: str = CHATML_TEMPLATE) -> Any:
    """Return a tokenizer with Qwen's tokens."""
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokens_by_role = {"pad_token": specials[0], "eos_token": specials[2]}
    return byte_level(specials, template=template, **tokens_by_role)


@cache
def demo_tokenizer(max_length: int = 1024) -> ConversationTokenizer:
    """Return the tokenizer of the demo's judge."""
    from encore.model.load_backbone import load_tokenizer  # imports torch

    return load_tokenizer(BackboneConfig(model=str(JUDGE_PATH), max_length=max_length))


def bert() -> Any:
    """Return a lower-casing WordPiece tokenizer without a chat template."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = ["human", "assistant", "system", ":", "hello", "there", "be", "kind", ".", "[", "]"]
    pieces += [*"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    vocabulary = {token: index for index, token in enumerate([*specials, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=specials[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(specials)
    roles = ("pad_token", "unk_token", "cls_token", "sep_token")
    tokens_by_role = dict(zip(roles, specials, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens_by_role)
