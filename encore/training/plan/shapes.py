"""How large a backbone is: its dimensions, and what follows from them, counted exactly.

Symbols: D hidden size, I intermediate size, V vocabulary, Q width of all query heads, K width of
all key (or value) heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: "rms": root mean square, weight applied after rounding (Llama); "rms-float32": weight applied
#: in float32 (Gemma, OLMo 2); "layer": mean and variance, with a bias (BERT).
NormKind = Literal["rms", "rms-float32", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a trunk: everything of a model but its output layer.

    A reward model loads neither the vocabulary-sized output layer (``lm_head``) nor an encoder's
    pooler, so no count here has them; ``num_output_parameters`` says how large the first would be.
    """

    name: str
    #: ``model_type`` of config.json.
    kind: str
    is_causal: bool
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    #: Rows of learned tables beside the vocabulary's: positions and token types, 0 where rotary.
    num_position_rows: int
    norm: NormKind
    num_norms_per_layer: int
    #: Norms of queries and keys: of each head (Qwen 3), or over all heads at once (OLMo 2).
    query_key_norms: Literal["none", "per-head", "whole"]
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    #: Whether the feed-forward block has a gate beside its way up.
    is_gated: bool
    is_output_tied: bool
    has_softcap: bool
    #: Largest share of a hidden vector dropped in training; above 0 masks are kept.
    dropout: float
    #: Longest sequence the model knows, in tokens.
    max_length: int

    @property
    def query_size(self) -> int:
        """Width of all query heads together, Q."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all key heads together, K; the values' is the same."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_layer_matrix_parameters(self) -> int:
        """Weights of one layer that every token is multiplied with."""
        attention = self.hidden_size * 2 * (self.query_size + self.key_size)
        return attention + (2 + self.is_gated) * self.hidden_size * self.intermediate_size

    @property
    def num_layer_parameters(self) -> int:
        """All parameters of one layer: matrices, biases and norms."""
        biases = self.has_qkv_bias * (self.query_size + 2 * self.key_size)
        biases += self.has_output_bias * self.hidden_size
        biases += self.has_mlp_bias * (
            (1 + self.is_gated) * self.intermediate_size + self.hidden_size
        )
        query_key = {
            "none": 0,
            "per-head": 2 * self.head_dim,
            "whole": self.query_size + self.key_size,
        }
        norms = self.num_norms_per_layer * self._num_norm_parameters
        norms += query_key[self.query_key_norms]
        return self.num_layer_matrix_parameters + biases + norms

    @property
    def num_embedding_parameters(self) -> int:
        """The tables that are looked up: tokens, positions, token types.

        A step touches few rows, but autograd makes a dense gradient of the whole table.
        """
        return (self.vocab_size + self.num_position_rows) * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """The trunk's parameters, as transformers' ``AutoModel`` builds it without a pooler."""
        norm = self._num_norm_parameters  # after the last layer, or after the embeddings
        layers = self.num_layers * self.num_layer_parameters
        return self.num_embedding_parameters + layers + norm

    @property
    def num_active_parameters(self) -> int:
        """The trunk's parameters without the tables that are only looked up."""
        return self.num_parameters - self.num_embedding_parameters

    @property
    def num_matrix_parameters(self) -> int:
        """Weights that every token is multiplied with: what floating point operations follow."""
        return self.num_layers * self.num_layer_matrix_parameters

    @property
    def num_output_parameters(self) -> int:
        """What the output layer would add if it were loaded: 0 where it is the embedding itself."""
        tied = self.is_output_tied or not self.is_causal
        return 0 if tied else self.vocab_size * self.hidden_size

    @property
    def _num_norm_parameters(self) -> int:
        return self.hidden_size * (2 if self.norm == "layer" else 1)
