"""The card of a published data set: what it holds, how it was rated, what may be done with it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from encore.publish.licences import joint_identifier, licences_of
from encore.publish.provenance import origin_text, provenance
from encore.query.study_tables import StudyTables
from encore.rating_runs import RatingManifest
from encore.synthetic import is_synthetic_source

_SIZES = ((1e3, "n<1K"), (1e4, "1K<n<10K"), (1e5, "10K<n<100K"), (1e6, "100K<n<1M"))
_LARGEST = "n>1M"


@dataclass(frozen=True, slots=True, kw_only=True)
class NullCount:
    """How many ratings of a rule are null for one reason."""

    rule_id: str
    reason: str
    num_nulls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What a card says.

    Attributes:
        name: The data set's name.
        found: The study; its chosen run is the one published.
        schema: Of a row.
        num_pairs_of_source: Rated pairs of each source.
        num_file_bytes: Size of the Parquet files.
        num_memory_bytes: Size of their content in memory.
        nulls: Null ratings by rule and reason.
    """

    name: str
    found: StudyTables
    schema: pa.Schema
    num_pairs_of_source: Mapping[str, int]
    num_file_bytes: int
    num_memory_bytes: int
    nulls: tuple[NullCount, ...]

    @property
    def num_pairs(self) -> int:
        """Rows of the data set."""
        return sum(self.num_pairs_of_source.values())

    @property
    def num_unrated_pairs(self) -> int:
        """Pairs of the study that the run has not rated."""
        return sum(source.num_kept for source in self.found.sources) - self.num_pairs

    @property
    def run(self) -> RatingManifest:
        """The run whose ratings they are."""
        return self.found.the_run().manifest


def data_set_card(facts: CardFacts) -> str:
    """The text of ``README.md``: metadata that ``datasets`` and the hub read, then words."""
    sections = (
        f"# {facts.name}\n",
        _summary(facts),
        _columns(facts),
        _sources(facts),
        _judge(facts),
        _rules(facts),
        _nulls(facts),
        _loading(facts),
        _provenance(facts),
    )
    return _metadata(facts) + "\n" + "\n".join(sections)


# --- metadata -------------------------------------------------------------------------------------


def _metadata(facts: CardFacts) -> str:
    licences = [one for source in facts.found.sources for one in licences_of(source)]
    values: dict[str, Any] = {
        "pretty_name": facts.name,
        "license": joint_identifier(licences),
        "size_categories": [_size_category(facts.num_pairs)],
        "tags": ["preference", "reward-model", "safety", "rule-ratings", *_synthetic_tag(facts)],
        "configs": [
            {"config_name": "default", "default": True, "data_files": _split("data")},
            {"config_name": "rules", "data_files": _split("rules")},
        ],
        "dataset_info": [
            {
                "config_name": "default",
                "features": [_feature(field) for field in facts.schema],
                "splits": [
                    {
                        "name": "train",
                        "num_bytes": facts.num_memory_bytes,
                        "num_examples": facts.num_pairs,
                    }
                ],
                "download_size": facts.num_file_bytes,
                "dataset_size": facts.num_memory_bytes,
            }
        ],
    }
    lines = (f"{name}:{_yaml(value)}" for name, value in values.items())
    return "---\n" + "\n".join(lines) + "\n---\n"


def _yaml(value: Any) -> str:
    """A value of the header: JSON is YAML, given that every line of it is indented."""
    is_short = isinstance(value, str) or all(isinstance(item, str) for item in value)
    if is_short:
        return f" {json.dumps(value)}"
    return "\n" + textwrap.indent(json.dumps(value, indent=2), "  ")


def _split(folder: str) -> list[dict[str, str]]:
    return [{"split": "train", "path": f"{folder}/train-*.parquet"}]


def _synthetic_tag(facts: CardFacts) -> tuple[str, ...]:
    return ("synthetic",) if facts.found.synthetic_parts else ()


def _size_category(num_rows: int) -> str:
    return next((name for limit, name in _SIZES if num_rows < limit), _LARGEST)


def _feature(field: pa.Field) -> dict[str, Any]:
    """A field as the metadata of ``datasets`` describes it."""
    if pa.types.is_struct(field.type):
        return {"name": field.name, "struct": [_feature(one) for one in field.type.fields]}
    if pa.types.is_list(field.type):
        return {"name": field.name, "list": [_feature(one) for one in field.type.value_type.fields]}
    return {"name": field.name, "dtype": "float64" if field.type == pa.float64() else "string"}


# --- words ----------------------------------------------------------------------------------------


def _summary(facts: CardFacts) -> str:
    parts = facts.found.synthetic_parts
    warning = (
        f"> **Synthetic data** ({', '.join(parts)}): an example of the format. Nothing computed "
        "from it says anything about real people, models or rules.\n\n"
        if parts
        else ""
    )
    status = facts.found.the_run()
    num_open = len(status.shards) - status.count("done")
    missing = (
        f" The run was not complete: {num_open} of its {len(status.shards)} shards are missing."
        if num_open
        else ""
    )
    unrated = (
        f" {facts.num_unrated_pairs:,} pairs of the study are not rated and left out."
        if facts.num_unrated_pairs
        else ""
    )
    return (
        f"{warning}{facts.num_pairs:,} preference pairs. A judge rated both responses of each, one "
        f"by one, under {len(facts.run.rules)} safety rules, on a scale from 0 to 1.{missing}"
        f"{unrated}\n"
    )


def _columns(_: CardFacts) -> str:
    rows = (
        ("`pair_id`", "32 hex digits of a content hash"),
        ("`source`", "where the pair comes from, see below"),
        ("`prompt`", "messages (`role`, `content`) before the response; the last is the user's"),
        ("`chosen`, `rejected`", "the response people preferred, and the other one"),
        (
            "`chosen_ratings`, `rejected_ratings`",
            "the response's rating under each rule, one field per rule id; null: no valid rating",
        ),
    )
    return "## Columns\n\nOne row per pair.\n\n" + _table(("column", "meaning"), rows)


def _sources(facts: CardFacts) -> str:
    rows = []
    for source in facts.found.sources:
        origins = "; ".join(origin_text(origin) for origin in source.origins)
        licences = "; ".join(licence.note for licence in licences_of(source))
        label = f"{source.label} (synthetic)" if is_synthetic_source(source) else source.label
        num_pairs = f"{facts.num_pairs_of_source.get(source.label, 0):,}"
        rows.append((label, num_pairs, origins, licences))
    return "## Sources and licences\n\nThe texts stay under their owners' terms.\n\n" + _table(
        ("source", "pairs", "from", "licence of the texts"), rows
    )


def _judge(facts: CardFacts) -> str:
    judge = facts.run.identity["judge"]
    decoding = facts.run.identity.get("decoding", {})
    rows = [
        ("judge", facts.run.judge),
        *((name, str(judge[name])) for name in ("revision", "backend", "dtype") if name in judge),
        *((name, str(value)) for name, value in decoding.items()),
        ("over-long prompts", str(facts.run.identity["plan"].get("overlong", "unknown"))),
    ]
    return "## Judge\n\n" + _table(("what", "value"), rows)


def _rules(facts: CardFacts) -> str:
    rows = [(f"`{rule['rule_id']}`", rule["rating_rule"]) for rule in facts.run.rules]
    return (
        f"## Rules\n\nRule set `{facts.run.rule_set}`, as the judge was asked. All four texts of "
        "each are in config `rules`.\n\n" + _table(("rule", "criterion"), rows)
    )


def _nulls(facts: CardFacts) -> str:
    if not facts.nulls:
        return "## Missing ratings\n\nNone.\n"
    rows = [(f"`{one.rule_id}`", one.reason, f"{one.num_nulls:,}") for one in facts.nulls]
    return "## Missing ratings\n\n" + _table(("rule", "reason", "ratings"), rows)


def _loading(facts: CardFacts) -> str:
    return textwrap.dedent(
        f"""\
        ## Loading

        ```python
        from datasets import load_dataset

        pairs = load_dataset("{facts.name}", split="train")
        rules = load_dataset("{facts.name}", "rules", split="train")
        ```
        """
    )


def _provenance(facts: CardFacts) -> str:
    wanted = {"publication", f"run {facts.run.run_key}"} | {
        f"source {source.label}" for source in facts.found.sources
    }
    rows = [
        (fact.about, fact.name, fact.value or "–")
        for fact in provenance(facts.found)
        if fact.about in wanted
    ]
    made = "Made with ENCORE (`encore publish --dataset`).\n\n"
    return "## Provenance\n\n" + made + _table(("of", "what", "value"), rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(_lines(columns, rows))


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |\n"
    yield f"|{'---|' * len(columns)}\n"
    for row in rows:
        yield f"| {' | '.join(_cell(text) for text in row)} |\n"


def _cell(text: str) -> str:
    """A text that stays within its cell and is read as text."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
