"""The judge's network while it is trained: the Llama architecture in plain PyTorch.

`transformers` and vLLM run the finished weights; `hugging_face_tensors` renames them. Written
out here because training shares one prefix of keys and values among all rows of a batch: the
paper's prompt begins with the same 130 tokens every time.

Shapes: B batch, L tokens, P shared prefix tokens, D hidden, H heads, E head size, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Shape(NamedTuple):
    """The size of the network. Head size 32 is one that vLLM's CPU attention has."""

    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 320
    num_layers: int = 5
    num_heads: int = 4
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_size(self) -> int:
        """Channels of one attention head."""
        return self.hidden_size // self.num_heads


def rotation(shape: Shape, start: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles of some positions, each [L, E]."""
    half = torch.arange(0, shape.head_size, 2, device=device).float() / shape.head_size
    position = torch.arange(start, start + length, device=device).float()
    angle = torch.outer(position, shape.rope_theta**-half)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary angles [L, E] to [B, H, L, E], in Llama's half-split layout."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-second, first], dim=-1) * sin.to(x.dtype)


class RMSNorm(nn.Module):  # type: ignore[misc]  # mypy sees torch as Any here
    """Root-mean-square normalisation with a learnt gain."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis, in float32."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


Cache = tuple[Tensor, Tensor]


class Layer(nn.Module):  # type: ignore[misc]  # mypy sees torch as Any here
    """One decoder layer. Weight names are those of the Llama architecture."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size, inner = shape.hidden_size, shape.intermediate_size
        self.shape = shape
        self.input_layernorm = RMSNorm(size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(size, shape.rms_norm_eps)
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(
        self, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | None, prefix: Cache | None
    ) -> tuple[Tensor, Cache]:
        """The layer's output [B, L, D] with its keys and values, ``prefix`` ones included."""
        normed = self.input_layernorm(x)
        query = rotate(self._heads(self.q_proj(normed)), *angles)
        key = rotate(self._heads(self.k_proj(normed)), *angles)
        value = self._heads(self.v_proj(normed))
        if prefix is not None:
            key = torch.cat([prefix[0].expand(len(x), -1, -1, -1), key], dim=2)
            value = torch.cat([prefix[1].expand(len(x), -1, -1, -1), value], dim=2)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(x)
        x = x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
        return x, (key, value)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.shape.num_heads, self.shape.head_size)).transpose(1, 2)


class JudgeNetwork(nn.Module):  # type: ignore[misc]  # mypy sees torch as Any here
    """Embedding, layers, final norm; the output head is the embedding (tied)."""

    def __init__(self, shape: Shape, embedding_VD: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding.from_pretrained(embedding_VD.clone(), freeze=False)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        for name, weight in self.layers.named_parameters():
            if weight.dim() == 2:
                shrink = (2 * shape.num_layers) ** -0.5 if "o_proj" in name or "down" in name else 1
                nn.init.normal_(weight, std=shrink * weight.shape[1] ** -0.5)

    def forward(
        self,
        token_BL: Tensor,
        *,
        prefix_P: Tensor | None = None,
        noise_V: Tensor | None = None,
        num_layers: int | None = None,
    ) -> list[Tensor]:
        """The hidden states [B, L, D] before the first layer and after each of ``num_layers``.

        ``prefix_P`` is read once and shared by all rows; ``noise_V`` is the size of random error
        on each token's embedding, relative to its length: similar words should be read alike.
        """
        caches, start = self._read_prefix(prefix_P)
        length = token_BL.shape[1]
        angles = rotation(self.shape, start, length, token_BL.device)
        mask = None
        if start:
            mask = torch.ones(length, start + length, dtype=torch.bool, device=token_BL.device)
            mask = mask.tril(start)
        states = [self._embed(token_BL, noise_V)]
        for layer, cache in list(zip(self.layers, caches, strict=True))[:num_layers]:
            states.append(layer(states[-1], angles, mask, cache)[0])
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token [..., V] from states after the last layer."""
        return F.linear(self.norm(hidden), self.embed_tokens.weight)

    def _embed(self, token_BL: Tensor, noise_V: Tensor | None) -> Tensor:
        x = self.embed_tokens(token_BL)
        if noise_V is not None:
            size = x.detach().norm(dim=-1) * noise_V[token_BL] * self.shape.hidden_size**-0.5
            x = x + torch.randn_like(x) * size[..., None]
        return x

    def _read_prefix(self, prefix_P: Tensor | None) -> tuple[list[Cache | None], int]:
        if prefix_P is None:
            return [None] * len(self.layers), 0
        angles = rotation(self.shape, 0, len(prefix_P), prefix_P.device)
        x = self._embed(prefix_P[None], None)
        caches: list[Cache | None] = []
        for layer in self.layers:
            x, cache = layer(x, angles, None, None)
            caches.append(cache)
        return caches, len(prefix_P)


def hugging_face_tensors(network: JudgeNetwork) -> dict[str, Tensor]:
    """The weights under the names that `LlamaForCausalLM` gives them."""
    named = {
        "model.embed_tokens.weight": network.embed_tokens.weight,
        "model.norm.weight": network.norm.weight,
    }
    for index, layer in enumerate(network.layers):
        for name, weight in layer.named_parameters():
            group = ""
            if "_proj" in name:
                group = "self_attn." if name[0] in "qkvo" else "mlp."
            named[f"model.layers.{index}.{group}{name}"] = weight
    return {name: weight.detach() for name, weight in named.items()}
