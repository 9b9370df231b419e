"""Reward models: a transformer trunk with one linear head per rule, or a complete classifier.

Legend: N responses, B rows, L tokens of a row, T real tokens, D hidden size, R heads.

Heads are linear, have no bias, and are trained on targets minus the rule's mean. Only then does a
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

#: Names of embedding tables with learnt positions.
_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


class MultiHeadRewardModel(nn.Module):  # type: ignore[misc]  # mypy sees torch as Any here
    """A transformer with one linear head per rule, which scores responses.

    Attributes:
        trunk: Transformer without its language-model head, with ENCORE's attention.
        heads: Linear layer [D] -> [R] without bias, float32 for any format of the trunk.
        head_ids: Id of each head's rule, in head order.
        mean_R: Mean that was subtracted from each rule's targets, float64. Scores do not contain
            it; it is kept as metadata.
        is_causal: True if a token sees only earlier tokens. Heads then read the last token of a
            sequence; otherwise they read the mean of its tokens.

    Args:
        trunk: Transformer, as above.
        head_ids: Id of each head; ids are unique.
        is_causal: Property of the trunk, as above.
        position_offset: Number added to every position (RoBERTa: padding id + 1).

    Raises:
        InputError: There are no heads, or two have the same id.
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
        # Skip torch's initialisation, which would draw from the caller's random state.
        size = self.hidden_size, len(head_ids)
        self.heads = nn.utils.skip_init(nn.Linear, *size, bias=False, dtype=torch.float32)
        nn.init.zeros_(self.heads.weight)
        self.register_buffer("mean_R", torch.zeros(len(head_ids), dtype=torch.float64))

    def forward(self, microbatch: Microbatch) -> Any:
        """Return centred scores score_NR, float32, in the order of the sequences in `lay_out`."""
        return self.heads(self.embed(microbatch))

    def embed(self, microbatch: Microbatch) -> Any:
        """Return the pooled states that the heads read: hidden_ND, float32."""
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
        """Keep only the inputs of layers, and recompute their activations in the backward pass."""
        self.trunk.gradient_checkpointing_enable({"use_reentrant": False})

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return next(self.trunk.parameters()).device

    @property
    def hidden_size(self) -> int:
        """Return D, the width of the states that the heads read."""
        return int(self.trunk.config.get_text_config().hidden_size)

    def _pool(self, hidden_TD: Any, microbatch: Microbatch) -> Any:
        """Reduce the states of each sequence's tokens to one: the last, or their mean."""
        first_N, last_N = microbatch.first_N, microbatch.last_N
        if self.is_causal:
            return hidden_TD[last_N].float()
        length_N = last_N - first_N + 1
        num_tokens = microbatch.num_tokens
        # Flat index of every real token, sequence by sequence.
        shift_N = first_N - (length_N.cumsum(0) - length_N)
        index_T = torch.arange(num_tokens, device=first_N.device) + shift_N.repeat_interleave(
            length_N, output_size=num_tokens
        )
        return torch.segment_reduce(
            hidden_TD[index_T].float(), "mean", lengths=length_N, unsafe=True
        )


class WholeClassifier(MultiHeadRewardModel):
    """A …ForSequenceClassification that transformers runs as it is; each label is a head.

    A decoder of `encore.model.architectures` with one linear layer on the last token is loaded as a
    `MultiHeadRewardModel` and computed without padding. This class is for all other classifiers:
    encoders with a pooler, a dense layer and a bias, and decoders that are not in that table. Rows
    are padded, so sequences of nearly equal length should be computed together.

    Scores are the classifier's logits, with its bias. Its last layer is float32 for any format of
    the trunk, as all heads are. It has no attribute ``heads`` and no pooled states, so it can be
    scored, but not trained, gated or folded.

    Args:
        classifier: Classifier in evaluation mode.
        head_ids: Id of the head of each label.
        pad_token_id: Id of the token that fills rows. It is set in the classifier's config too:
            decoders look for the last token that differs from it.

    Raises:
        InputError: Two labels have the same name.
    """

    def __init__(self, classifier: Any, *, head_ids: Sequence[str], pad_token_id: int) -> None:
        super().__init__(classifier, head_ids=head_ids, is_causal=False)
        del self.heads
        self.pad_token_id = pad_token_id
        for config in (classifier.config, classifier.config.get_text_config()):
            config.pad_token_id = pad_token_id
        linear = [module for module in classifier.modules() if isinstance(module, nn.Linear)]
        heads = [module for module in linear if module.out_features == len(self.head_ids)]
        for layer in heads[-1:]:  # in bfloat16, rewards near ten would be multiples of 1/16
            layer.float()
            layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))

    def forward(self, microbatch: Microbatch) -> Any:
        """Return scores score_NR, float32, in the order of the sequences in `lay_out`."""
        assert microbatch.segments is None, "a whole classifier reads padded rows"
        token_ids_BL, mask_BL = microbatch.token_ids_BL, microbatch.attention_mask_BL
        is_token_BL = torch.ones_like(token_ids_BL) if mask_BL is None else mask_BL.long()
        return self.trunk(input_ids=token_ids_BL, attention_mask=is_token_BL).logits.float()

    def embed(self, _microbatch: Microbatch) -> Any:
        """Refuse: the input of the classifier's head is unknown.

        Raises:
            InputError: Always.
        """
        raise InputError(
            f"model of kind {self.trunk.config.model_type!r}: it is run whole, so nobody knows "
            "what its head reads; expected a model of `encore train` where a gate is wanted"
        )

    @property
    def max_positions(self) -> int | None:
        """Return the number of learnt positions; None if there is no table of positions."""
        sizes = []
        for name, module in self.trunk.named_modules():
            if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITION_TABLES:
                # RoBERTa's positions count from its padding id + 1, OPT's from 2.
                padding = module.padding_idx
                first = getattr(module, "offset", 0) if padding is None else padding + 1
                sizes.append(module.num_embeddings - int(first))
        return min(sizes, default=None)
