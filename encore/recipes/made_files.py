"""Write the files of a recipe's stage, unless they are there already and of the same inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from encore.core.files import json_text, write_json
from encore.core.model_files import file_digest, folder_digest
from encore.data import pairs
from encore.data.records import PreferencePair
from encore.data.study import open_study

#: Number of pairs on which the rankings that the export's number format flips are counted.
_FLIP_PAIRS = 200


def write_if_changed(path: Path, content: Mapping[str, Any]) -> bool:
    """Write JSON unless the file has this content. Return True if it was written."""
    if path.is_file() and path.read_text(encoding="utf-8") == json_text(content):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    return True


def make_folder(folder: Path, inputs: Mapping[str, Any], make: Callable[[], Any]) -> bool:
    """Make a folder, unless the record beside it shows that it is whole and of the same inputs.

    Returns:
        True if the folder was made by this call.
    """
    record_path = folder.with_name(f".{folder.name}.made.json")
    record: dict[str, Any] = {"files": {}}
    if record_path.is_file():
        record = json.loads(record_path.read_text(encoding="utf-8"))
    is_whole = record["files"].items() <= _digests(folder).items()
    if is_whole and record.get("made_from") == json.loads(json.dumps(inputs)):
        return False
    if not is_whole:  # damaged files must not be taken for a result
        for name in record["files"]:
            (folder / name).unlink(missing_ok=True)
    make()
    write_json(record_path, {"made_from": inputs, "files": _digests(folder)})
    return True


def make_export(
    study: Path,
    model: Path,
    *,
    out: Path,
    weights: Path | None,
    dtype: Literal["float32", "bfloat16"],
) -> bool:
    """Export a trained model, its heads folded if there are weights.

    Args:
        study: Directory of the study, on whose first pairs flipped rankings are counted.
        model: Folder of the trained model.
        out: Folder of the export.
        weights: File with the weights of the rules.
        dtype: Number format of the export.

    Returns:
        True if the export was made by this call.
    """
    from encore.exports.weights_input import read_weights
    from encore.exports.write_export import export_model
    from encore.model.open_model import open_reward_model

    content = None if weights is None else json.loads(weights.read_text(encoding="utf-8"))
    inputs = {"model": folder_digest(model), "weights": content, "dtype": dtype}

    def work() -> None:
        # On the CPU: the export is opened beside it, and both may not fit on a GPU.
        opened = open_reward_model(model, device="cpu", dtype="float32")
        composition = None
        if weights is not None:
            head_ids, held_out = opened.model.head_ids, opened.held_out
            composition = read_weights(weights, head_ids=head_ids, held_out=held_out)
        sample: Sequence[PreferencePair] = ()
        if dtype == "bfloat16":
            study_pairs = pairs.read_pairs(open_study(study))
            sample = pairs.records_of(pairs.planned_pairs(study_pairs, limit=_FLIP_PAIRS))
        export_model(opened, out=out, weights=composition, dtype=dtype, pairs=sample)

    return make_folder(out, inputs, work)


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in sorted(folder.glob("*")) if path.is_file()}
