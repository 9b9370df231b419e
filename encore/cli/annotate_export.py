"""`encore annotate export`: draw a sample and write the files that annotators fill in."""

from __future__ import annotations

from encore.cli.output import show_result
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import say
from encore.people.annotate_config import AnnotateExportConfig


@command
def annotate_export(config: AnnotateExportConfig, *, json: JsonOption = False) -> None:
    """Draw a blind, stratified, seeded sample of a study for people to answer.

    Responses are spread over sources, rules and the judge's ratings, so that rare ratings occur.
    Annotators see neither ratings nor ranks, entropies or preferences; only the examples of --kind
    rules have scores, as in the paper. All annotators get the same items. The data that an import
    needs stay in STUDY/annotations/KEY; give annotators only the files that are printed.

    Examples: `encore annotate export study --annotators 3`,
    `encore annotate export study --kind rules --annotators 3`,
    `encore annotate export study --items 500 --format label-studio`.
    """
    from encore.data.study import open_study
    from encore.people.export_sample import export_sample

    export = export_sample(open_study(config.study), config)
    sample, notes = export.sample, [export.note] if export.note else []
    record = {**sample.model_dump(), "files": export.files}
    show_result(record, map(str, export.files), notes, as_json=json)
    item_kind = "response" if config.kind == "responses" else "pair of rules"
    items = counted(sample.num_items, "item")
    say(
        f"sample {sample.key}: {items}, each a {item_kind}; the same for all annotators. "
        f"Then: encore annotate import {config.study} FILES"
    )
