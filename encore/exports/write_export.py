"""Write a reward model as a plain transformers folder, and check it before it takes its place.

Suffixes: R heads, K labels, D hidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from encore.core.errors import InputError
from encore.core.files import atomic_folder, write_json
from encore.core.model_files import local_path
from encore.data.records import PreferencePair
from encore.exports.classifier import (
    ExportDtype,
    Written,
    classifier_class,
    classifier_config,
    fold,
    write_tensors,
    write_tokenizer,
)
from encore.exports.model_card import Exported, model_card
from encore.exports.verify import verify_export
from encore.exports.weights_input import Composition, with_head_0
from encore.model.backbone_options import EXPORT_FILE
from encore.model.open_model import OpenedModel, open_reward_model
from encore.weighting.weight_vector import WeightVector

#: Names of the files of an export.
_EXPORT_FILES = re.compile(
    r"config\.json|tokenizer(_config)?\.json|chat_template\.jinja|README\.md"
    rf"|{re.escape(EXPORT_FILE)}|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"
)


def export_model(
    model: OpenedModel | str | Path,
    *,
    out: str | Path,
    weights: Mapping[str, float] | WeightVector | Composition | None = None,
    dtype: ExportDtype = "float32",
    licence: str | None = None,
    pairs: Sequence[PreferencePair] = (),
) -> Exported:
    """Write one folder, whole or not at all. An earlier export in this folder is replaced.

    Args:
        model: Reward model, opened in float32, or its path or hub id. The export is read back
            beside it, so memory must hold the model twice.
        out: Folder to write.
        weights: Weight of each head, to fold all heads into one label, ``reward``. Weights of rules
            alone are composed with head 0 if the model has one (`with_head_0`). None: one label per
            head.
        dtype: Number format of the weights on disk; bfloat16 halves them and can flip near-ties.
        licence: Licence that the card states, by its name on the hub.
        pairs: Pairs on which the rankings that ``dtype`` flips are counted.

    Raises:
        EncoreError: The model or the weights cannot be exported, or the written files score
            otherwise than the model.
    """
    out = Path(out)
    if isinstance(model, str | Path):
        model = open_reward_model(model, device="cpu", dtype="float32")
    if isinstance(weights, WeightVector):
        weights = dict(zip(weights.rule_ids, weights.weights, strict=True))
    weights = Composition(weights=dict(weights)) if isinstance(weights, Mapping) else weights
    refuse_occupied(out)
    if weights is not None:
        weights = with_head_0(weights, head_ids=model.model.head_ids, held_out=model.held_out)
    _refuse_other_formats(model)
    folder = out.resolve()  # a symbolic link then points to the new export
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as temporary:
        written = _write(model, temporary, weights, dtype=dtype)
        exported = Exported(
            folder=folder,
            written=written,
            licence=licence,
            verification=verify_export(written, pairs=pairs),
        )
        (temporary / "README.md").write_text(model_card(exported), encoding="utf-8")
        write_json(temporary / EXPORT_FILE, exported.as_dict())
    return exported


def _refuse_other_formats(model: OpenedModel) -> None:
    """Raise InputError for a model that is not opened in float32."""
    if other_dtypes := {p.dtype for p in model.model.parameters()} - {torch.float32}:
        raise InputError(
            f"model {model.name!r}: opened in {', '.join(map(str, other_dtypes))}; expected "
            'torch.float32 (open_reward_model(…, dtype="float32")), whatever the export is written '
            "in"
        )


def _write(
    model: OpenedModel, folder: Path, composition: Composition | None, *, dtype: ExportDtype
) -> Written:
    """Write config, weights and tokenizer: the files that readers need."""
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
    """Refuse an output folder that holds anything but an earlier export.

    Args:
        out: Folder to write.
        source: Folder or hub id of the model to export.

    Raises:
        InputError: The folder holds something else, the model itself or the working directory.
    """
    folder, working_dir = out.resolve(), Path.cwd().resolve()
    model = None if source is None else local_path(source).resolve()
    entries = list(folder.iterdir() if folder.is_dir() else filter(Path.exists, [folder]))
    strangers = [
        entry.name
        for entry in entries
        if not _EXPORT_FILES.fullmatch(entry.name) or entry.is_symlink() or not entry.is_file()
    ]
    problem = None
    if working_dir.is_relative_to(folder):
        problem = "this is the working directory or one above it, which cannot be replaced"
    elif model is not None and model.exists() and model.is_relative_to(folder):
        problem = f"the model {source} lies there and would be replaced by its own export"
    elif strangers or (entries and not (folder / EXPORT_FILE).is_file()):
        listing = ", ".join(sorted(strangers)[:3]) or f"no {EXPORT_FILE}"
        problem = f"there is something else in it than an export ({listing})"
    if problem is not None:
        raise InputError(f"--out {out}: {problem}; name a new folder")
