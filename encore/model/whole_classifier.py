"""Sequence classifiers of any kind, scored by transformers' own forward pass.

Models of the kinds in `encore.model.trunks` that end in one linear layer on the last token are
taken apart and computed without padding. All others are run whole, as they come: encoders with
their pooler, their dense layer, their bias, and decoders that were never shown to be exact here.

Speed: rows are padded, so sequences of nearly equal length are computed together (`best_layout`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from encore.errors import InputError
from encore.model.layouts import Microbatch, TokenIds, lay_out
from encore.model.reward_model import MultiHeadRewardModel, check_heads

#: What tables of learnt positions are called.
_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


def whole_attention(config: Mapping[str, Any]) -> str | None:
    """The attention of transformers that computes what a config.json says; None: its default.

    The default passes over a cap on attention scores (Gemma 2).
    """
    return "eager" if config.get("attn_logit_softcapping") else None


class WholeClassifier(MultiHeadRewardModel):
    """A …ForSequenceClassification of transformers as a reward model, each label a head.

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
        nn.Module.__init__(self)
        check_heads(head_ids)
        self.trunk = classifier
        self.head_ids = tuple(head_ids)
        self.pooling = "last"
        self.is_causal = False
        self.position_offset = 0
        self.pad_token_id = pad_token_id
        self.heads = nn.Identity()
        self.register_buffer("mean_R", torch.zeros(len(self.head_ids), dtype=torch.float64))
        self._text_config = classifier.config.get_text_config()
        for config in (classifier.config, self._text_config):
            config.pad_token_id = pad_token_id
        _keep_last_layer_exact(classifier, num_labels=len(self.head_ids))

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
        return int(self._text_config.hidden_size)

    @property
    def max_positions(self) -> int | None:
        """Tokens for which it has learnt positions; None where it has no table of them."""
        sizes = [
            module.num_embeddings - _first_position(module)
            for name, module in self.trunk.named_modules()
            if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITION_TABLES
        ]
        return min(sizes, default=None)


def padding_effect(model: WholeClassifier, sequences: Sequence[TokenIds]) -> float:
    """How much a sequence's score changes beside the others, as a share of scores or of 1.

    It is rounding for most kinds. XLNet's head reads the last place of a row, FNet mixes all.

    Args:
        model: In evaluation mode.
        sequences: Of unequal length.
    """

    def scores_of(some: Sequence[TokenIds]) -> Any:
        microbatch = lay_out(
            some, layout="packed", pad_token_id=model.pad_token_id, is_causal=False
        )
        return model(microbatch.to(model.device))

    with torch.inference_mode():
        alone_NR = torch.cat([scores_of([one]) for one in sequences])
        beside_NR = scores_of(sequences)
        scale = alone_NR.abs().max().clamp(min=1.0)
        return float((alone_NR - beside_NR).abs().max() / scale)


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


def _first_position(table: nn.Embedding) -> int:
    """Where positions begin: RoBERTa's count from its padding id + 1, OPT's from 2."""
    if table.padding_idx is not None:
        return int(table.padding_idx) + 1
    return int(getattr(table, "offset", 0))


def _keep_last_layer_exact(classifier: Any, *, num_labels: int) -> None:
    """In bfloat16, rewards of about ten would be multiples of 1/16 and often tie."""
    layers = [
        module
        for module in classifier.modules()
        if isinstance(module, nn.Linear) and module.out_features == num_labels
    ]
    if not layers or layers[-1].weight.dtype == torch.float32:
        return
    layers[-1].float()
    layers[-1].register_forward_pre_hook(lambda _layer, inputs: (inputs[0].float(), *inputs[1:]))
