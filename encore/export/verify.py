"""Open a written export as a stranger would, and compare it with the model in memory.

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
from encore.data.records import Message, PreferencePair
from encore.export.classifier import ExportDtype, Scores, Written, rounded
from encore.model.layouts import TokenIds
from encore.model.loading import load_weights, loading_errors

#: The most that two computations of one score in float32 may differ; for a label whose scores go
#: beyond 1, relative to its largest.
TOLERANCE = 1e-5

#: A prompt and its response.
Conversation = tuple[tuple[Message, ...], str]


@cache
def probes() -> tuple[Conversation, ...]:
    """The conversations of probes.json; the first one is the model card's example.

    They differ in length, so that they are padded beside one another, and have the characters that
    templates and tokenizers treat in their own ways. No text spells a special token: a plain
    reader would take it for one.
    """
    text = Path(__file__).with_name("probes.json").read_bytes()
    return TypeAdapter(tuple[Conversation, ...]).validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What plain transformers read from the written folder, beside the model in memory.

    Attributes:
        num_probes: Conversations whose tokens and scores were compared.
        max_difference: The largest difference of a score, both in float32 with the same weights.
        example_scores: What the card's example prints, by label; in the export's own format.
        num_margins: Pairs (times labels) whose rankings were compared in the export's own format.
        num_flipped: Of these, how many the model in memory ranks otherwise; a tie in one of the two
            counts.
    """

    num_probes: int
    max_difference: float
    example_scores: Mapping[str, float]
    num_margins: int = 0
    num_flipped: int = 0


def verify_export(written: Written, *, pairs: Sequence[PreferencePair] = ()) -> Verification:
    """Compare weights, tokens and scores; count the pairs that rank the other way round.

    The weights on disk must be those in memory, rounded once. Then, with the weights in memory,
    the folder's class, config and tokenizer must give the same tokens and, in float32, the same
    scores. Rounding alone may change rankings, and is counted on ``pairs``.

    Raises:
        EncoreError: The folder says something else than the model: what, and by how much.
    """
    with loading_errors(f"export of {written.source.name!r}: its tokenizer does not load"):
        tokenizer = AutoTokenizer.from_pretrained(written.folder, trust_remote_code=False)
    plain = _open(written, "float32")
    _compare_weights(written, plain)
    if written.dtype != "float32":
        plain.load_state_dict({name: tensor.float() for name, tensor in written.tensors.items()})
    compared = _compare_tokens(written, tokenizer)
    difference = _compare_scores(written, tokenizer, plain, compared)
    if written.dtype != "float32":
        del plain  # two large models in memory are enough
        plain = _open(written, written.dtype)
    source, labels = written.source.tokenizer, written.labels
    ranked = [one.token_ids for pair in source.encode_pairs(pairs) for one in pair]
    sequences = [source.encode(*probes()[0]).token_ids, *ranked]
    theirs_NK = _plain_scores(plain, sequences)
    ours_PK, theirs_PK = (
        np.sign(score_NK[1::2] - score_NK[2::2])
        for score_NK in (written.scores(sequences), theirs_NK)
    )
    return Verification(
        num_probes=len(compared),
        max_difference=difference,
        example_scores=dict(zip(labels, theirs_NK[0].tolist(), strict=True)),
        num_margins=ours_PK.size,
        num_flipped=int((ours_PK != theirs_PK).sum()),
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
        raise written.wrong(
            f"{len(different)} of its tensors are not those that were written, first {different[0]}"
        )


def _compare_tokens(written: Written, tokenizer: Any) -> list[tuple[str, TokenIds]]:
    """Text and tokens of the probes this model's template renders, without those that are cut."""
    found = []
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
        for way, is_added in (("", True), (" without special tokens added", False)):
            theirs = tokenizer(text, add_special_tokens=is_added)
            if theirs["input_ids"] != encoded.token_ids.tolist():
                raise written.wrong(
                    f"its text{way} gives for {response[:40]!r} tokens other than the "
                    f"{len(encoded.token_ids)} that the model was trained on"
                )
        found.append((text, encoded.token_ids))
    if not found:
        raise written.wrong("renders none of the test conversations uncut; raise max_length")
    return found


def _compare_scores(
    written: Written, tokenizer: Any, plain: Any, probes: Sequence[tuple[str, TokenIds]]
) -> float:
    """The largest difference over the probes, padded beside one another."""
    texts = [text for text, _ in probes]
    inputs = tokenizer(texts, padding=True, return_tensors="pt").to(plain.device)
    with torch.inference_mode():
        theirs_NK = plain(**inputs).logits.double().cpu().numpy()
    ours_NK = written.scores([token_ids for _, token_ids in probes])
    difference_K = np.abs(theirs_NK - ours_NK).max(axis=0)
    allowed_K = TOLERANCE * np.maximum(1.0, np.abs(ours_NK).max(axis=0))
    if not (difference_K <= allowed_K).all():  # also NaN
        worst = int(np.argmax(difference_K / allowed_K))
        raise written.wrong(
            f"plain transformers scores differ by {difference_K[worst]:.1e} from the model in "
            f"memory under {written.labels[worst]!r}, at most {allowed_K[worst]:.0e} was expected"
        )
    return float(difference_K.max())


def _plain_scores(plain: Any, sequences: Sequence[TokenIds]) -> Scores:
    """By plain transformers, one conversation at a time, so that no padding takes part."""
    rows = []
    with torch.inference_mode():
        for token_ids in sequences:
            input_ids = torch.tensor(token_ids[None], dtype=torch.int64, device=plain.device)
            rows.append(plain(input_ids=input_ids).logits.double().cpu().numpy())
    return np.concatenate(rows)
