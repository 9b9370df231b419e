"""The two training stages: first what sentences mean, then how to answer a rating prompt.

Shapes: B rows, L tokens, D hidden, C sentence labels, V vocabulary.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from encore.demo.training.batches import Batch
from encore.demo.training.examples import NUM_LABELS, UNLABELLED
from encore.demo.training.network import JudgeNetwork

_LOG = logging.getLogger(__name__)
_WARM_UP_STEPS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of training. ``sentence_share`` weighs the sentence labels against the answers.

    ``noise`` and the two shares make unseen words familiar: jitter on the embeddings, words
    swapped for neighbours in meaning, words replaced by random ones.
    """

    name: str
    steps: int
    learning_rate: float
    sentence_share: float
    noise: float = 0.6
    swapped_share: float = 0.35
    random_share: float = 0.08
    weight_decay: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The network with the parts that training alone needs.

    ``trained_rows_V`` marks the embedding rows that may move; ``neighbour_VK`` are stand-ins;
    ``word_tokens`` are what a random word is drawn from; ``aux_layer`` is the depth at which
    sentences must have been understood.
    """

    network: JudgeNetwork
    sentence_head: nn.Linear
    trained_rows_V: Tensor
    neighbour_VK: Tensor
    word_tokens: Tensor
    aux_layer: int

    @staticmethod
    def sentence_head_for(network: JudgeNetwork) -> nn.Linear:
        """A fresh classifier of sentences; it is thrown away after training."""
        return nn.Linear(network.shape.hidden_size, NUM_LABELS)


def run_stage(learner: Learner, batches: Iterator[Batch], stage: Stage) -> None:
    """Train in place for ``stage.steps`` batches, on the device the network is on."""
    network = learner.network
    network.train()
    optimizer = _optimizer(learner, stage)
    hook = network.embed_tokens.weight.register_hook(
        lambda grad: grad * learner.trained_rows_V[:, None].to(grad)
    )
    began = time.monotonic()
    for step in range(stage.steps):
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * _schedule(step, stage.steps)
        loss = _loss(learner, next(batches), stage)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 24 or step + 1 == stage.steps:
            seconds = time.monotonic() - began
            _LOG.info("%s step %d loss %.3f %.0f s", stage.name, step + 1, loss.item(), seconds)
    hook.remove()


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (0.05 + 0.95 * cosine)


def _optimizer(learner: Learner, stage: Stage) -> torch.optim.Optimizer:
    matrices = [p for p in learner.network.layers.parameters() if p.dim() == 2]
    decayed = {id(p) for p in matrices}
    others = [p for p in learner.network.parameters() if id(p) not in decayed]
    groups = [
        {"params": matrices, "weight_decay": stage.weight_decay},
        {"params": [*others, *learner.sentence_head.parameters()], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=stage.learning_rate, betas=(0.9, 0.98))


def _loss(learner: Learner, batch: Batch, stage: Stage) -> Tensor:
    network = learner.network
    device = network.norm.weight.device
    is_answer_BL = (batch.target_BL != UNLABELLED).to(device)
    is_labelled_BL = (batch.label_BL != UNLABELLED).to(device)
    prefix_P = None if batch.prefix_P is None else batch.prefix_P.to(device)
    token_BL = _disturb(learner, batch, stage).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        hidden_BLD, aux_BLD = network(
            token_BL, prefix_P=prefix_P, noise=stage.noise, aux_layer=learner.aux_layer
        )
        label_logits_NC = learner.sentence_head(aux_BLD[is_labelled_BL])
    loss = stage.sentence_share * F.cross_entropy(
        label_logits_NC.float(), batch.label_BL.to(device)[is_labelled_BL], label_smoothing=0.02
    )
    if is_answer_BL.any():
        logits_NV = network.logits(hidden_BLD[is_answer_BL].float())
        loss = loss + F.cross_entropy(logits_NV, batch.target_BL.to(device)[is_answer_BL])
    return loss


def _disturb(learner: Learner, batch: Batch, stage: Stage) -> Tensor:
    """The tokens with some words swapped for neighbours and some for random words.

    Answers, ends of sentences and everything that is no whole word stay.
    """
    token_BL = batch.token_BL
    may_change = (batch.label_BL == UNLABELLED) & (batch.target_BL == UNLABELLED)
    is_word = torch.isin(token_BL, learner.word_tokens)
    swap_share = 2 * stage.swapped_share * torch.rand(len(token_BL), 1)
    swapped = may_change & (torch.rand(token_BL.shape) < swap_share)
    column = torch.randint(0, learner.neighbour_VK.shape[1], token_BL.shape)
    token_BL = torch.where(swapped, learner.neighbour_VK[token_BL, column], token_BL)
    replaced = may_change & is_word & (torch.rand(token_BL.shape) < stage.random_share)
    random_word = learner.word_tokens[torch.randint(0, len(learner.word_tokens), token_BL.shape)]
    return torch.where(replaced, random_word, token_BL)
