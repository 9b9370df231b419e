"""`encore export`: write a reward model as a plain transformers folder that loads anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from encore.cli.output import compact_table, show_result, warn_of_unused
from encore.core.command_parser import JsonOption, command
from encore.core.errors import InputError, StudyIncompleteError
from encore.core.model_files import local_path, refuse_missing_folder
from encore.core.number_text import counted
from encore.core.terminal import say, say_next
from encore.exports.export_options import ExportConfig

if TYPE_CHECKING:
    from encore.data.records import PreferencePair
    from encore.exports.model_card import Exported
    from encore.model.open_model import OpenedModel

#: Number of pairs on which flipped rankings are counted. A model of 8 billion weights takes minutes
#: for them on a CPU.
_MAX_PAIRS = 200


@command
def export(config: ExportConfig, *, json: JsonOption = False) -> None:
    """Write a reward model so that other tools load it without ENCORE.

    The folder is the backbone's own ...ForSequenceClassification in safetensors, with config,
    tokenizer, chat template and a model card. Without weights every rule is a label. With weights
    the heads are folded into one label, which is exact.

    The folder is read back with plain transformers and has to give the same scores, to 1e-5.

    Example: encore export study/training/KEY --out my-model --scheme encore --ratings study

    Exit code 3: the weights come from a rating run that is not complete.
    """
    refuse_missing_folder("reward model", config.model)
    choice = config.composition
    warn_of_unused(choice.unused_options(), who=f"scheme {choice.scheme}")
    from encore.exports.push import push_export
    from encore.exports.weights_input import chosen_weights
    from encore.exports.write_export import export_model, refuse_occupied

    refuse_occupied(config.out, source=config.model)  # before a large model is loaded
    opened = _open_model(config)
    composition = chosen_weights(choice, head_ids=opened.model.head_ids, held_out=opened.held_out)
    result = export_model(
        opened,
        out=config.out,
        weights=composition,
        dtype=config.dtype,
        licence=config.licence,
        pairs=_sample_pairs(choice.ratings) if config.dtype == "bfloat16" else (),
    )
    pushed = None if config.push is None else push_export(config.out, repo_id=config.push)
    record = {
        "folder": config.out,
        **result.as_dict(),
        "num_bytes": result.num_bytes,
        "notes": result.notes,
        "pushed": pushed,
    }
    table = compact_table(
        ("rule", "weight"), result.composition.weights.items(), title="Folded heads"
    )
    show_result(record, [table], result.notes, as_json=json)
    _say_result(result, config.out, pushed=pushed)


def _open_model(config: ExportConfig) -> OpenedModel:
    """Open the model to export; raise InputError for a gate."""
    from encore.model.open_model import open_reward_model

    if (local_path(config.model) / "gate.json").is_file():
        raise InputError(
            f"model {config.model}: this is a gate, whose weights depend on the prompt, so it "
            "cannot be folded into a plain classifier; export the model it weighs"
        )
    return open_reward_model(
        config.model,
        device="cpu",  # the export is opened too, and both may not fit on a GPU
        dtype="float32",
        max_length=config.max_length,
        revision=config.revision,
    )


def _say_result(result: Exported, out: Path, *, pushed: Mapping[str, str] | None) -> None:
    """Say what an export holds, how it was checked, and what can be done with it.

    Raises:
        StudyIncompleteError: The weights come from a rating run that is not complete.
    """
    checked, written = result.verification, result.written
    flips = (
        f"; {checked.num_flipped:,} of {checked.num_margins:,} rankings flipped or tied"
        if checked.num_margins
        else ""
    )
    say(
        f"{out}: {result.kind}, {counted(len(written.labels), 'label')}, "
        f"{written.dtype}, {result.num_bytes / 1e6:.1f} MB; {checked.num_probes} conversations "
        f"score the same with plain transformers (to {checked.max_difference:.0e}){flips}"
    )
    say(f"{out / 'README.md'} shows how to load it in ten lines")
    if pushed is not None:
        say(f"pushed: {pushed['url']}")
    composition = result.composition
    if composition.num_missing_shards:
        raise StudyIncompleteError(
            f"the weights are of a rating run that lacks {composition.num_missing_shards} of "
            f"{composition.num_shards} shards: `encore rate`, then export again"
        )
    is_reward = len(written.labels) == 1
    weights_options = () if is_reward else ("--scheme", "encore", "--ratings", "STUDY")
    say_next("serve", out, *weights_options)


def _sample_pairs(ratings: Path | None) -> Sequence[PreferencePair]:
    """Return the first pairs of a study by content hash; no pairs if the path is no study."""
    from encore.data.pairs import planned_pairs, read_pairs, records_of
    from encore.data.study import is_study, open_study

    if ratings is None or not is_study(ratings):
        return ()
    return records_of(planned_pairs(read_pairs(open_study(ratings)), limit=_MAX_PAIRS))
