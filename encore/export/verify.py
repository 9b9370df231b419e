"""Open a written export as a stranger would, and compare it with the model in memory.

Suffixes: N conversations, P pairs, K labels, R heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from encore.data.records import PreferencePair
from encore.errors import EncoreError, InputError
from encore.export.probes import EXAMPLE, PROBES, Conversation
from encore.export.records import Verification
from encore.export.weights_files import cast
from encore.model.quiet import quiet_transformers
from encore.model.scoring import score_sequences

if TYPE_CHECKING:
    from encore.model.opening import OpenedModel

#: The most that two computations of one score in float32 may differ; for a label whose scores go
#: beyond 1, relative to its largest.
TOLERANCE = 1e-5

_TokenIds = NDArray[np.int32]
_Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An export on disk and what it was made from.

    Attributes:
        folder: Where it is.
        source: The model in memory, its trunk in float32.
        tensors: What was written, before it was rounded, by name.
        mix_RK: The labels' scores are the heads' scores times this matrix.
        labels: Names of the K labels.
        dtype: Torch's, of the tensors on disk.
    """

    folder: Path
    source: OpenedModel
    tensors: Mapping[str, Any]
    mix_RK: _Scores
    labels: Sequence[str]
    dtype: Any


def verify_export(written: Written, *, pairs: Sequence[PreferencePair] = ()) -> Verification:
    """Compare weights, tokens and scores; count the pairs that rank the other way round.

    The weights on disk must be those in memory, rounded once. Then, with the weights in memory,
    the folder's class, config and tokenizer must give the same tokens and, in float32, the same
    scores. Rounding alone may change rankings, and is counted on ``pairs``.

    Raises:
        EncoreError: The folder says something else than the model: what, and by how much.
    """
    tokenizer = _guarded(
        written, lambda: AutoTokenizer.from_pretrained(written.folder, trust_remote_code=False)
    )
    plain = _open(written, torch.float32)
    _compare_weights(written, plain)
    if written.dtype is not torch.float32:
        plain.load_state_dict({name: tensor.float() for name, tensor in written.tensors.items()})
    probes = _rendered_probes(written)
    _compare_tokens(written, tokenizer, probes)
    difference = _compare_scores(written, tokenizer, plain, probes)
    if written.dtype is not torch.float32:
        del plain  # two large models in memory are enough
        plain = _open(written, written.dtype)
    return _with_rankings(
        written,
        plain,
        pairs,
        num_probes=len(probes),
        max_difference=difference,
    )


def _open(written: Written, dtype: Any) -> Any:
    device = written.source.model.heads.weight.device
    model, report = _guarded(
        written,
        lambda: AutoModelForSequenceClassification.from_pretrained(
            written.folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        ),
    )
    if absent := sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]])):
        raise _wrong(written, f"the folder lacks {len(absent)} of its tensors, first {absent[0]}")
    return model.eval().to(device)


def _guarded(written: Written, load: Any) -> Any:
    try:
        with quiet_transformers():
            return load()
    except Exception as error:  # whatever a reader would meet
        reason = " ".join(str(error).split())[:300]
        raise _wrong(written, f"does not load ({type(error).__name__}: {reason})") from error


def _compare_weights(written: Written, plain: Any) -> None:
    loaded = plain.state_dict()
    different = sorted(set(loaded) ^ set(written.tensors)) or [
        name
        for name, tensor in written.tensors.items()
        if not torch.equal(loaded[name].cpu(), cast(tensor, written.dtype).float())
    ]
    if different:
        raise _wrong(
            written,
            f"{len(different)} of its tensors are not those that were written, first "
            f"{different[0]}",
        )


def _rendered_probes(written: Written) -> list[tuple[Conversation, _TokenIds]]:
    """The probes this model's template renders, with our tokens; those that would be cut are out.

    Templates may refuse a system turn; a backbone may have few positions.
    """
    found = []
    for prompt, response in PROBES:
        try:
            encoded = written.source.tokenizer.encode(prompt, response)
        except InputError:
            continue
        if not encoded.num_cut:
            found.append(((prompt, response), encoded.token_ids))
    if not found:
        raise _wrong(written, "renders none of the test conversations uncut; raise max_length")
    return found


def _compare_tokens(
    written: Written, tokenizer: Any, probes: Sequence[tuple[Conversation, _TokenIds]]
) -> None:
    """Tokens of the rendered text, special tokens added or not, and of the template itself."""
    for conversation, token_ids in probes:
        messages = _messages(conversation)
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ways = {
            "the template": tokenizer.apply_chat_template(messages, return_dict=True),
            "its text": tokenizer(text),
            "its text without special tokens added": tokenizer(text, add_special_tokens=False),
        }
        for way, encoded in ways.items():
            if list(encoded["input_ids"]) != token_ids.tolist():
                raise _wrong(
                    written,
                    f"{way} gives {len(encoded['input_ids'])} tokens for {conversation[1][:40]!r}, "
                    f"the model was trained on {len(token_ids)} other ones",
                )


def _compare_scores(
    written: Written,
    tokenizer: Any,
    plain: Any,
    probes: Sequence[tuple[Conversation, _TokenIds]],
) -> float:
    """The largest difference over the probes, padded beside one another."""
    texts = [
        tokenizer.apply_chat_template(_messages(conversation), tokenize=False)
        for conversation, _ in probes
    ]
    inputs = tokenizer(texts, padding=True, return_tensors="pt").to(plain.device)
    with torch.inference_mode():
        theirs_NK = plain(**inputs).logits.double().cpu().numpy()
    ours_NK = _our_scores(written, [token_ids for _, token_ids in probes])
    difference_K = np.abs(theirs_NK - ours_NK).max(axis=0)
    allowed_K = TOLERANCE * np.maximum(1.0, np.abs(ours_NK).max(axis=0))
    if not (difference_K <= allowed_K).all():  # also NaN
        worst = int(np.argmax(difference_K / allowed_K))
        raise _wrong(
            written,
            f"plain transformers scores differ by {difference_K[worst]:.1e} from the model in "
            f"memory under {written.labels[worst]!r}, at most {allowed_K[worst]:.0e} was expected",
        )
    return float(difference_K.max())


def _with_rankings(
    written: Written,
    plain: Any,
    pairs: Sequence[PreferencePair],
    *,
    num_probes: int,
    max_difference: float,
) -> Verification:
    prompt, response = EXAMPLE
    example = written.source.tokenizer.encode(prompt, response).token_ids
    [example_K] = _their_scores(plain, [example])
    scores = dict(zip(written.labels, example_K.tolist(), strict=True))
    if not pairs:
        return Verification(
            num_probes=num_probes, max_difference=max_difference, example_scores=scores
        )
    encoded = written.source.tokenizer.encode_pairs(pairs)
    sequences = [one.token_ids for pair in encoded for one in (pair.chosen, pair.rejected)]
    ours_PK = _margins(_our_scores(written, sequences))
    theirs_PK = _margins(_their_scores(plain, sequences))
    is_flipped_PK = ours_PK * theirs_PK < 0
    is_tied_PK = (ours_PK == 0) != (theirs_PK == 0)
    return Verification(
        num_probes=num_probes,
        max_difference=max_difference,
        example_scores=scores,
        num_margins=ours_PK.size,
        num_flipped=int(is_flipped_PK.sum()),
        num_tied=int(is_tied_PK.sum()),
        largest_flipped_margin=(
            float(np.abs(ours_PK[is_flipped_PK]).max()) if is_flipped_PK.any() else None
        ),
    )


def _margins(score_NK: _Scores) -> _Scores:
    """Of pairs whose responses follow one another."""
    return np.asarray(score_NK[::2] - score_NK[1::2], dtype=np.float64)


def _our_scores(written: Written, sequences: Sequence[_TokenIds]) -> _Scores:
    source = written.source
    score_NR = score_sequences(
        source.model, sequences, pad_token_id=source.tokenizer.pad_token_id
    ).astype(np.float64)
    return np.asarray(score_NR @ written.mix_RK, dtype=np.float64)


def _their_scores(plain: Any, sequences: Sequence[_TokenIds]) -> _Scores:
    """One conversation at a time, so that no padding takes part."""
    rows = []
    with torch.inference_mode():
        for token_ids in sequences:
            input_ids = torch.from_numpy(token_ids.astype(np.int64))[None].to(plain.device)
            rows.append(plain(input_ids=input_ids).logits[0].double().cpu().numpy())
    return np.stack(rows)


def _messages(conversation: Conversation) -> list[dict[str, str]]:
    prompt, response = conversation
    messages = [{"role": message.role, "content": message.content} for message in prompt]
    return [*messages, {"role": "assistant", "content": response}]


def _wrong(written: Written, problem: str) -> EncoreError:
    return EncoreError(
        f"export of {written.source.name!r}: read back with plain transformers it is not this "
        f"model: {problem}; nothing was kept: please report it with the model's config.json"
    )
