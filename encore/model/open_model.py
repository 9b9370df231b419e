"""Open a reward model by path or hub id: a trained model, an export, or a downloaded classifier."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from encore.core.errors import InputError
from encore.core.model_files import ModelFiles, ModelFinder, local_path
from encore.data.records import Message
from encore.model.architectures import TRUNKS, UNKNOWN_KIND
from encore.model.backbone_options import COMPOSED, EXPORT_FILE, BackboneConfig
from encore.model.conversation import ConversationTokenizer, TemplateRefusalError
from encore.model.held_out_scores import HeldOutScores, read_held_out_scores
from encore.model.layouts import lay_out
from encore.model.load_backbone import (
    load_reward_model,
    load_tokenizer,
    load_whole_classifier,
    num_labels,
)
from encore.model.reward_model import MultiHeadRewardModel, WholeClassifier
from encore.model.saved_model import DESCRIPTION_FILE, LoadedModel, load_model
from encore.model.score_sequences import score_sequences

#: Head id of a downloaded reward model with one unnamed label.
_SINGLE_HEAD = "reward"
_REWARD_MODEL = ModelFinder(name="reward model", error=InputError)
#: Folder of the model in a training run's folder, and the file that marks such a folder.
_MODEL_OF_RUN, _RUN_FILE = "model", "training.json"
#: Longest conversation in tokens, if neither the tokenizer nor the model states a limit.
_FALLBACK_LENGTH = 4096
#: A tokenizer without a limit states a number above this.
_NO_LIMIT = 10**9
#: A conversation with which a whole classifier is tried out.
_TEST_PROMPT = (Message(role="user", content="Hi."),)
_TEST_RESPONSES = ("Yes.", "No, that is something else, and a longer answer goes with it.")
#: Largest relative change of a score by padding that counts as rounding.
_MAX_PADDING_EFFECT = {torch.float32: 1e-3, torch.bfloat16: 0.1}
#: Fields of a config.json that change no result.
_IGNORED_FIELDS = ("_name_or_path", "transformers_version")
_COMPOSED_FIELDS = ("weights", "mean", "scheme", "params", "entropy_nats", "weights_provenance")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedModel:
    """A reward model ready to score.

    Attributes:
        model: Model in evaluation mode. Its scores are centred: means are not added.
        tokenizer: Tokenizer that encodes conversations as in the model's training.
        metadata: What the training recorded; for a plain classifier, its architecture and revision.
        name: Folder name or hub id, never a machine's path.
        digest: SHA-256 of everything that scores depend on (`model_digest`).
        held_out: Scores of the pairs that a training with head 0 held out; None if there are none.
    """

    model: MultiHeadRewardModel
    tokenizer: ConversationTokenizer
    metadata: Mapping[str, Any]
    name: str
    digest: str
    held_out: HeldOutScores | None = None

    def score(
        self, conversations: Sequence[Sequence[Mapping[str, str]]]
    ) -> dict[str, NDArray[np.float64]]:
        """Return the scores of conversations under each rule, by rule, each of shape [N].

        Scores are centred, as `encore score` writes them; ``model.mean_R`` added to them gives the
        scale of the ratings.

        Args:
            conversations: N lists of messages with ``role`` and ``content``; the last message of
                each is the assistant's response.

        Raises:
            InputError: A conversation does not end with a response that has text.
            TemplateRefusalError: The chat template refuses the turns of a conversation.
        """
        sequences = []
        for index, messages in enumerate(conversations):
            where = f"conversation {index} (counted from 0)"
            prompt = [_message(message, where=where) for message in messages]
            role = prompt[-1].role if prompt else "nobody"
            if role != "assistant":
                raise InputError(f"{where} ends with {role}; expected the assistant's response")
            response = prompt.pop().content
            if not response.strip():
                raise InputError(f"{where}: an empty response; expected text to score")
            try:
                sequences.append(self.tokenizer.encode(prompt, response).token_ids)
            except TemplateRefusalError as error:
                message = f"{where}: {error}"
                raise TemplateRefusalError(message, reason=error.reason) from error
        pad_token_id = self.tokenizer.pad_token_id
        score_NR = score_sequences(self.model, sequences, pad_token_id=pad_token_id)
        columns = score_NR.T.astype(np.float64)
        return dict(zip(self.model.head_ids, columns, strict=True))


def open_reward_model(
    model: str | Path,
    *,
    device: str | None = None,
    dtype: str = "auto",
    max_length: int | None = None,
    revision: str | None = None,
) -> OpenedModel:
    """Open a reward model from a folder or the hub. No pickle is loaded and no remote code is run.

    Args:
        model: Training run, model folder of `encore train`, export, or a plain
            …ForSequenceClassification of transformers (folder or hub id), whose labels are heads.
        device: Device of the model. None uses the GPU if there is one.
        dtype: Number format of the trunk: ``auto`` (bfloat16 on CUDA, else float32), ``float32``
            or ``bfloat16``.
        max_length: Longest conversation in tokens. None uses the limit of the training, or of the
            tokenizer.
        revision: Commit, branch or tag of a hub id.

    Raises:
        EncoreError: There is no such reward model, an argument is out of range, or files do not
            load.
    """
    folder = local_path(model)
    if (folder / _RUN_FILE).is_file():
        model = folder = folder / _MODEL_OF_RUN
        if not folder.is_dir():
            raise InputError(
                f"reward model {str(folder.parent)!r}: this training run has no model yet; train on"
            )
    is_trained_here = (folder / DESCRIPTION_FILE).is_file()
    # `load_model` itself reports missing files of such a folder.
    files = _REWARD_MODEL.find(str(model), revision=revision, needs_weights=not is_trained_here)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if is_trained_here:
        loaded = load_model(folder, device=device, dtype=dtype, max_length=max_length)
    else:
        loaded = _load_classifier(files, device=device, dtype=dtype, max_length=max_length)
    opened, tokenizer, metadata = loaded
    is_of_run = files.hub_revision is None and (folder.parent / _RUN_FILE).is_file()
    return OpenedModel(
        model=opened,
        tokenizer=tokenizer,
        metadata=metadata,
        name=folder.resolve().parent.name if is_of_run else files.name,
        digest=model_digest(opened, tokenizer),
        held_out=read_held_out_scores(folder) if is_trained_here else None,
    )


def _message(message: Mapping[str, Any], *, where: str) -> Message:
    """Return a message of a conversation after a check of its role and content."""
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise InputError(
            f"{where}: a message of role {role!r} with content {content!r:.80}; expected role "
            "system, user or assistant and content that is text"
        )
    return Message(role=role, content=content)


def model_digest(model: MultiHeadRewardModel, tokenizer: ConversationTokenizer) -> str:
    """Return the SHA-256 of a reward model: architecture, weights, heads and input format.

    Models with the same digest give a conversation the same scores, except for rounding on another
    device. Reading 8 billion weights takes about ten seconds.

    Args:
        model: Reward model. Its means are included: they say what a score of 0 means.
        tokenizer: Tokenizer with its vocabulary, frozen template and maximum length.
    """
    hf_tokenizer = tokenizer.hf_tokenizer
    content = json.loads(hf_tokenizer.backend_tokenizer.to_str())
    for name in ("padding", "truncation"):  # settings of the latest call, not of the tokenizer
        content.pop(name, None)
    # Templates print the begin and end tokens, and truncation keeps the begin token.
    roles = {name: str(token) for name, token in hf_tokenizer.special_tokens_map.items()}
    parts = [
        architecture_text(model),
        json.dumps(model.head_ids),
        parameter_digest(model),
        hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        json.dumps(roles, sort_keys=True),
        tokenizer.template_sha256,
        str(tokenizer.max_length),
        *(["as downloaded"] if tokenizer.is_as_downloaded else []),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def architecture_text(model: MultiHeadRewardModel) -> str:
    """Return the trunk's config as canonical JSON, without fields that change no result."""
    config = json.loads(model.trunk.config.to_json_string(use_diff=False))
    for name in _IGNORED_FIELDS:
        config.pop(name, None)
    return json.dumps(config, sort_keys=True)


def parameter_digest(module: Any) -> str:
    """Return the SHA-256 of a module's weights: names, number formats, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load_classifier(
    files: ModelFiles, *, device: str, dtype: str, max_length: int | None
) -> LoadedModel:
    """Load a …ForSequenceClassification with its labels as heads."""
    _refuse_other_models(files)
    head_ids = _head_ids(files)
    fields = {
        "model": files.location,
        "revision": files.hub_revision,
        "dtype": dtype,
        "max_length": max_length or _NO_LIMIT,
    }
    config = BackboneConfig.model_validate(fields)
    tokenizer = load_tokenizer(config, is_as_downloaded=True)
    if max_length is None:
        limit = min(int(tokenizer.hf_tokenizer.model_max_length), tokenizer.max_length)
        tokenizer.max_length = limit if limit < _NO_LIMIT else _FALLBACK_LENGTH
    model: MultiHeadRewardModel
    if TRUNKS.get(str(files.config.get("model_type")), UNKNOWN_KIND).is_causal:
        model = load_reward_model(config, head_ids=head_ids, head_init="labels", device=device)
        model.eval()
    else:
        model = load_whole_classifier(
            config, head_ids=head_ids, pad_token_id=tokenizer.pad_token_id, device=device
        )
        tokenizer.max_length = min(tokenizer.max_length, model.max_positions or _NO_LIMIT)
        _refuse_if_padding_counts(model, tokenizer, name=files.name)
    metadata = {"architectures": files.config["architectures"], "revision": files.revision}
    if (export_file := _REWARD_MODEL.optional_file(files, EXPORT_FILE)) is not None:
        means, export_metadata = _read_export(export_file, labels=head_ids)
        metadata = {**export_metadata, **metadata}
        model.mean_R.copy_(torch.tensor(means, dtype=model.mean_R.dtype))
    return model, tokenizer, metadata


def _read_export(path: Path, *, labels: tuple[str, ...]) -> tuple[list[float], dict[str, Any]]:
    """Read the mean of each label and the model's metadata from an export's `EXPORT_FILE`."""
    try:
        export = json.loads(path.read_bytes())
        if export["labels"] != list(labels):
            raise ValueError(f"labels {export['labels']}, but config.json has {list(labels)}")
        metadata = dict(export["model_metadata"])
        if export["kind"] == "heads":
            return [float(export["mean"][label]) for label in labels], metadata
        composed = {name: export[name] for name in _COMPOSED_FIELDS}
        return [float(export["mean_of_reward"])], metadata | {COMPOSED: composed}
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise InputError(
            f"{path}: does not describe this model ({type(error).__name__}: {error}); export again"
        ) from error


def _refuse_if_padding_counts(
    model: WholeClassifier, tokenizer: ConversationTokenizer, *, name: str
) -> None:
    """Refuse a model whose score of a text changes with padding; tried out on two texts.

    XLNet's head reads the last position of a row, and FNet mixes all positions.
    """
    short, long = (tokenizer.encode(_TEST_PROMPT, text).token_ids for text in _TEST_RESPONSES)
    batches = [
        lay_out(sequences, layout="sorted", pad_token_id=model.pad_token_id, is_causal=False)
        for sequences in ([short], [short, long])
    ]
    with torch.inference_mode():
        unpadded_NR, padded_NR = (model(batch.to(model.device)) for batch in batches)
    scale = unpadded_NR.abs().max().clamp(min=1.0)
    effect = float((unpadded_NR - padded_NR[:1]).abs().max() / scale)
    if effect > _MAX_PADDING_EFFECT[model.trunk.dtype]:
        raise InputError(
            f"reward model {name!r}: a text's score changes by {effect:.1%} beside a longer one, "
            f"because {model.trunk.config.model_type!r} reads padding in transformers; expected an "
            "architecture whose score is of the text alone"
        )


def _refuse_other_models(files: ModelFiles) -> None:
    """Refuse a model with code of its own, and any model but transformers' classifiers."""
    if files.config.get("auto_map"):
        raise InputError(
            f"reward model {files.name!r}: its config.json has an auto_map, so it wants Python "
            "code that it brings to be run; expected an architecture of transformers itself"
        )
    names = ", ".join(map(str, files.config.get("architectures") or ("no architecture",)))
    is_known = files.config.get("model_type") in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    if not is_known or "ForSequenceClassification" not in names:
        raise InputError(
            f"reward model {files.name!r}: {names} gives no scores; expected a model of `encore "
            f"train` (a folder with {DESCRIPTION_FILE}) or a …ForSequenceClassification of "
            "transformers"
        )


def _head_ids(files: ModelFiles) -> tuple[str, ...]:
    """Return the names of the labels, in their order."""
    labels = files.config.get("id2label") or {}
    indices = range(num_labels(files.config))
    names = tuple(str(labels.get(str(index), f"LABEL_{index}")) for index in indices)
    problem_type = files.config.get("problem_type")
    if len(names) > 1 and problem_type not in (None, "regression"):
        raise InputError(
            f"reward model {files.name!r}: a classifier of {len(names)} labels (problem_type "
            f"{problem_type!r}), whose outputs are no rewards; expected one label, or problem_type "
            "'regression'"
        )
    return (_SINGLE_HEAD,) if names == ("LABEL_0",) else names
