"""Any reward model that can be run here, by path or hub id: ours, an export, a downloaded one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from encore.data.records import Message
from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.digest import model_digest
from encore.model.export_notes import EXPORT_FILE, read_export_notes
from encore.model.loading import (
    SINGLE_HEAD,
    initial_reward_model,
    load_tokenizer,
    load_whole_classifier,
)
from encore.model.reward_model import MultiHeadRewardModel
from encore.model.saved_model import ABOUT_FILE, LoadedModel, load_model
from encore.model.trunks import is_taken_apart, max_positions, trunk_kind
from encore.model.whole_classifier import WholeClassifier, padding_effect
from encore.model_files import ModelFiles, ModelRole

_REWARD_MODEL = ModelRole(name="reward model", error=InputError)
#: Of a training run's folder: where its model is, and the file by which it is known.
_MODEL_OF_RUN, _RUN_FILE = "model", "training.json"
#: How many labels transformers assumes where a config does not say.
_NUM_LABELS = 2
#: Where neither tokenizer nor model says how long a conversation may be.
_FALLBACK_LENGTH = 4096
#: Tokenizers without a limit state some huge number.
_NO_LIMIT = 10**9
_MIN_LENGTH = 16
#: What is tried on a classifier that is run whole.
_PROBE = (Message(role="user", content="Hi."),)
_PROBE_RESPONSES = ("Yes.", "No, that is something else, and a longer answer goes with it.")
#: The most that padding may change a score by, as a share of it: rounding.
_MAX_PADDING_EFFECT = {torch.float32: 1e-3, torch.bfloat16: 0.1}
_DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedModel:
    """A reward model ready to score.

    Attributes:
        model: In evaluation mode. Its scores are raw and centred, its means metadata.
        tokenizer: Renders and encodes conversations as the model was trained on them.
        metadata: What its training recorded; of a plain classifier where it came from.
        name: Its folder's name or hub id, never a machine's path.
        digest: SHA-256 of everything the scores follow from (`encore.model.digest.model_digest`).
    """

    model: MultiHeadRewardModel
    tokenizer: ConversationTokenizer
    metadata: Mapping[str, Any]
    name: str
    digest: str


def open_reward_model(
    model: str | Path,
    *,
    device: str | None = None,
    dtype: str = "auto",
    max_length: int | None = None,
    revision: str | None = None,
) -> OpenedModel:
    """A reward model from a folder or the hub; nothing pickled and no remote code is ever run.

    Args:
        model: A model folder of `encore train` or the run's folder around it; or a plain
            …ForSequenceClassification of transformers, a folder or a hub id: an export, or a
            downloaded reward model. One label is the head ``reward`` (unless it has a name),
            several are heads named as in ``id2label``. A known decoder with one linear layer on
            the last token is taken apart (packed, foldable); any other is run whole.
        device: Where it goes; default: the GPU where there is one.
        dtype: Of the trunk: ``auto`` (bfloat16 on CUDA, float32 elsewhere), ``float32``,
            ``bfloat16``.
        max_length: In tokens; longer conversations lose their oldest. Default: the length it was
            trained with, or what its tokenizer says. Never more than the model has positions.
        revision: Of a hub id.

    Raises:
        InputError: No such model or no reward model, an argument out of range, pickled weights,
            a folder that wants its own code run, a head with a bias.
        EncoreError: Weights or tokenizer that do not load.
    """
    if dtype not in _DTYPES:
        raise InputError(f"dtype {dtype!r}: expected one of {', '.join(_DTYPES)}")
    if max_length is not None and max_length < _MIN_LENGTH:
        raise InputError(f"max_length {max_length}: expected at least {_MIN_LENGTH} tokens")
    folder = Path(model).expanduser()
    if (folder / _RUN_FILE).is_file():
        model = folder = folder / _MODEL_OF_RUN
        if not folder.is_dir():
            raise InputError(
                f"reward model {str(folder.parent)!r}: this training run has no model yet; run the "
                "same `encore train` again to finish it"
            )
    is_ours = (folder / ABOUT_FILE).is_file()
    # What a model of ours lacks is said by `load_model`; on the hub only safetensors are asked for.
    files = _REWARD_MODEL.find(str(model), revision=revision, needs_weights=not is_ours)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if is_ours:
        loaded = load_model(folder, device=device, dtype=dtype)
        if max_length is not None:
            own = max_positions(files.config, trunk_kind(files.config, name=files.name))
            loaded.tokenizer.max_length = min(max_length, own or max_length)
    else:
        loaded = _load_classifier(files, device=device, dtype=dtype, max_length=max_length)
    # A model in a training run's folder is called after its run.
    is_of_run = files.hub_revision is None and (folder.parent / _RUN_FILE).is_file()
    return OpenedModel(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        metadata=loaded.metadata,
        name=folder.resolve().parent.name if is_of_run else files.name,
        digest=model_digest(loaded.model, loaded.tokenizer),
    )


def _load_classifier(
    files: ModelFiles, *, device: str, dtype: str, max_length: int | None
) -> LoadedModel:
    """A …ForSequenceClassification with its labels as heads."""
    _refuse_other_models(files)
    head_ids = _head_ids(files)
    config = BackboneConfig.model_validate(
        {
            "model": files.location,
            "revision": files.hub_revision,
            "dtype": dtype,
            "pooling": "last",
            "max_length": max_length or _NO_LIMIT,
        }
    )
    tokenizer = load_tokenizer(config, any_kind=True, is_as_downloaded=True)
    if max_length is None:
        known = (int(tokenizer.hf_tokenizer.model_max_length), tokenizer.max_length)
        lengths = (length for length in known if length < _NO_LIMIT)
        tokenizer.max_length = min(lengths, default=_FALLBACK_LENGTH)
    if is_taken_apart(files.config):
        model = initial_reward_model(config, head_ids=head_ids, device=device)
    else:
        model = load_whole_classifier(
            config, head_ids=head_ids, pad_token_id=tokenizer.pad_token_id, device=device
        )
        tokenizer.max_length = min(tokenizer.max_length, model.max_positions or _NO_LIMIT)
        _refuse_if_padding_counts(model, tokenizer, name=files.name)
    metadata = {"architectures": files.config["architectures"], "revision": files.revision}
    if (about := _REWARD_MODEL.further_file(files, EXPORT_FILE)) is not None:
        notes = read_export_notes(about, labels=head_ids)
        metadata = {**notes.metadata, **metadata}
        model.mean_R.copy_(torch.tensor(notes.mean_R, dtype=model.mean_R.dtype))
    return LoadedModel(model=model, tokenizer=tokenizer, metadata=metadata)


def _refuse_if_padding_counts(
    model: WholeClassifier, tokenizer: ConversationTokenizer, *, name: str
) -> None:
    """Refuse a kind whose score of a text would depend on what is scored beside it, by trying."""
    sequences = [tokenizer.encode(_PROBE, text).token_ids for text in _PROBE_RESPONSES]
    effect = padding_effect(model, sequences)
    if effect > _MAX_PADDING_EFFECT[model.trunk.dtype]:
        raise InputError(
            f"reward model {name!r}: a text's score changes by {effect:.1%} beside a longer one, "
            f"because {model.trunk.config.model_type!r} reads padding in transformers; expected an "
            "architecture whose score is of the text alone"
        )


def _refuse_other_models(files: ModelFiles) -> None:
    """Refuse code that a model brings, and what is no sequence classifier of transformers."""
    if files.config.get("auto_map"):
        raise InputError(
            f"reward model {files.name!r}: its config.json has an auto_map, so it wants Python "
            "code that it brings to be run; expected an architecture of transformers itself"
        )
    model_type = str(files.config.get("model_type"))
    if model_type not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        raise InputError(
            f"reward model {files.name!r}: transformers has no sequence classifier of architecture "
            f"{model_type!r}; expected one of a kind that it has"
        )
    architectures = [str(name) for name in files.config.get("architectures") or ()]
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        raise InputError(
            f"reward model {files.name!r}: {', '.join(architectures) or 'no architecture'} gives "
            f"no scores; expected a model of `encore train` (a folder with {ABOUT_FILE}) or a "
            "…ForSequenceClassification"
        )


def _head_ids(files: ModelFiles) -> tuple[str, ...]:
    """The names of the labels, in their order."""
    num_labels = int(files.config.get("num_labels") or _NUM_LABELS)
    labels = files.config.get("id2label") or {str(i): f"LABEL_{i}" for i in range(num_labels)}
    try:
        names = tuple(str(labels[str(place)]) for place in range(len(labels)))
    except (KeyError, TypeError) as error:
        raise InputError(
            f"reward model {files.name!r}: id2label {labels!r} in config.json; expected a name for "
            "each label, numbered from 0"
        ) from error
    problem_type = files.config.get("problem_type")
    if len(names) > 1 and problem_type not in (None, "regression"):
        raise InputError(
            f"reward model {files.name!r}: a classifier of {len(names)} labels (problem_type "
            f"{problem_type!r}), whose outputs are no rewards; expected one label, or problem_type "
            "'regression'"
        )
    return (SINGLE_HEAD,) if names == ("LABEL_0",) else names
