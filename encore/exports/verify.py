"""Open a written export with plain transformers and compare it with the model in memory.

Suffixes: N conversations, P pairs, K labels, R heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from encore.core.errors import InputError
from encore.core.transformers_loading import load_weights, loading_errors
from encore.data.records import Message, PreferencePair
from encore.exports.classifier import ExportDtype, Scores, Written, rounded
from encore.model.layouts import TokenIds

#: Largest allowed difference of two float32 computations of one score. Relative to the label's
#: largest score where that exceeds 1.
TOLERANCE = 1e-5

#: A prompt and its response.
Conversation = tuple[tuple[Message, ...], str]


@cache
def probes() -> tuple[Conversation, ...]:
    """Read the test conversations of probes.json; the first one is the model card's example.

    They differ in length, so that a batch of them is padded, and contain characters that templates
    and tokenizers treat specially. No text spells a special token: a plain reader would turn it
    into one.
    """
    text = Path(__file__).with_name("probes.json").read_bytes()
    return TypeAdapter(tuple[Conversation, ...]).validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of comparing an export, read by plain transformers, with the model in memory.

    Attributes:
        num_probes: Number of conversations whose tokens and scores were compared.
        max_difference: Largest difference of a score, both in float32 with the same weights.
        example_scores: Scores of the card's example in the export's number format, by label.
        num_margins: Number of pairs times labels whose rankings were compared in the export's
            number format.
        num_flipped: Number of these that the model in memory ranks otherwise. A tie in one of the
            two counts.
        num_set_aside: Number of pairs that were left out: the chat template refuses them.
    """

    num_probes: int
    max_difference: float
    example_scores: Mapping[str, float]
    num_margins: int = 0
    num_flipped: int = 0
    num_set_aside: int = 0


def verify_export(written: Written, *, pairs: Sequence[PreferencePair] = ()) -> Verification:
    """Compare weights, tokens and scores; count the pairs whose ranking changes.

    The weights on disk must be those in memory, rounded once. With the weights in memory, the
    folder's class, config and tokenizer must give the same tokens and, in float32, the same scores.
    Rounding may change rankings, which are counted on ``pairs``.

    Raises:
        EncoreError: The folder does not describe the model; the message says what differs.
    """
    with loading_errors(f"export of {written.source.name!r}: its tokenizer does not load"):
        tokenizer = AutoTokenizer.from_pretrained(written.folder, trust_remote_code=False)
    plain = _open(written, "float32")
    _compare_weights(written, plain)
    if written.dtype != "float32":
        plain.load_state_dict({name: tensor.float() for name, tensor in written.tensors.items()})
    compared_texts = _compare_tokens(written, tokenizer)
    difference = _compare_scores(written, tokenizer, plain, compared_texts)
    if written.dtype != "float32":
        del plain  # two large models in memory are enough
        plain = _open(written, written.dtype)
    source, labels = written.source.tokenizer, written.labels
    example_ids = source.encode(*probes()[0]).token_ids
    taken_pairs = [
        pair for pair in pairs if source.refusal(pair.prompt, pair.chosen, pair.rejected) is None
    ]
    response_ids = [
        response.token_ids for pair in source.encode_pairs(taken_pairs) for response in pair
    ]
    sequences = [example_ids, *response_ids]
    plain_NK = _plain_scores(plain, sequences)
    memory_sign_PK, plain_sign_PK = (
        np.sign(score_NK[1::2] - score_NK[2::2])
        for score_NK in (written.scores(sequences), plain_NK)
    )
    return Verification(
        num_probes=len(compared_texts),
        max_difference=difference,
        example_scores=dict(zip(labels, plain_NK[0].tolist(), strict=True)),
        num_margins=memory_sign_PK.size,
        num_flipped=int((memory_sign_PK != plain_sign_PK).sum()),
        num_set_aside=len(pairs) - len(taken_pairs),
    )


def _open(written: Written, dtype: ExportDtype) -> Any:
    model, _ = load_weights(
        AutoModelForSequenceClassification,
        written.folder,
        name=f"export of {written.source.name!r}",
        dtype=getattr(torch, dtype),
    )
    return model.eval().to(written.source.model.device)


def _compare_weights(written: Written, plain: Any) -> None:
    loaded = plain.state_dict()
    different = sorted(set(loaded) ^ set(written.tensors)) or [
        name
        for name, tensor in written.tensors.items()
        if not torch.equal(loaded[name].cpu(), rounded(tensor, written.dtype).float())
    ]
    if different:
        raise written.mismatch_error(
            f"{len(different)} of its tensors are not those that were written, first {different[0]}"
        )


def _compare_tokens(written: Written, tokenizer: Any) -> list[tuple[str, TokenIds]]:
    """Return text and tokens of each probe that the model's template renders uncut."""
    rendered = []
    for prompt, response in probes():
        try:
            encoded = written.source.tokenizer.encode(prompt, response)
        except InputError:  # a template may refuse a system turn
            continue
        if encoded.num_cut:  # a backbone may have few positions
            continue
        turns = (*prompt, Message(role="assistant", content=response))
        text = tokenizer.apply_chat_template([asdict(turn) for turn in turns], tokenize=False)
        # Without special tokens: as `apply_chat_template` with tokens and vLLM do.
        for mode, is_added in (("", True), (" without special tokens added", False)):
            theirs = tokenizer(text, add_special_tokens=is_added)
            if theirs["input_ids"] != encoded.token_ids.tolist():
                raise written.mismatch_error(
                    f"its text{mode} gives for {response[:40]!r} tokens other than the "
                    f"{len(encoded.token_ids)} that the model was trained on"
                )
        rendered.append((text, encoded.token_ids))
    if not rendered:
        raise written.mismatch_error(
            "renders none of the test conversations uncut; raise max_length"
        )
    return rendered


def _compare_scores(
    written: Written, tokenizer: Any, plain: Any, probes: Sequence[tuple[str, TokenIds]]
) -> float:
    """Return the largest difference of a score over the probes, computed as one padded batch."""
    texts = [text for text, _ in probes]
    inputs = tokenizer(texts, padding=True, return_tensors="pt").to(plain.device)
    with torch.inference_mode():
        plain_NK = plain(**inputs).logits.double().cpu().numpy()
    memory_NK = written.scores([token_ids for _, token_ids in probes])
    difference_K = np.abs(plain_NK - memory_NK).max(axis=0)
    allowed_K = TOLERANCE * np.maximum(1.0, np.abs(memory_NK).max(axis=0))
    if not (difference_K <= allowed_K).all():  # false for NaN too
        worst = int(np.argmax(difference_K / allowed_K))
        raise written.mismatch_error(
            f"plain transformers scores differ by {difference_K[worst]:.1e} from the model in "
            f"memory under {written.labels[worst]!r}, at most {allowed_K[worst]:.0e} was expected"
        )
    return float(difference_K.max())


def _plain_scores(plain: Any, sequences: Sequence[TokenIds]) -> Scores:
    """Score with plain transformers, one conversation at a time, so that nothing is padded."""
    score_rows = []
    with torch.inference_mode():
        for token_ids in sequences:
            input_ids = torch.tensor(token_ids[None], dtype=torch.int64, device=plain.device)
            score_rows.append(plain(input_ids=input_ids).logits.double().cpu().numpy())
    return np.concatenate(score_rows)
