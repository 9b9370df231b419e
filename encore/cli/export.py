"""`encore export`: a trained reward model as a plain transformers folder that loads anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from encore.cli.output import compact_table, show_result, warn_of_unused
from encore.core.errors import InputError, StudyIncompleteError
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say
from encore.export.export_config import ExportConfig

if TYPE_CHECKING:
    from encore.data.records import PreferencePair
    from encore.export.model_card import Exported
    from encore.model.opening import OpenedModel

#: Pairs on which flipped rankings are counted: a fair sample, minutes on a CPU for 8 billion
#: weights.
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
    chosen = config.composition
    warn_of_unused(chosen.unused_options(), who=f"scheme {chosen.scheme}")
    from encore.export.push import push_export
    from encore.export.weights_input import chosen_weights
    from encore.export.write_export import export_model, refuse_occupied

    refuse_occupied(config.out, source=config.model)  # before a large model is loaded
    opened = _opened(config)
    composition = chosen_weights(chosen, head_ids=opened.model.head_ids)
    result = export_model(
        opened,
        out=config.out,
        weights=composition,
        dtype=config.dtype,
        licence=config.licence,
        pairs=_pairs(chosen.ratings) if config.dtype == "bfloat16" else (),
    )
    pushed = None if config.push is None else push_export(config.out, repo_id=config.push)
    more = {"num_bytes": result.num_bytes, "notes": result.notes, "pushed": pushed}
    weights = result.composition.weights.items()
    table = compact_table(("rule", "weight"), weights, title="Folded heads")
    found = {"folder": config.out, **result.as_dict(), **more}
    show_result(found, [table], result.notes, as_json=json)
    _say_what_was_written(result, config.out)
    if pushed is not None:
        say(f"pushed: {pushed['url']}")
    if composition is not None and composition.num_missing_shards:
        raise StudyIncompleteError(
            f"the weights are of a rating run that lacks {composition.num_missing_shards} of "
            f"{composition.num_shards} shards: `encore rate`, then export again"
        )


def _opened(config: ExportConfig) -> OpenedModel:
    from encore.model.opening import open_reward_model

    if (Path(config.model).expanduser() / "gate.json").is_file():
        raise InputError(
            f"model {config.model}: this is a gate, whose weights depend on the prompt, so it "
            "cannot be folded into a plain classifier; export the model it weighs"
        )
    # On the CPU: the export is opened beside it, and both may not fit on a GPU.
    return open_reward_model(
        config.model,
        device="cpu",
        dtype="float32",
        max_length=config.max_length,
        revision=config.revision,
    )


def _pairs(ratings: Path | None) -> Sequence[PreferencePair]:
    """Some pairs of a study, by content hash; none of anything else."""
    from encore.data.pairs import iter_pairs
    from encore.data.study import is_study, open_study

    if ratings is None or not is_study(ratings):
        return ()
    by_hash = sorted(iter_pairs(open_study(ratings)), key=lambda pair: pair.pair_id)
    return by_hash[:_MAX_PAIRS]


def _say_what_was_written(result: Exported, folder: Path) -> None:
    checked, written = result.verification, result.written
    flips = (
        f"; {checked.num_flipped} of {checked.num_margins} rankings flipped or tied"
        if checked.num_margins
        else ""
    )
    say(
        f"{folder}: {result.kind}, {counted(len(written.labels), 'label')}, "
        f"{written.dtype}, {result.num_bytes / 1e6:.1f} MB; {checked.num_probes} conversations "
        f"score the same with plain transformers (to {checked.max_difference:.0e}){flips}"
    )
    say(f"next: {folder / 'README.md'} shows how to load it in ten lines")
