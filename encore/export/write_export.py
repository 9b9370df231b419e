"""Write a reward model as a plain transformers folder that loads anywhere, checked before it is.

Suffixes: R heads, K labels, D hidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from encore.data.records import PreferencePair
from encore.errors import InputError
from encore.export.card import model_card
from encore.export.classifier import (
    classifier_class,
    classifier_config,
    classifier_tensors,
    fold,
    minimum_transformers,
)
from encore.export.export_files import INDEX_FILE, write_json, write_tensors, write_tokenizer
from encore.export.records import (
    REWARD_LABEL,
    ExportAbout,
    ExportDtype,
    Exported,
    ExportResult,
    rules_of,
)
from encore.export.verify import Written, verify_export
from encore.files import atomic_folder
from encore.model.config import COMPOSED, EXPORT_FILE
from encore.versions import package_versions

if TYPE_CHECKING:
    from encore.model.opening import OpenedModel

#: Raised whenever `encore_export.json` changes its meaning.
_FORMAT_VERSION = 1
#: All that an export has.
_FILES = re.compile(
    r"config\.json|tokenizer(_config)?\.json|chat_template\.jinja|README\.md"
    rf"|{re.escape(EXPORT_FILE)}|{re.escape(INDEX_FILE)}|model(-\d+-of-\d+)?\.safetensors"
)


def export_model(
    model: OpenedModel,
    *,
    out: Path,
    weights: Mapping[str, float] | None = None,
    dtype: ExportDtype = "float32",
    about: ExportAbout | None = None,
    pairs: Sequence[PreferencePair] = (),
) -> ExportResult:
    """Write one folder, whole or not at all; an earlier export at this place is replaced.

    Scores are the raw, centred ones; the rules' means are in the card and in `encore_export.json`.
    The folder is read back with plain transformers before it takes its place.

    Args:
        model: Opened in float32. Its memory is needed twice: the export is opened beside it.
        out: The folder; its parent is made if it is not there.
        weights: One per head: fold them into one label, ``reward``. None: one label per head.
        dtype: Of the weights on disk; bfloat16 halves them and can flip near-ties.
        about: What the card should say.
        pairs: On which to count the rankings that this dtype flips.

    Raises:
        InputError: A model that no plain classifier can say; weights for other rules than the
            heads; a folder with something else in it; the working directory.
        EncoreError: What was written does not score as the model does; nothing is kept.
        OSError: As the file system reports it.
    """
    about = about or ExportAbout()
    refuse_occupied(out)
    place = out.resolve()  # a link stays a link to the new one
    reward_model = model.model
    _refuse_rounded(model)
    classifier = classifier_class(reward_model, name=model.name)
    labels, head_weight_KD, mix_RK = _label_heads(model, weights)
    tensors = classifier_tensors(reward_model, classifier, head_weight_KD=head_weight_KD)
    config = classifier_config(
        reward_model.trunk.config,
        architecture=classifier.__name__,
        labels=labels,
        pad_token_id=model.tokenizer.pad_token_id,
        dtype=dtype,
    )
    torch_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    place.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(place) as temporary:
        write_tensors(tensors, temporary, dtype=torch_dtype)
        write_tokenizer(model.tokenizer, temporary)
        write_json(temporary / "config.json", config)
        written = Written(
            folder=temporary,
            source=model,
            tensors=tensors,
            mix_RK=mix_RK,
            labels=labels,
            dtype=torch_dtype,
        )
        exported = Exported(
            name=place.name,
            source=model,
            labels=labels,
            rules=rules_of(model, weights=weights, composition=about.composition),
            dtype=dtype,
            about=about,
            architecture=classifier.__name__,
            minimum_transformers=minimum_transformers(reward_model.trunk.config.model_type),
            verification=verify_export(written, pairs=pairs),
        )
        (temporary / "README.md").write_text(str(model_card(exported)), encoding="utf-8")
        write_json(temporary / EXPORT_FILE, _about_export(exported))
    return ExportResult(
        folder=out,
        kind=exported.kind,
        labels=tuple(labels),
        dtype=dtype,
        num_bytes=sum(path.stat().st_size for path in place.iterdir()),
        verification=exported.verification,
        notes=tuple(exported.notes()),
    )


def _label_heads(
    model: OpenedModel, weights: Mapping[str, float] | None
) -> tuple[tuple[str, ...], Any, NDArray[np.float64]]:
    """The labels, their heads [K, D], and how heads mix into labels [R, K]."""
    head_ids, weight_RD = model.model.head_ids, model.model.heads.weight.detach().cpu()
    if weights is None:
        return head_ids, weight_RD, np.eye(len(head_ids))
    folded_1D = fold(weight_RD, weights, head_ids)
    return (REWARD_LABEL,), folded_1D, np.array([[weights[one]] for one in head_ids])


def _refuse_rounded(model: OpenedModel) -> None:
    """What is compared to 1e-5 has to be computed in float32."""
    if found := {parameter.dtype for parameter in model.model.parameters()} - {torch.float32}:
        names = ", ".join(sorted(str(one).removeprefix("torch.") for one in found))
        raise InputError(
            f"model {model.name!r}: opened in {names}; expected float32 (open_reward_model(…, "
            'dtype="float32")), whatever the export is written in'
        )


def refuse_occupied(out: Path, *, source: str | Path | None = None) -> None:
    """Refuse a place whose replacement would cost anything but an earlier export.

    Args:
        out: The folder to write.
        source: Folder (or hub id) of the model to export.

    Raises:
        InputError: What is there, and what to do.
    """
    place, here = out.resolve(), Path.cwd().resolve()
    if place in (here, *here.parents):
        raise InputError(
            f"--out {out}: this is the working directory or one above it, which cannot be "
            "replaced; name a new folder"
        )
    model = None if source is None else Path(source).expanduser().resolve()
    if model is not None and model.exists() and place in (model, *model.parents):
        raise InputError(
            f"--out {out}: the model to export ({source}) lies there and would be replaced by its "
            "own export; name a new folder"
        )
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: there is a file of this name; name a new folder")
    if not out.is_dir():
        return
    entries = sorted(place.iterdir())
    if entries and not (place / EXPORT_FILE).is_file():
        raise InputError(
            f"--out {out}: this folder has something else in it than an export (no {EXPORT_FILE}); "
            "name a new or empty folder"
        )
    strangers = [
        entry.name
        for entry in entries
        if not _FILES.fullmatch(entry.name) or entry.is_symlink() or not entry.is_file()
    ]
    if strangers:
        more = f" and {len(strangers) - 3} more" if len(strangers) > 3 else ""
        raise InputError(
            f"--out {out}: {', '.join(strangers[:3])}{more} beside the export there would be lost; "
            "move what is yours, or name a new folder"
        )


def _about_export(export: Exported) -> dict[str, Any]:
    """What `encore_export.json` says: everything of the card that a program may want."""
    model, rules, composition = export.source, export.rules, export.rules.composition
    return {
        "format": _FORMAT_VERSION,
        "kind": export.kind,
        "labels": list(export.labels),
        "head_ids": list(rules.mean_by_rule),
        "weights": None if rules.weights is None else dict(rules.weights),
        "scheme": None if composition is None else composition.scheme,
        "params": {} if composition is None else dict(composition.params),
        "entropy_nats": {} if composition is None else dict(composition.entropies),
        "weights_provenance": None if composition is None else composition.provenance,
        "mean": dict(rules.mean_by_rule),
        "mean_of_reward": rules.mean_of_reward,
        "max_length": model.tokenizer.max_length,
        "dtype": export.dtype,
        "source": {"name": model.name, "digest": model.digest},
        "verification": asdict(export.verification),
        "model_metadata": {k: v for k, v in model.metadata.items() if k != COMPOSED},
        "versions": package_versions(),
    }
