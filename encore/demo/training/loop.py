"""The two training stages: first what sentences mean, then how to answer a rating prompt.

Shapes: B rows, L tokens, D hidden, C sentence labels, V vocabulary.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from encore.demo.training.batches import Batch
from encore.demo.training.examples import UNLABELLED
from encore.demo.training.network import JudgeNetwork

_LOG = logging.getLogger(__name__)
_WARM_UP_STEPS = 30
#: After so many layers a sentence must be understood, and after so many compared to the criterion.
MEANING_LAYER = 3
MATCH_LAYER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of training.

    The first three shares weigh the parts of the loss. ``noise`` and the last two make unseen words
    familiar: jitter on the embeddings, words swapped for neighbours in meaning, words replaced by
    random ones.
    """

    name: str
    steps: int
    learning_rate: float
    answer_share: float = 1.0
    meaning_share: float = 0.5
    match_share: float = 1.0
    noise: float = 0.6
    swapped_share: float = 0.4
    random_share: float = 0.08
    weight_decay: float = 0.05

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of the parts of a loss."""
        shares = {
            "answer": self.answer_share,
            "meaning": self.meaning_share,
            "match": self.match_share,
        }
        return torch.stack([shares[name] * loss for name, loss in losses.items()]).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The network with the parts that training alone needs.

    The two heads classify sentences and are thrown away after training. ``is_content_V`` marks
    tokens that are words of substance: only these are disturbed, and only their embeddings stay
    where the teacher put them, so that unseen words keep their place among seen ones.
    ``neighbour_VK`` are stand-ins; ``word_tokens`` are what a random word is drawn from.
    """

    network: JudgeNetwork
    meaning_head: nn.Linear
    match_head: nn.Linear
    is_content_V: Tensor
    neighbour_VK: Tensor
    word_tokens: Tensor

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Everything with weights, by name."""
        return {
            "network": self.network,
            "meaning_head": self.meaning_head,
            "match_head": self.match_head,
        }


def run_stage(learner: Learner, batches: Iterator[Batch], stage: Stage) -> None:
    """Train in place for ``stage.steps`` batches, on the device the network is on."""
    network = learner.network
    network.train()
    optimizer = _optimizer(learner, stage)
    hook = network.embed_tokens.weight.register_hook(
        lambda grad: grad * ~learner.is_content_V[:, None].to(grad.device)
    )
    began = time.monotonic()
    for step in range(stage.steps):
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * _schedule(step, stage.steps)
        losses = _losses(learner, next(batches), stage)
        loss = stage.total(losses)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 24 or step + 1 == stage.steps:
            parts = " ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            seconds = time.monotonic() - began
            _LOG.info("%s step %d: %s (%.0f s)", stage.name, step + 1, parts, seconds)
    hook.remove()


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (0.05 + 0.95 * cosine)


def _optimizer(learner: Learner, stage: Stage) -> torch.optim.Optimizer:
    matrices = [p for p in learner.network.layers.parameters() if p.dim() == 2]
    decayed = {id(p) for p in matrices}
    everything = [p for module in learner.modules.values() for p in module.parameters()]
    others = [p for p in everything if id(p) not in decayed]
    groups = [
        {"params": matrices, "weight_decay": stage.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=stage.learning_rate, betas=(0.9, 0.98))


def _losses(learner: Learner, batch: Batch, stage: Stage) -> dict[str, Tensor]:
    """The parts of the loss by name: meaning alone for bare conversations, else all three."""
    network = learner.network
    device = network.norm.weight.device
    target_BL, label_BL, match_BL = (
        labels.to(device) for labels in (batch.target_BL, batch.label_BL, batch.match_BL)
    )
    has_answers = bool((target_BL != UNLABELLED).any())
    with torch.autocast(device.type, torch.bfloat16):
        states = network(
            _disturb(learner, batch, stage).to(device),
            prefix_P=None if batch.prefix_P is None else batch.prefix_P.to(device),
            noise_V=stage.noise * learner.is_content_V.float().to(device),
            num_layers=None if has_answers else MEANING_LAYER,
        )
        meaning = _labelled_loss(learner.meaning_head, states[MEANING_LAYER], label_BL)
        if not has_answers:
            return {"meaning": meaning}
        match = _labelled_loss(learner.match_head, states[MATCH_LAYER], match_BL)
    is_answer_BL = target_BL != UNLABELLED
    logits_NV = network.logits(states[-1][is_answer_BL].float())
    # Summed over a row's answer tokens: all but one of them are easy.
    answer = F.cross_entropy(logits_NV, target_BL[is_answer_BL], reduction="sum") / len(target_BL)
    return {"answer": answer, "meaning": meaning, "match": match}


def _labelled_loss(head: nn.Linear, state_BLD: Tensor, label_BL: Tensor) -> Tensor:
    is_labelled_BL = label_BL != UNLABELLED
    if not is_labelled_BL.any():
        return state_BLD.sum() * 0.0
    logits_NC = head(state_BLD[is_labelled_BL]).float()
    return F.cross_entropy(logits_NC, label_BL[is_labelled_BL], label_smoothing=0.02)


def _disturb(learner: Learner, batch: Batch, stage: Stage) -> Tensor:
    """The tokens with some words swapped for neighbours and some for random words.

    Answers, ends of sentences and everything that is no whole word stay.
    """
    token_BL = batch.token_BL
    may_change = (batch.label_BL == UNLABELLED) & (batch.target_BL == UNLABELLED)
    is_content = learner.is_content_V[token_BL]
    swap_share = 2 * stage.swapped_share * torch.rand(len(token_BL), 1)
    swapped = may_change & (torch.rand(token_BL.shape) < swap_share)
    column = torch.randint(0, learner.neighbour_VK.shape[1], token_BL.shape)
    token_BL = torch.where(swapped, learner.neighbour_VK[token_BL, column], token_BL)
    replaced = may_change & is_content & (torch.rand(token_BL.shape) < stage.random_share)
    random_word = learner.word_tokens[torch.randint(0, len(learner.word_tokens), token_BL.shape)]
    return torch.where(replaced, random_word, token_BL)
