"""Write a reward model as a plain transformers folder that loads anywhere, checked before it is.

Suffixes: R heads, K labels, D hidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from encore.core.errors import InputError
from encore.core.files import atomic_folder, write_json
from encore.data.records import PreferencePair
from encore.export.classifier import (
    ExportDtype,
    Written,
    classifier_class,
    classifier_config,
    fold,
    write_tensors,
    write_tokenizer,
)
from encore.export.model_card import Exported, model_card
from encore.export.verify import verify_export
from encore.export.weights_input import Composition
from encore.model.backbone_config import EXPORT_FILE
from encore.model.opening import OpenedModel

#: All that an export has.
_FILES = re.compile(
    r"config\.json|tokenizer(_config)?\.json|chat_template\.jinja|README\.md"
    rf"|{re.escape(EXPORT_FILE)}|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"
)


def export_model(
    model: OpenedModel,
    *,
    out: Path,
    weights: Mapping[str, float] | Composition | None = None,
    dtype: ExportDtype = "float32",
    licence: str | None = None,
    pairs: Sequence[PreferencePair] = (),
) -> Exported:
    """Write one folder, whole or not at all; an earlier export at this place is replaced.

    Args:
        model: Opened in float32; needed twice in memory: the export is read back beside it.
        out: The folder.
        weights: One per head: fold them into one label, ``reward``. None: one label per head.
        dtype: Of the weights on disk; bfloat16 halves them and can flip near-ties.
        licence: The hub's identifier of the licence the export is given away under.
        pairs: On which to count the rankings that this dtype flips.

    Raises:
        EncoreError: A model or weights that cannot be exported; what was written scores otherwise.
    """
    weights = Composition(weights=dict(weights)) if isinstance(weights, Mapping) else weights
    refuse_occupied(out)
    if found := {parameter.dtype for parameter in model.model.parameters()} - {torch.float32}:
        raise InputError(
            f"model {model.name!r}: opened in {', '.join(map(str, found))}; expected torch.float32 "
            '(open_reward_model(…, dtype="float32")), whatever the export is written in'
        )
    place = out.resolve()  # a link stays a link to the new one
    place.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(place) as temporary:
        written = _write(model, temporary, weights, dtype=dtype)
        exported = Exported(
            folder=place,
            written=written,
            licence=licence,
            verification=verify_export(written, pairs=pairs),
        )
        (temporary / "README.md").write_text(model_card(exported), encoding="utf-8")
        write_json(temporary / EXPORT_FILE, exported.as_dict())
    return exported


def _write(
    model: OpenedModel, folder: Path, composition: Composition | None, *, dtype: ExportDtype
) -> Written:
    """The files that readers need."""
    classifier = classifier_class(model.model, name=model.name)
    head_ids, weight_RD = model.model.head_ids, model.model.heads.weight.detach().cpu()
    trunk, prefix = model.model.trunk.state_dict(), classifier.base_model_prefix
    tensors = {f"{prefix}.{name}": tensor for name, tensor in trunk.items()}
    tensors["score.weight"] = weight_RD
    if composition is not None:
        tensors["score.weight"] = fold(weight_RD, composition.weights, head_ids)
    written = Written(
        folder=folder,
        source=model,
        composition=composition or Composition(weights={}),
        tensors=tensors,
        dtype=dtype,
        architecture=classifier.__name__,
    )
    write_tensors(tensors, folder, dtype=dtype)
    write_tokenizer(model.tokenizer, folder)
    write_json(folder / "config.json", classifier_config(written))
    return written


def refuse_occupied(out: Path, *, source: str | Path | None = None) -> None:
    """Refuse a place whose replacement would cost anything but an earlier export.

    Args:
        out: The folder to write.
        source: Folder (or hub id) of the model to export.

    Raises:
        InputError: What is there, and what to do.
    """
    place, here = out.resolve(), Path.cwd().resolve()
    model = None if source is None else Path(source).expanduser().resolve()
    entries = list(place.iterdir() if place.is_dir() else filter(Path.exists, [place]))
    strangers = [
        entry.name
        for entry in entries
        if not _FILES.fullmatch(entry.name) or entry.is_symlink() or not entry.is_file()
    ]
    problem = None
    if here.is_relative_to(place):
        problem = "this is the working directory or one above it, which cannot be replaced"
    elif model is not None and model.exists() and model.is_relative_to(place):
        problem = f"the model {source} lies there and would be replaced by its own export"
    elif strangers or (entries and not (place / EXPORT_FILE).is_file()):
        found = ", ".join(sorted(strangers)[:3]) or f"no {EXPORT_FILE}"
        problem = f"there is something else in it than an export ({found})"
    if problem is not None:
        raise InputError(f"--out {out}: {problem}; name a new folder")
