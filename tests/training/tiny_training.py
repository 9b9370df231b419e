"""Reward models of a few thousand weights, pairs of random tokens, a recording optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from encore.model.attention import register_segment_attention
from encore.model.reward_model import MultiHeadRewardModel
from encore.training.batches import Training
from encore.training.optimizers import StepOptimizer
from encore.training.ranks import Ranks
from encore.training.run_folder import StepRecord
from encore.training.training_config import TrainingConfig
from encore.training.training_examples import Split, TrainingExamples
from encore.training.training_loop import run_steps

VOCABULARY = 64
PAD = 0
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
}


def tiny_llama(head_ids: Sequence[str], *, seed: int = 0) -> MultiHeadRewardModel:
    """Return a causal model without dropout, with random heads."""
    torch.manual_seed(seed)
    config = LlamaConfig(**_SIZES, attn_implementation=register_segment_attention())
    return _with_heads(LlamaModel(config), head_ids, is_causal=True)


def tiny_bert(head_ids: Sequence[str], *, dropout: float, seed: int = 0) -> MultiHeadRewardModel:
    """Return an encoder with dropout, with random heads."""
    torch.manual_seed(seed)
    config = BertConfig(
        **_SIZES,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=register_segment_attention(),
    )
    trunk = BertModel(config, add_pooling_layer=False)
    return _with_heads(trunk, head_ids, is_causal=False)


def _with_heads(
    trunk: torch.nn.Module, head_ids: Sequence[str], *, is_causal: bool
) -> MultiHeadRewardModel:
    model = MultiHeadRewardModel(trunk, head_ids=head_ids, is_causal=is_causal)
    torch.nn.init.normal_(model.heads.weight, std=0.5)
    return model


def random_examples(
    num_pairs: int,
    *,
    head_ids: Sequence[str] = (),
    missing_share: float = 0.0,
    seed: int = 0,
    max_tokens: int = 24,
) -> TrainingExamples:
    """Return pairs of random tokens with a shared beginning; without heads for bradley-terry."""
    generator = np.random.default_rng(seed)
    chosen, rejected = [], []
    for _ in range(num_pairs):
        # Token 0 is padding, and token 1 is for tests that need an unused token.
        prompt = generator.integers(2, VOCABULARY, generator.integers(1, max_tokens // 2))
        for responses in (chosen, rejected):
            response = generator.integers(2, VOCABULARY, generator.integers(1, max_tokens // 2))
            responses.append(np.concatenate([prompt, response]).astype(np.int32))
    target_PSR = generator.normal(size=(num_pairs, 2, len(head_ids))).astype(np.float32)
    target_PSR[generator.random(target_PSR.shape) < missing_share] = np.nan
    return TrainingExamples(
        head_ids=tuple(head_ids) or ("reward",),
        pair_id_P=np.array([f"pair-{pair}" for pair in range(num_pairs)], dtype=np.object_),
        group_P=np.arange(num_pairs),
        chosen=chosen,
        rejected=rejected,
        prompt_tokens_P=np.ones(num_pairs, dtype=np.int32),
        target_PSR=target_PSR,
        mean_R=np.zeros(max(1, len(head_ids))),
    )


class RecordingOptimizer:
    """AdamW applied in `finish`, which records every call and the gradients of each step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.adamw = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.0)
        self.calls: list[tuple[object, ...]] = []
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.num_forwards = 0
        model.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.num_forwards += self.model.training

    def before_last_backward(self, *, step: int, learning_rate: float) -> None:
        self.calls.append(("before_last_backward", step, learning_rate, self.num_forwards))
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate

    def finish(self) -> float | None:
        self.calls.append(("finish", self.num_forwards))
        parameters = self.model.named_parameters()
        self.gradients.append(
            {name: p.grad.clone() for name, p in parameters if p.grad is not None}
        )
        self.adamw.step()
        self.adamw.zero_grad()
        return None


class OneOf(Ranks):
    """One of several processes, without a connection: a sum is the summand itself."""

    def __init__(self, rank: int, count: int = 2) -> None:
        super().__init__()
        self.rank, self.count = rank, count

    def sum(self, tensor):
        return tensor


class TrainingLog:
    """The records of `run_steps` in order, and (step, evaluation) of each checkpoint."""

    def __init__(self) -> None:
        self.records: list[object] = []

    @property
    def steps(self) -> list[StepRecord]:
        return [record for record in self.records if isinstance(record, StepRecord)]


def train(
    model: MultiHeadRewardModel,
    examples: TrainingExamples,
    config: TrainingConfig,
    *,
    num_held_out: int = 0,
    optimizer: StepOptimizer | None = None,
    start_step: int = 0,
    num_steps: int = 1,
    ranks: Ranks | None = None,
) -> tuple[TrainingLog, StepOptimizer]:
    """Take steps; return their log and the optimizer."""
    log = TrainingLog()
    optimizer = optimizer or RecordingOptimizer(model)
    rows = np.arange(examples.num_pairs)
    cut = len(rows) - num_held_out
    training = Training(
        model=model,
        examples=examples,
        split=Split(train_rows=rows[:cut], evaluation_rows=rows[cut:]),
        config=config.model_copy(update={"max_steps": num_steps, "epochs": 100}),
        pad_token_id=PAD,
        ranks=ranks or Ranks(),
    )

    def save(*checkpoint: object) -> None:
        log.records.append(checkpoint)

    run_steps(training, optimizer, start_step=start_step, on_record=log.records.append, save=save)
    return log, optimizer
