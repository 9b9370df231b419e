"""Reward models: a transformer trunk with one linear head per rule, or a classifier run whole.

Legend: N responses, B rows, L tokens of a row, T real tokens, D hidden size, R heads.

A head is linear and bias-free on targets from which the rule's mean was taken: only then does a
weighted sum of heads fold into one head (paper, eq. "encore").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from encore.core.errors import InputError
from encore.model.attention import SegmentPlan
from encore.model.layouts import Microbatch

#: What tables of learnt positions are called.
_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


class MultiHeadRewardModel(nn.Module):  # type: ignore[misc]  # mypy sees torch as Any here
    """Scores of responses under R rules.

    Attributes:
        trunk: The transformer without its language-model head, with ENCORE's attention.
        heads: Linear [D] -> [R] without bias, float32 whatever the trunk's format is.
        head_ids: The rules, in head order.
        mean_R: What was subtracted from each rule's targets: metadata, in no score. Float64.
        is_causal: Whether the trunk's tokens see only earlier ones. Then heads read a response's
            last token, else the mean of its tokens.

    Args:
        trunk: As above.
        head_ids: One per head.
        is_causal: As above.
        position_offset: Added to every position (RoBERTa counts from its padding id + 1).

    Raises:
        InputError: no heads or two of one name.
    """

    def __init__(
        self, trunk: Any, *, head_ids: Sequence[str], is_causal: bool, position_offset: int = 0
    ) -> None:
        super().__init__()
        if not head_ids or len(set(head_ids)) != len(head_ids):
            raise InputError(
                f"heads {list(head_ids)!r}: expected at least one, each with its own name"
            )
        self.trunk = trunk
        self.head_ids = tuple(head_ids)
        self.is_causal = is_causal
        self.position_offset = position_offset
        # Without torch's own first values, which would draw from the caller's random state.
        size = self.hidden_size, len(head_ids)
        self.heads = nn.utils.skip_init(nn.Linear, *size, bias=False, dtype=torch.float32)
        nn.init.zeros_(self.heads.weight)
        self.register_buffer("mean_R", torch.zeros(len(head_ids), dtype=torch.float64))

    def forward(self, microbatch: Microbatch) -> Any:
        """Centred scores score_NR, float32, in the order of the sequences given to `lay_out`."""
        return self.heads(self.embed(microbatch))

    def embed(self, microbatch: Microbatch) -> Any:
        """What the heads read: hidden_ND, float32."""
        segments = microbatch.segments
        device = microbatch.token_ids_BL.device
        plan = segments and SegmentPlan(segments, is_causal=self.is_causal, device=device)
        output = self.trunk(
            input_ids=microbatch.token_ids_BL,
            position_ids=microbatch.position_ids_BL + self.position_offset,
            attention_mask=microbatch.attention_mask_BL,
            use_cache=False,
            segment_plan=plan,
        )
        return self._pool(output.last_hidden_state.flatten(0, 1), microbatch)

    def enable_gradient_checkpointing(self) -> None:
        """Keep only layer inputs and compute the rest again in the backward pass."""
        self.trunk.gradient_checkpointing_enable({"use_reentrant": False})

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.trunk.parameters()).device

    @property
    def hidden_size(self) -> int:
        """D."""
        return int(self.trunk.config.get_text_config().hidden_size)

    def _pool(self, hidden_TD: Any, microbatch: Microbatch) -> Any:
        first_N, last_N = microbatch.first_N, microbatch.last_N
        if self.is_causal:
            return hidden_TD[last_N].float()
        length_N = last_N - first_N + 1
        num_tokens = microbatch.num_tokens
        # The flat index of every real token, sequence by sequence.
        shift_N = first_N - (length_N.cumsum(0) - length_N)
        index_T = torch.arange(num_tokens, device=first_N.device) + shift_N.repeat_interleave(
            length_N, output_size=num_tokens
        )
        return torch.segment_reduce(
            hidden_TD[index_T].float(), "mean", lengths=length_N, unsafe=True
        )


class WholeClassifier(MultiHeadRewardModel):
    """A …ForSequenceClassification of transformers as a reward model, each label a head.

    Models of the kinds in `encore.model.trunks` that end in one linear layer on the last token are
    taken apart and computed without padding. All others are run whole, as they come: encoders with
    their pooler, their dense layer, their bias, and decoders that were never shown to be exact
    here. Rows are padded, so sequences of nearly equal length should be computed together.

    Its scores are its logits, bias included, and its last layer is float32 whatever the format of
    the others, as every head's is. It has no ``heads`` of ours and no state that they read: it is
    scored, not trained, gated or folded.

    Args:
        classifier: In evaluation mode.
        head_ids: One per label.
        pad_token_id: Told to the classifier too: decoders look for the last token that is not it.

    Raises:
        InputError: Two labels of one name.
    """

    def __init__(self, classifier: Any, *, head_ids: Sequence[str], pad_token_id: int) -> None:
        super().__init__(classifier, head_ids=head_ids, is_causal=False)
        del self.heads
        self.pad_token_id = pad_token_id
        for config in (classifier.config, classifier.config.get_text_config()):
            config.pad_token_id = pad_token_id
        linear = [module for module in classifier.modules() if isinstance(module, nn.Linear)]
        heads = [module for module in linear if module.out_features == len(self.head_ids)]
        for layer in heads[-1:]:  # in bfloat16, rewards of about ten would be multiples of 1/16
            layer.float()
            layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))

    def forward(self, microbatch: Microbatch) -> Any:
        """Scores score_NR, float32, in the order of the sequences given to `lay_out`."""
        assert microbatch.segments is None, "a classifier that is run whole reads padded rows"
        token_ids_BL, mask_BL = microbatch.token_ids_BL, microbatch.attention_mask_BL
        is_token_BL = torch.ones_like(token_ids_BL) if mask_BL is None else mask_BL.long()
        return self.trunk(input_ids=token_ids_BL, attention_mask=is_token_BL).logits.float()

    def embed(self, _microbatch: Microbatch) -> Any:
        """Nothing: what its head reads is its own affair.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"model of kind {self.trunk.config.model_type!r}: it is run whole, so nobody knows "
            "what its head reads; expected a model of `encore train` where a gate is wanted"
        )

    @property
    def max_positions(self) -> int | None:
        """Tokens for which it has learnt positions; None where it has no table of them."""
        sizes = []
        for name, module in self.trunk.named_modules():
            if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITION_TABLES:
                # RoBERTa's positions count from its padding id + 1, OPT's from 2.
                padding = module.padding_idx
                first = getattr(module, "offset", 0) if padding is None else padding + 1
                sizes.append(module.num_embeddings - int(first))
        return min(sizes, default=None)
