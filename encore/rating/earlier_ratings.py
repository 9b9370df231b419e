"""Find ratings that a study has already: same pairs, same judge, same prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from encore.core.errors import EncoreError
from encore.data.rating_runs import RETRIED_REASONS, RatingManifest, list_runs, read_run, run_status
from encore.data.study import PROBES_DIR, is_study

#: Pair id, response and rule id, which identify a rating.
Key = tuple[str, str, str]

#: Parts of an identity that describe the rated pairs and rules, not the way of rating.
_DATA_PARTS = ("data_sha256", "rules_sha256", "plan")


@dataclass(frozen=True, slots=True)
class EarlierRatings:
    """Index of the rows of a study's other runs; get it from `earlier_ratings`.

    Attributes:
        paths_by_pair: Shard files that have rows of a pair, by pair id, each with the ids of the
            rules that have the same text.
    """

    paths_by_pair: Mapping[str, Mapping[Path, frozenset[str]]] = field(default_factory=dict)

    def rows(self, pair_ids: Iterable[str]) -> dict[Key, dict[str, Any]]:
        """Read the rows of some pairs. Plans share one order, so few files hold a shard's pairs.

        Rows of prompts that a service refused or failed to answer are left out.
        """
        pair_id_array = pa.array(sorted(set(pair_ids)))
        rule_ids_by_path: dict[Path, frozenset[str]] = {}
        for pair_id in pair_id_array.to_pylist():
            rule_ids_by_path |= self.paths_by_pair.get(pair_id, {})
        rows: dict[Key, dict[str, Any]] = {}
        for path, rule_ids in rule_ids_by_path.items():
            table = pq.read_table(path, partitioning=None)
            for row in table.filter(pc.is_in(table["pair_id"], pair_id_array)).to_pylist():
                if row["rule_id"] in rule_ids and row["null_reason"] not in RETRIED_REASONS:
                    rows[row["pair_id"], row["response"], row["rule_id"]] = row
        return rows


def earlier_ratings(ratings_dir: Path, manifest: RatingManifest) -> EarlierRatings:
    """Index the ratings of a study's other runs, and of its probes, that a run can take over.

    The other run must have the same judge, prompt, decoding and treatment of long prompts. Rules
    are compared by their text, pairs by their content. Only finished shards with valid digests are
    used.
    """
    rule_texts = {rule["rule_id"]: rule["rating_rule"] for rule in manifest.rules}
    paths_by_pair: dict[str, dict[Path, frozenset[str]]] = {}
    for run_dir in _run_dirs(ratings_dir):
        try:
            other_manifest = read_run(run_dir)
        except EncoreError:  # a damaged manifest of another run is passed over
            continue
        if run_dir == ratings_dir / manifest.key:
            continue
        if _rating_method(other_manifest) != _rating_method(manifest):
            continue
        rule_ids = frozenset(
            rule["rule_id"]
            for rule in other_manifest.rules
            if rule_texts.get(rule["rule_id"]) == rule["rating_rule"]
        )
        for path in run_status(run_dir).paths if rule_ids else ():
            for pair_id in pq.read_table(path, columns=["pair_id"])["pair_id"].unique().to_pylist():
                paths_by_pair.setdefault(pair_id, {})[path] = rule_ids
    return EarlierRatings(paths_by_pair)


def _rating_method(manifest: RatingManifest) -> dict[str, Any]:
    """Return the parts of a run's identity that describe how pairs are rated."""
    identity = manifest.identity
    method = {name: value for name, value in identity.items() if name not in _DATA_PARTS}
    if manifest.asks_all_rules:  # all rules of the prompt bear on each rating
        method["rules_sha256"] = identity["rules_sha256"]
    return method


def _run_dirs(ratings_dir: Path) -> list[Path]:
    """List the runs of a study and of its probes; for a probe, also those of its outer study."""
    study, name = ratings_dir.parent, ratings_dir.name
    outer = next((parent for parent in study.parents if is_study(parent)), study)
    folders = {ratings_dir, outer / name, *outer.glob(f"{PROBES_DIR}/*/*/{name}")}
    return [run_dir for folder in sorted(folders) for run_dir in list_runs(folder)]
