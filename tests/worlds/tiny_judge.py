"""Make a judge for tests: a small Llama with tokenizer and chat template, but untrained.

It answers ``0.1`` to ``0.9``, as its random attention decides, or nonsense if asked to. One that
thinks writes ``abc</think>`` before. It is made in seconds, and its files are always the same
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.data.rule_sets import load_rule_set
from encore.rating.prompts import RATING_TEMPLATE
from tests.worlds.judges import CHAT_TEMPLATE, SPECIAL_TOKENS
from tests.worlds.tokenizers import trained

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

#: Marks around the thinking, and a template that opens it unless ``enable_thinking`` is false.
THINKING_MARKS = ("<think>", "</think>")
_OPENED = "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
THINKING_TEMPLATE = CHAT_TEMPLATE.replace("<assistant>{%", "<assistant>" + _OPENED + "{%")


def make_tiny_judge(
    folder: Path,
    *,
    hidden_size: int = 64,
    max_model_len: int = 4096,
    num_layers: int = 2,
    tokenizer: PreTrainedTokenizerFast | None = None,
    answers_scores: bool = True,
    thinks: bool = False,
) -> Path:
    """Write a random Llama with tokenizer and chat template into ``folder`` and return it.

    Args:
        folder: Folder to write, created if missing. Its name becomes the judge's name.
        hidden_size: Hidden size, a multiple of 32: vLLM's CPU attention has no smaller heads.
        max_model_len: Context in tokens; a small one makes real prompts too long.
        num_layers: Number of layers. Layers after the second compute but change nothing.
        tokenizer: Tokenizer with a chat template, instead of one trained on prompt and rules.
        answers_scores: False leaves all weights random: replies are incomplete nonsense, null.
        thinks: True makes a judge that writes ``abc</think>`` before its score.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer or _rating_tokenizer()
    if thinks:
        tokenizer.add_tokens([*THINKING_MARKS], special_tokens=True)  # as some models have them
        tokenizer.chat_template = THINKING_TEMPLATE
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=hidden_size // 32,
        max_position_embeddings=max_model_len,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).float()
    if answers_scores:
        _teach_to_spell_scores(model, tokenizer)
    model.save_pretrained(folder)
    return folder


def make_tiny_qwen(folder: Path) -> Path:
    """Write a random Qwen3 into ``folder`` and return it: vLLM serves it as a decision model.

    Its tokenizer has a token for ``yes``, ``no``, each letter and each digit, which are the labels
    of vLLM's questions.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _tokenizer(["yes", "no"] * 9, vocab_size=300)
    tokenizer.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.2,  # so that probabilities differ from prompt to prompt
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).float().save_pretrained(folder)
    return folder


def _rating_tokenizer() -> PreTrainedTokenizerFast:
    texts = [RATING_TEMPLATE, *(rule.rating_rule for rule in load_rule_set("encore-20").rules)]
    return _tokenizer(texts, vocab_size=2048)


def _tokenizer(texts: Sequence[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer = trained(texts, SPECIAL_TOKENS, pre_tokenizer, vocab_size=vocab_size)
    tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token = SPECIAL_TOKENS[:3]
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _teach_to_spell_scores(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Set the weights so that the reply is ``0``, ``.``, a digit and the end token.

    The output row of a token is the embedding of the token before it, and other rows are zero, so
    the last token decides the next one. All nine digits follow the point; each adds a direction
    of its own, among which the random attention to the prompt decides. After ``<think>`` come
    ``abc</think>``, after that or a blank line the score.
    """
    import torch

    spelt = tokenizer.convert_tokens_to_ids(["0", ".", *"123456789"])
    header = tokenizer.convert_tokens_to_ids("<assistant>")
    header, end, zero, point, *digits = ids = [header, tokenizer.eos_token_id, *spelt]
    thinking: list[int] = []
    if set(THINKING_MARKS) <= tokenizer.get_vocab().keys():
        opening, closing = THINKING_MARKS
        *_, line_end = tokenizer.encode("\n\n", add_special_tokens=False)
        thinking = tokenizer.convert_tokens_to_ids([opening, *"abc", closing])
        ids = [*ids, *thinking, line_end]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator)

    hidden_size = model.config.hidden_size
    direction = torch.linalg.qr(random(hidden_size, hidden_size)).Q * hidden_size**0.5
    with torch.no_grad():
        embedding, output = model.model.embed_tokens.weight, model.lm_head.weight
        embedding.copy_(random(*embedding.shape))
        embedding[ids] = direction[: len(ids)]
        output.zero_()
        output[zero] = embedding[header]
        if thinking:
            output[thinking[1:]] = embedding[thinking[:-1]]
            output[zero] += embedding[thinking[-1]] + embedding[line_end]
        output[point] = embedding[zero]
        output[digits] = embedding[point] + direction[len(ids) : len(ids) + 9]
        output[end] = embedding[digits].sum(dim=0)
        for layer in model.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for layer in model.model.layers[:2]:
            for projection, scale in (("q", 0.3), ("k", 0.3), ("v", 0.1), ("o", 0.1)):
                weight = getattr(layer.self_attn, f"{projection}_proj").weight
                weight.copy_(scale * random(*weight.shape))
