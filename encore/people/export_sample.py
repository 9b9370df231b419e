"""Draw a blind, stratified, seeded sample for annotators (`encore annotate export`).

The draw is stratified by the ratings of one run, which annotators do not see: neither ratings
(except for the examples of a rule, as in the paper's study), nor entropies, nor preferences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.core.errors import InputError
from encore.core.files import atomic_write_bytes, write_json
from encore.data.annotations import ITEMS_FILE, SAMPLE_FILE, Sample
from encore.data.pairs import read_pairs, records_of
from encore.data.rating_runs import RatingManifest
from encore.data.records import PreferencePair
from encore.data.schemas import SAMPLED_RESPONSES, SAMPLED_RULES
from encore.data.study import Study, changed_study
from encore.people.handouts import handouts
from encore.people.next_draw import draw_next, further_runs
from encore.people.people_options import AnnotateExportConfig
from encore.people.questionnaire import SIDES, Card, Item, Questionnaire, questions_of
from encore.people.stratified_draw import Row, draw_responses, draw_rules
from encore.warehouse import Ratings, open_ratings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSample:
    """Result of `export_sample`.

    Attributes:
        sample: Record of the sample.
        files: Paths of the files for annotators.
        note: Sentence that the sample has fewer items than requested; empty if it has all.
    """

    sample: Sample
    files: tuple[Path, ...]
    note: str


def export_sample(study: Study, config: AnnotateExportConfig) -> ExportedSample:
    """Draw a sample, record it in the study, and write the files for annotators.

    The same study and options give the same sample, under the same key.

    Raises:
        InputError: The study has no ratings or too few rules to pair, or a file for annotators
            exists with other content.
    """
    ratings = open_ratings(study, run=config.run, judge=config.judge)
    assert ratings.manifest is not None, "ratings of a study have a manifest"
    further_run_keys = further_runs(study, ratings) if config.next else ()
    rows, items = _draw(study, ratings, ratings.manifest, config)
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
        further_run_keys=further_run_keys,
    )
    contents = handouts(sheet, config, key=sample.key)
    folder = study.path / sample.path("handouts")
    files = {folder / name: content for name, content in contents.items()}
    for path, content in files.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise InputError(
                f"{path} exists with other content, perhaps an annotator's answers; move it away"
            )
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
    if len(items) < config.num_items and (config.items or config.kind == "responses"):
        note = (
            f"the sample has all {len(items)} items of the study; {config.num_items} were requested"
        )
    return ExportedSample(sample=sample, files=tuple(files), note=note)


# --- texts --------------------------------------------------------------------------------------

#: Pairs by (source, pair_id).
_PairByKey = Mapping[tuple[str, str], PreferencePair]


def _draw(
    study: Study, ratings: Ratings, manifest: RatingManifest, config: AnnotateExportConfig
) -> tuple[list[Row], tuple[Item, ...]]:
    """Draw the rows of a sample, and return them with the item that annotators see for each."""
    rules = {rule["rule_id"]: rule for rule in manifest.rules}
    if config.kind == "responses":
        draw = partial(draw_next, study) if config.next else draw_responses
        rows = draw(ratings, num_items=config.num_items, seed=config.seed)
        pairs = _pairs_of_rows(study, rows)
        return rows, tuple(
            _response_item(row, rules[row["rule_id"]], pairs[row["source"], row["pair_id"]])
            for row in rows
        )
    rows, examples = draw_rules(ratings, num_items=config.num_items, seed=config.seed)
    pairs = _pairs_of_rows(study, [row for rule_rows in examples.values() for row in rule_rows])

    def card(side: str, rule_id: str) -> Card:
        parts = [("Description", rules[rule_id]["description"])]
        for number, row in enumerate(examples[rule_id], start=1):
            pair = pairs[row["source"], row["pair_id"]]
            parts.append((f"Example {number}, score {row['rating']:g}", ""))
            parts += [*_turns(pair), ("response", pair.response_text(row["response"]))]
        title = f"{side.capitalize()} rule: {rules[rule_id]['title']}"
        return Card(name=f"{side}_rule", title=title, parts=tuple(parts))

    return rows, tuple(
        Item(item_id=row["item_id"], cards=tuple(card(side, row[f"{side}_rule"]) for side in SIDES))
        for row in rows
    )


def _response_item(row: Row, rule: Mapping[str, str], pair: PreferencePair) -> Item:
    rule_parts = (("Description", rule["description"]), ("Criterion", rule["rating_rule"]))
    response_parts = (("", pair.response_text(row["response"])),)
    cards = (
        Card(name="rule", title=f"Rule: {rule['title']}", parts=rule_parts),
        Card(name="conversation", title="Conversation", parts=_turns(pair)),
        Card(name="response", title="Response to rate", parts=response_parts),
    )
    return Item(item_id=row["item_id"], cards=cards)


def _turns(pair: PreferencePair) -> tuple[tuple[str, str], ...]:
    return tuple((str(turn.role), turn.content) for turn in pair.prompt)


def _pairs_of_rows(study: Study, rows: Sequence[Row]) -> _PairByKey:
    """Read the pairs of sampled rows.

    Raises:
        InputError: The study no longer has the pair of a row.
    """
    table = read_pairs(study)
    pair_ids = pa.array([row["pair_id"] for row in rows], pa.string())
    sampled = records_of(table.filter(pc.is_in(table["pair_id"], value_set=pair_ids)))
    pairs = {(pair.source, pair.pair_id): pair for pair in sampled}
    for row in rows:
        if (row["source"], row["pair_id"]) not in pairs:
            raise InputError(
                f"pair {row['pair_id']} of {row['source']} is rated but not among the study's "
                "pairs; rate the pairs of the study, or choose another run with --run"
            )
    return pairs
