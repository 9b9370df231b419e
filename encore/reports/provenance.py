"""Read the origin of a report's ratings: the run, its judge, its data, its synthetic parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from encore.core.files import file_sha256
from encore.core.number_text import count, counted, first_names
from encore.core.versions import installed_version, package_versions
from encore.data.pairs_manifest import SYNTHETIC_LABEL
from encore.data.rating_runs import RatingStatus, null_reasons, run_status
from encore.demo import judge_title
from encore.rating.rating_options import rating_settings
from encore.warehouse import Ratings


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of ratings.

    Attributes:
        facts: Recorded facts by name, in the order in which the report shows them.
        null_reasons: Number of null ratings by recorded reason; None if no reasons are recorded.
        titles: Titles of the rules by rule id, if the run recorded them.
        judge: Name of the judge; None if it is not recorded.
        run_key: Key of the rating run; None if the ratings are not of a run.
        synthetic: Synthetic parts of the data and the judge, in words; empty if none is known.
        versions: Versions of packages, for the rating and for this report.
    """

    facts: Mapping[str, str]
    null_reasons: Mapping[str, int] | None
    titles: Mapping[str, str]
    judge: str | None
    run_key: str | None
    synthetic: Sequence[str]
    versions: Mapping[str, Mapping[str, str]]

    @property
    def judge_title(self) -> str | None:
        """Return the judge for people, e.g. ``judge NAME``; None if it is not recorded."""
        is_synthetic = any(part.startswith("judge ") for part in self.synthetic)
        return self.judge and judge_title(self.judge, is_synthetic=is_synthetic)


def provenance_of(ratings: Ratings, *, sources: Sequence[str]) -> Provenance:
    """Return what is recorded about the origin of some ratings.

    Args:
        ratings: The opened ratings, of a run or of any files.
        sources: Names of the data sets that the ratings come from.
    """
    status = None if ratings.run_dir is None else run_status(ratings.run_dir)
    manifest = None if status is None else status.manifest
    judge = manifest.judge if manifest else ratings.judge or _recorded(ratings, "judge")
    run_key = manifest.run_key if manifest else ratings.run or _recorded(ratings, "run_key")
    names = (*(f"source {name}" for name in sources), f"judge {judge}")
    is_called_synthetic = re.compile(f"(source|judge) {SYNTHETIC_LABEL}", re.IGNORECASE).match
    recorded = {"rating": manifest.versions} if manifest and manifest.versions else {}
    report_versions = package_versions() | {
        name: version
        for name in ("matplotlib", "jinja2")
        if (version := installed_version(name)) is not None
    }
    return Provenance(
        facts=_run_facts(status) if status else _file_facts(ratings, judge, run_key),
        null_reasons=null_reasons(status) if status else None,
        titles={rule["rule_id"]: rule["title"] for rule in manifest.rules} if manifest else {},
        judge=judge,
        run_key=run_key,
        synthetic=list(dict.fromkeys((*ratings.synthetic, *filter(is_called_synthetic, names)))),
        versions={**recorded, "this report": report_versions},
    )


def _recorded(ratings: Ratings, column: str) -> str | None:
    """Return the value of a provenance column, or None if the files do not have the column.

    The value is the same in every row: `encore.warehouse.Warehouse` refuses ratings of several
    runs or judges unless one is chosen.
    """
    for path in ratings.files:
        with pq.ParquetFile(path) as file:
            if column in file.schema_arrow.names and file.metadata.num_rows:
                rows = next(file.iter_batches(batch_size=1, columns=[column]))
                value = rows.column(0)[0].as_py()
                return None if value is None else str(value)
    return None


def _run_facts(status: RatingStatus) -> dict[str, str]:
    manifest = status.manifest
    facts = {
        "run key": manifest.run_key,
        "rule set": f"{manifest.rule_set}, {counted(len(manifest.rules), 'rule')}",
        "shards": f"{count(status.count('done'))} of {count(len(status.shards))} validated",
        **manifest.identity,
        "config": rating_settings(manifest.settings),
    }
    return {name.replace("_", " "): _fact_text(value) for name, value in facts.items() if value}


def _file_facts(ratings: Ratings, judge: str | None, run_key: str | None) -> dict[str, str]:
    names = [path.name for path in ratings.files]
    facts = {
        "files": first_names(names, limit=3) or "a table in memory",
        "file, SHA-256": file_sha256(ratings.files[0]) if len(names) == 1 else None,
        "run key": run_key,
        "judge": judge,
        "revision, rules, prompt": "not recorded: these ratings are not a run of a study",
    }
    return {name: value for name, value in facts.items() if value}


def _fact_text(value: Any) -> str:
    """Return a recorded value as text; a mapping becomes a list of its names and values."""
    if not isinstance(value, Mapping):
        return str(value)
    settings = {name: setting for name, setting in value.items() if setting not in (None, {})}
    return ", ".join(
        f"{name.replace('_', ' ')} {_fact_text(setting)}" for name, setting in settings.items()
    )
