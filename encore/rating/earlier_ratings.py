"""Ratings that a study has already, of the same pairs by the same judge in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.core.errors import EncoreError
from encore.data.rating_runs import RatingManifest, list_runs, read_run, run_status
from encore.data.study import PROBES_DIR, is_study

#: What the columns of a rating are found by: pair, response, rule.
Key = tuple[str, str, str]

#: Parts of an identity that say what is rated, not how.
_WHAT = ("data_sha256", "rules_sha256", "plan")


@dataclass(frozen=True, slots=True)
class EarlierRatings:
    """Rows of other runs of a study, found by content; get it from `earlier_ratings`.

    Attributes:
        paths_of: The files that have rows of a pair, each with the rules that were asked in the
            same words.
    """

    paths_of: Mapping[str, Mapping[Path, frozenset[str]]] = field(default_factory=dict)

    def rows(self, pair_ids: Iterable[str]) -> dict[Key, dict[str, Any]]:
        """The rows of some pairs. Plans have one order, so few files hold the pairs of a shard."""
        wanted = pa.array(sorted(set(pair_ids)))
        rules_in: dict[Path, frozenset[str]] = {}
        for pair_id in wanted.to_pylist():
            rules_in |= self.paths_of.get(pair_id, {})
        found: dict[Key, dict[str, Any]] = {}
        for path, rule_ids in rules_in.items():
            table = pq.read_table(path, partitioning=None)
            for row in table.filter(pc.is_in(table["pair_id"], wanted)).to_pylist():
                if row["rule_id"] in rule_ids:
                    found[row["pair_id"], row["response"], row["rule_id"]] = row
        return found


def earlier_ratings(ratings_dir: Path, manifest: RatingManifest) -> EarlierRatings:
    """What other runs of a study, and of its probes, have for a run.

    Another run counts where judge, prompt, decoding and the treatment of long prompts are the same,
    and of it the rules that have the same text; pairs are compared by their content. Only shards
    that are done, every byte checked, are used.
    """
    rule_texts = {rule["rule_id"]: rule["rating_rule"] for rule in manifest.rules}
    paths_of: dict[str, dict[Path, frozenset[str]]] = {}
    for run_dir in _run_dirs(ratings_dir):
        try:
            other = read_run(run_dir)
        except EncoreError:  # a damaged manifest is not this run's trouble
            continue
        if run_dir == ratings_dir / manifest.key or _how(other) != _how(manifest):
            continue
        rule_ids = frozenset(
            rule["rule_id"]
            for rule in other.rules
            if rule_texts.get(rule["rule_id"]) == rule["rating_rule"]
        )
        for path in run_status(run_dir).paths if rule_ids else ():
            for pair_id in pq.read_table(path, columns=["pair_id"])["pair_id"].unique().to_pylist():
                paths_of.setdefault(pair_id, {})[path] = rule_ids
    return EarlierRatings(paths_of)


def _how(manifest: RatingManifest) -> dict[str, Any]:
    identity = manifest.identity
    how = {name: value for name, value in identity.items() if name not in _WHAT}
    return how | {"overlong": identity["plan"]["overlong"]}


def _run_dirs(ratings_dir: Path) -> list[Path]:
    """The runs of a study and of its probes; for a probe's study, those of the study around it."""
    study, name = ratings_dir.parent, ratings_dir.name
    outer = next((one for one in study.parents if is_study(one)), study)
    folders = {ratings_dir, outer / name, *outer.glob(f"{PROBES_DIR}/*/*/{name}")}
    return [run_dir for folder in sorted(folders) for run_dir in list_runs(folder)]
