"""Any reward model that can be run here, by path or hub id: ours, an export, a downloaded one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from encore.core.errors import InputError
from encore.core.model_files import ModelFiles, ModelRole
from encore.data.records import Message
from encore.model.backbone_config import COMPOSED, EXPORT_FILE, BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.layouts import lay_out
from encore.model.loading import load_reward_model, load_tokenizer, load_whole_classifier
from encore.model.reward_model import MultiHeadRewardModel, WholeClassifier
from encore.model.saved_model import ABOUT_FILE, LoadedModel, load_model
from encore.model.trunks import OTHER, TRUNKS

#: The head of a downloaded reward model with one label.
_SINGLE_HEAD = "reward"
_REWARD_MODEL = ModelRole(name="reward model", error=InputError)
#: Of a training run's folder: where its model is, and the file by which it is known.
_MODEL_OF_RUN, _RUN_FILE = "model", "training.json"
#: How many labels transformers assumes where a config does not say.
_NUM_LABELS = 2
#: Where neither tokenizer nor model says how long a conversation may be.
_FALLBACK_LENGTH = 4096
#: Tokenizers without a limit state some huge number.
_NO_LIMIT = 10**9
#: What is tried on a classifier that is run whole.
_PROBE = (Message(role="user", content="Hi."),)
_PROBE_RESPONSES = ("Yes.", "No, that is something else, and a longer answer goes with it.")
#: The most that padding may change a score by, as a share of it: rounding.
_MAX_PADDING_EFFECT = {torch.float32: 1e-3, torch.bfloat16: 0.1}
#: Fields of a config.json that say where a model lay or what wrote it, not what it computes.
_NOT_COMPUTED = ("_name_or_path", "transformers_version")
_OF_COMPOSED = ("weights", "mean", "scheme", "params", "entropy_nats", "weights_provenance")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedModel:
    """A reward model ready to score.

    Attributes:
        model: In evaluation mode. Its scores are raw and centred, its means metadata.
        tokenizer: Renders and encodes conversations as the model was trained on them.
        metadata: What its training recorded; of a plain classifier where it came from.
        name: Its folder's name or hub id, never a machine's path.
        digest: SHA-256 of everything the scores follow from (`model_digest`).
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
            …ForSequenceClassification of transformers, a folder or a hub id: its labels are heads.
        device: Where it goes; default: the GPU where there is one.
        dtype: Of the trunk: ``auto`` (bfloat16 on CUDA, else float32), ``float32``, ``bfloat16``.
        max_length: In tokens; default: as it was trained, or what its tokenizer says.
        revision: Of a hub id.

    Raises:
        EncoreError: No such reward model; an argument out of range; files that do not load.
    """
    folder = Path(model).expanduser()
    if (folder / _RUN_FILE).is_file():
        model = folder = folder / _MODEL_OF_RUN
        if not folder.is_dir():
            raise InputError(
                f"reward model {str(folder.parent)!r}: this training run has no model yet; train on"
            )
    is_ours = (folder / ABOUT_FILE).is_file()
    # What a model of ours lacks is said by `load_model`; on the hub only safetensors are asked for.
    files = _REWARD_MODEL.find(str(model), revision=revision, needs_weights=not is_ours)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if is_ours:
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
    )


def model_digest(model: MultiHeadRewardModel, tokenizer: ConversationTokenizer) -> str:
    """SHA-256 over a reward model: architecture, weights and their format, heads, input format.

    Two models with one digest give a conversation the same scores, but for rounding on another
    device. Reading 8 billion weights takes some ten seconds.

    Args:
        model: Its means count too: they are part of what its scores mean.
        tokenizer: Vocabulary, frozen template and maximum length.
    """
    hf_tokenizer = tokenizer.hf_tokenizer
    content = json.loads(hf_tokenizer.backend_tokenizer.to_str())
    for name in ("padding", "truncation"):  # set by whoever calls
        content.pop(name, None)
    # Templates print the tokens that begin and end texts, and cutting keeps the first.
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
    """What the trunk's config says of how it computes, as canonical JSON."""
    config = json.loads(model.trunk.config.to_json_string(use_diff=False))
    for name in _NOT_COMPUTED:
        config.pop(name, None)
    return json.dumps(config, sort_keys=True)


def parameter_digest(module: Any) -> str:
    """SHA-256 over a module's weights: names, formats, shapes, bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load_classifier(
    files: ModelFiles, *, device: str, dtype: str, max_length: int | None
) -> LoadedModel:
    """A …ForSequenceClassification with its labels as heads."""
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
        own = min(int(tokenizer.hf_tokenizer.model_max_length), tokenizer.max_length)
        tokenizer.max_length = own if own < _NO_LIMIT else _FALLBACK_LENGTH
    model: MultiHeadRewardModel
    if TRUNKS.get(str(files.config.get("model_type")), OTHER).is_causal:
        model = load_reward_model(config, head_ids=head_ids, head_init="labels", device=device)
        model.eval()
    else:
        model = load_whole_classifier(
            config, head_ids=head_ids, pad_token_id=tokenizer.pad_token_id, device=device
        )
        tokenizer.max_length = min(tokenizer.max_length, model.max_positions or _NO_LIMIT)
        _refuse_if_padding_counts(model, tokenizer, name=files.name)
    metadata = {"architectures": files.config["architectures"], "revision": files.revision}
    if (about := _REWARD_MODEL.further_file(files, EXPORT_FILE)) is not None:
        means, noted = _read_export(about, labels=head_ids)
        metadata = {**noted, **metadata}
        model.mean_R.copy_(torch.tensor(means, dtype=model.mean_R.dtype))
    return model, tokenizer, metadata


def _read_export(path: Path, *, labels: tuple[str, ...]) -> tuple[list[float], dict[str, Any]]:
    """The labels' means and the metadata that an export's `EXPORT_FILE` says."""
    try:
        found = json.loads(path.read_bytes())
        if found["labels"] != list(labels):
            raise ValueError(f"labels {found['labels']}, but config.json has {list(labels)}")
        metadata = dict(found["model_metadata"])
        if found["kind"] == "heads":
            return [float(found["mean"][label]) for label in labels], metadata
        composed = {name: found[name] for name in _OF_COMPOSED}
        return [float(found["mean_of_reward"])], metadata | {COMPOSED: composed}
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise InputError(
            f"{path}: does not describe this model ({type(error).__name__}: {error}); export again"
        ) from error


def _refuse_if_padding_counts(
    model: WholeClassifier, tokenizer: ConversationTokenizer, *, name: str
) -> None:
    """Refuse a kind whose score of a text would depend on what is scored beside it, by trying.

    XLNet's head reads the last place of a row, FNet mixes all.
    """
    short, long = (tokenizer.encode(_PROBE, text).token_ids for text in _PROBE_RESPONSES)
    batches = [
        lay_out(row, layout="sorted", pad_token_id=model.pad_token_id, is_causal=False)
        for row in ([short], [short, long])
    ]
    with torch.inference_mode():
        alone_NR, beside_NR = (model(batch.to(model.device)) for batch in batches)
    scale = alone_NR.abs().max().clamp(min=1.0)
    effect = float((alone_NR - beside_NR[:1]).abs().max() / scale)
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
    names = ", ".join(map(str, files.config.get("architectures") or ("no architecture",)))
    is_known = files.config.get("model_type") in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    if not is_known or "ForSequenceClassification" not in names:
        raise InputError(
            f"reward model {files.name!r}: {names} gives no scores; expected a model of `encore "
            f"train` (a folder with {ABOUT_FILE}) or a …ForSequenceClassification of transformers"
        )


def _head_ids(files: ModelFiles) -> tuple[str, ...]:
    """The names of the labels, in their order."""
    labels = files.config.get("id2label") or {}
    num_labels = len(labels) or int(files.config.get("num_labels") or _NUM_LABELS)
    names = tuple(str(labels.get(str(place), f"LABEL_{place}")) for place in range(num_labels))
    problem_type = files.config.get("problem_type")
    if len(names) > 1 and problem_type not in (None, "regression"):
        raise InputError(
            f"reward model {files.name!r}: a classifier of {len(names)} labels (problem_type "
            f"{problem_type!r}), whose outputs are no rewards; expected one label, or problem_type "
            "'regression'"
        )
    return (_SINGLE_HEAD,) if names == ("LABEL_0",) else names
