"""Sequence classifiers of any kind, scored by transformers' own forward pass.

Models of the kinds in `encore.model.trunks` that end in one linear layer on the last token are
taken apart and computed without padding. All others are run whole, as they come: encoders with
their pooler, their dense layer, their bias, and decoders that were never shown to be exact here.

Speed: rows are padded to the longest sequence of a microbatch, whose sequences are of like length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from encore.errors import InputError
from encore.model.layouts import Microbatch
from encore.model.reward_model import MultiHeadRewardModel


class WholeClassifier(MultiHeadRewardModel):
    """A …ForSequenceClassification of transformers as a reward model, each label a head.

    Its scores are its logits, bias included. It has no ``heads`` of ours and no state that they
    read: it is scored, not trained, gated or folded.

    Args:
        classifier: In evaluation mode.
        head_ids: One per label.
        pad_token_id: Told to the classifier too: decoders look for the last token that is not it.
    """

    def __init__(self, classifier: Any, *, head_ids: Sequence[str], pad_token_id: int) -> None:
        super().__init__(classifier, head_ids=head_ids, pooling="last", is_causal=False)
        self.heads = nn.Identity()
        self.pad_token_id = pad_token_id
        classifier.config.pad_token_id = pad_token_id

    def forward(self, microbatch: Microbatch) -> Any:
        """Scores score_NR, float32, in the order of the sequences given to `lay_out`."""
        token_ids_NL, is_token_NL = padded_rows(microbatch, pad_token_id=self.pad_token_id)
        output = self.trunk(input_ids=token_ids_NL, attention_mask=is_token_NL.long())
        return output.logits.float()

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
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.trunk.parameters()).device

    @property
    def hidden_size(self) -> int:
        """D."""
        return int(self.trunk.config.hidden_size)


def padded_rows(microbatch: Microbatch, *, pad_token_id: int) -> tuple[Any, Any]:
    """Each sequence in a row of its own, padded on the right: token ids and which are tokens.

    Args:
        microbatch: Of any layout in which no beginning is shared.
        pad_token_id: Fills the rest.

    Returns:
        token_ids_NL, int64, and is_token_NL, bool.
    """
    flat_T = microbatch.token_ids_BL.reshape(-1)
    length_N = microbatch.last_N - microbatch.first_N + 1
    place_L = torch.arange(int(length_N.max()), device=flat_T.device)
    is_token_NL = place_L < length_N[:, None]
    index_NL = (microbatch.first_N[:, None] + place_L).clamp(max=flat_T.numel() - 1)
    token_ids_NL = flat_T[index_NL].long().masked_fill(~is_token_NL, pad_token_id)
    return token_ids_NL, is_token_NL
