"""`encore annotate export` as a function: a blind, stratified, seeded sample for annotators.

Ratings of one run decide what is drawn, and annotators do not see them: neither ratings (but for
the examples of a rule, as in the paper's study), nor entropies, nor what was chosen or rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.core.files import atomic_write_bytes, write_json
from encore.data.annotations import ITEMS_FILE, SAMPLE_FILE, Sample
from encore.data.pairs import read_pairs, records_of
from encore.data.rating_runs import RatingManifest
from encore.data.records import PreferencePair, SampleKind
from encore.data.schemas import SAMPLED_RESPONSES, SAMPLED_RULES
from encore.data.study import Study, changed_study, open_study
from encore.people.annotate_config import DEFAULT_ITEMS, AnnotateExportConfig
from encore.people.handouts import handouts
from encore.people.questionnaire import SIDES, Card, Item, Questionnaire, questions_of
from encore.people.stratified_draw import Row, draw_responses, draw_rules
from encore.warehouse import Ratings, open_ratings


def export_sample(config: AnnotateExportConfig) -> tuple[Sample, tuple[Path, ...], str]:
    """Draw a sample, record it in the study, and write the files for annotators.

    The same study and options give the same sample, under the same key.

    Returns:
        What is recorded of it, the files, and a note if it has fewer items than asked for, else "".

    Raises:
        InputError: No ratings, too few rules to pair, a file for annotators that is there with
            other content.
    """
    study = open_study(config.study)
    ratings = open_ratings(config.study, run=config.run, judge=config.judge)
    assert ratings.manifest is not None, "a study's ratings have one"
    num_items = config.items or DEFAULT_ITEMS[config.kind]
    rows, items = _draw(
        study, ratings, ratings.manifest, config.kind, num=num_items, seed=config.seed
    )
    scale = tuple(config.scale.split(",")) if config.kind == "responses" else ()
    questions = questions_of(config.kind, scale)
    sheet = Questionnaire(kind=config.kind, questions=questions, items=items)
    sample = Sample(
        key=sheet.key(seed=config.seed),
        kind=config.kind,
        scale=scale,
        seed=config.seed,
        run_key=ratings.manifest.run_key,
        num_items=len(items),
    )
    contents = handouts(sheet, config, key=sample.key)
    folder = study.path / sample.path("handouts")
    files = {folder / name: content for name, content in contents.items()}
    _refuse_others(files)
    if not (study.path / sample.path(SAMPLE_FILE)).is_file():
        with changed_study(study.path) as change:
            schema = SAMPLED_RESPONSES if config.kind == "responses" else SAMPLED_RULES
            table = pa.Table.from_pylist(rows, schema=schema)
            pq.write_table(table, change.path(sample.path(ITEMS_FILE)), compression="zstd")
            write_json(change.path(sample.path(SAMPLE_FILE)), sample)
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        atomic_write_bytes(path, content)
    note = ""
    if len(items) < num_items and (config.items or config.kind == "responses"):
        note = f"{len(items)} items are all there are; {num_items} were asked for"
    return sample, tuple(files), note


def _refuse_others(files: Mapping[Path, bytes]) -> None:
    """Refuse to write over what an annotator may have filled in."""
    for path, content in files.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise InputError(
                f"{path}: there already, with other content, perhaps an annotator's answers; move "
                "it away"
            )


# --- texts --------------------------------------------------------------------------------------

_Records = Mapping[tuple[str, str], PreferencePair]


def _draw(
    study: Study,
    ratings: Ratings,
    manifest: RatingManifest,
    kind: SampleKind,
    *,
    num: int,
    seed: int,
) -> tuple[list[Row], tuple[Item, ...]]:
    """The rows of a sample, and what annotators see of each."""
    rules = {rule["rule_id"]: rule for rule in manifest.rules}
    if kind == "responses":
        rows = draw_responses(ratings, num_items=num, seed=seed)
        records = _records(study, rows)
        return rows, tuple(
            _response_item(row, rules[row["rule_id"]], records[row["source"], row["pair_id"]])
            for row in rows
        )
    rows, examples = draw_rules(ratings, num_items=num, seed=seed)
    records = _records(study, [row for of_rule in examples.values() for row in of_rule])
    parts = {one: _rule_parts(rules[one], shown, records) for one, shown in examples.items()}

    def card(side: str, rule_id: str) -> Card:
        title = f"{side.capitalize()} rule: {rules[rule_id]['title']}"
        return Card(name=f"{side}_rule", title=title, parts=parts[rule_id])

    return rows, tuple(
        Item(item_id=row["item_id"], cards=tuple(card(side, row[f"{side}_rule"]) for side in SIDES))
        for row in rows
    )


def _response_item(row: Row, rule: Mapping[str, str], pair: PreferencePair) -> Item:
    about = (("Description", rule["description"]), ("Criterion", rule["rating_rule"]))
    said = (("", pair.response_text(row["response"])),)
    cards = (
        Card(name="rule", title=f"Rule: {rule['title']}", parts=about),
        Card(name="conversation", title="Conversation", parts=_turns(pair)),
        Card(name="response", title="Response to rate", parts=said),
    )
    return Item(item_id=row["item_id"], cards=cards)


def _rule_parts(
    rule: Mapping[str, str], examples: Sequence[Row], records: _Records
) -> tuple[tuple[str, str], ...]:
    parts = [("Description", rule["description"])]
    for number, row in enumerate(examples, start=1):
        pair = records[row["source"], row["pair_id"]]
        turns = [*_turns(pair), ("response", pair.response_text(row["response"]))]
        text = "\n\n".join(f"{role}: {said}" for role, said in turns)
        parts.append((f"Example {number}, score {row['rating']:g}", text))
    return tuple(parts)


def _turns(pair: PreferencePair) -> tuple[tuple[str, str], ...]:
    return tuple((str(turn.role), turn.content) for turn in pair.prompt)


def _records(study: Study, rows: Sequence[Row]) -> _Records:
    """The pairs of some rows, by source and pair_id.

    Raises:
        InputError: The study no longer has one.
    """
    pairs = read_pairs(study)
    wanted = pa.array([row["pair_id"] for row in rows], pa.string())
    found = records_of(pairs.filter(pc.is_in(pairs["pair_id"], value_set=wanted)))
    records = {(pair.source, pair.pair_id): pair for pair in found}
    for row in rows:
        if (row["source"], row["pair_id"]) not in records:
            raise InputError(
                f"pair {row['pair_id']} of {row['source']} is rated, and not among the study's "
                "pairs; rate those that are there, or choose another run with --run"
            )
    return records
