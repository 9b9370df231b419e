"""Rating runs on disk: their manifests, the runs of a study, and the state of their shards."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import model_validator

from encore.core.files import write_json
from encore.core.model_files import is_demo_judge
from encore.core.number_text import percent
from encore.data.records import RESPONSES
from encore.data.rule_sets import rules_digest
from encore.data.schemas import RATINGS_CONTRACT
from encore.data.study import Study, as_study
from encore.demo import judge_title
from encore.runs import manifest as runs
from encore.runs import shard_files
from encore.runs.manifest import JudgedManifest
from encore.runs.shard_files import RunStatus, ShardState

RUN_FILE = "run.json"
_PRECISION_FILE = "enough.json"
#: Reasons of nulls whose prompt a service refused or failed to answer. `encore rate
#: --retry-failed-prompts` asks for these again.
RETRIED_REASONS = frozenset({"content_filter", "refused", "server_error", "unreadable_answer"})
#: Reason of a null whose rule does not apply to the response, as its judge says. It is no failure.
DOES_NOT_APPLY = "does_not_apply"


class RatingManifest(JudgedManifest):
    """Manifest of a rating run: the identity that its key hashes, and the rules.

    Attributes:
        run_key: Key of the run, a hash of its identity.
        rule_set: Name of the rule set. It is for people; the key does not cover it.
        rules: Texts of each rule in head order (fields of `encore.data.records.Rule`).
    """

    FILE: ClassVar[str] = RUN_FILE
    KEY_FIELD: ClassVar[str] = "run_key"
    COMMAND: ClassVar[str] = "encore rate"
    DOING: ClassVar[str] = "rating"
    DONE: ClassVar[str] = "rated"
    UNIT: ClassVar[str] = "ratings"
    PARQUET: ClassVar[Mapping[str, Any]] = {
        **JudgedManifest.PARQUET,
        "write_statistics": ["rating"],
    }
    FEW_VALUES: ClassVar[Sequence[str]] = ("response",)

    run_key: str
    rule_set: str
    rules: tuple[dict[str, str], ...]

    @model_validator(mode="after")
    def _mark_demo_judge(self) -> Self:
        """Mark the demo's judge by the digest of its files, also where the file has no mark."""
        if is_demo_judge((self.identity.get("judge") or {}).get("revision")):
            object.__setattr__(self, "synthetic", (f"judge of run {self.run_key}",))
        return self

    @property
    def title(self) -> str:
        """Return the judge's name and the run's deviations from the paper."""
        return ", ".join((self.named_judge, *self.deviations))

    @property
    def judge_title(self) -> str:
        """Return the judge for people: the word judge and its name, or the demo's judge."""
        return judge_title(self.judge, is_synthetic=bool(self.synthetic))

    @property
    def deviations(self) -> tuple[str, ...]:
        """Return the layout, the decoding and the like, where they differ from the paper's."""
        settings = self.settings
        thinking = "thinking left out" if settings.get("strip_thinking") else None
        if num_tokens := settings.get("think_tokens"):
            thinking = f"thinks for {num_tokens:,} tokens"
        applies = "asks if rules apply" if settings.get("ask_applies") else None
        deviations = (settings.get("layout"), settings.get("decode"), thinking, applies)
        return tuple(deviation for deviation in deviations if deviation)

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """Return the ids of the rules in head order."""
        return tuple(rule["rule_id"] for rule in self.rules)

    @property
    def rows_per_pair(self) -> int:
        """Return the number of ratings of a pair: one for each rule and each rated response."""
        return len(self.identity.get("responses", RESPONSES)) * len(self.rules)

    @property
    def asks_all_rules(self) -> bool:
        """Return True if a call of the judge asks for the ratings under all rules."""
        return bool(self.settings.get("layout") == "all-rules")

    @property
    def has_expected(self) -> bool:
        """Return True if ratings have the mean over the labels' probabilities beside them."""
        return bool(self.settings.get("decode") == "expected")

    @property
    def calls_per_pair(self) -> int:
        """Return the largest number of calls of the judge for a pair."""
        num_rules = len(self.rules)
        if not self.asks_all_rules:
            return self.rows_per_pair
        rules_per_call: int = self.identity.get("questions", {}).get("per_request", num_rules)
        return self.rows_per_pair // num_rules * math.ceil(num_rules / rules_per_call)

    def check(self, folder: Path, /) -> None:
        """Raise ValueError if the key, the folder or the rules do not fit the identity."""
        super().check(folder)
        if self.run_key != folder.name:
            raise ValueError(f"it belongs to run {self.run_key}")
        if rules_digest(self.rules) != self.identity["rules_sha256"]:
            raise ValueError("its rules are not those of its identity")

    def check_values(self, file: pq.ParquetFile, /) -> None:
        """Raise ValueError if a row breaks the ratings contract.

        An id is never null, a response is chosen or rejected, a rating is null or in [0, 1].
        """
        is_nullable = {field.name: field.nullable for field in file.schema_arrow}
        for field in RATINGS_CONTRACT:
            if not field.nullable and is_nullable[field.name]:
                raise ValueError(f"its column {field.name} may have nulls, which are not expected")
        table = file.read(columns=["response", "rating"], use_threads=False)
        for chunk in table["response"].chunks:
            if unknown := set(chunk.dictionary.to_pylist()).difference(RESPONSES):
                raise ValueError(f"it has a response {unknown.pop()!r}, not chosen or rejected")
        rating = table["rating"]
        low, high = pc.min_max(rating).as_py().values()
        # Minimum and maximum leave NaN out; a sum does not.
        if low is not None and not (low >= 0 and high <= 1 and pc.sum(rating).as_py() >= 0):
            is_valid = pc.and_(pc.greater_equal(rating, 0), pc.less_equal(rating, 1))
            invalid = rating.filter(pc.invert(is_valid))[0]
            raise ValueError(f"it has a rating of {invalid}, expected a number in [0, 1]")


RatingStatus = RunStatus[RatingManifest]

#: The functions of `encore.runs`, for rating runs.
list_runs = partial(runs.list_runs, kind=RatingManifest)
describe_run = partial(runs.describe_run, kind=RatingManifest)
num_computed_pairs = runs.num_computed_pairs
read_run = partial(runs.read_manifest, kind=RatingManifest)
run_status = partial(shard_files.run_status, kind=RatingManifest)


def ratings_of(
    status: RatingStatus, columns: Sequence[str], *, filters: Any = None
) -> dict[tuple[str, ...], float | None]:
    """Return the ratings of a run's finished shards by the values of some columns.

    Args:
        status: Checked status of the run.
        columns: Columns whose values together identify a rating.
        filters: Condition on the rows, as for `pyarrow.parquet.read_table`; None reads all.
    """
    read = partial(pq.read_table, columns=[*columns, "rating"], filters=filters, partitioning=None)
    rows = (row for path in status.paths for row in read(path).to_pylist())
    return {tuple(row[name] for name in columns): row["rating"] for row in rows}


def status(study: Study | str | Path) -> tuple[RatingStatus, ...]:
    """Check every shard of every rating run of a study, and return the runs sorted by key.

    Each run has its ``manifest`` (what was asked), ``shards``, ``unfinished`` (those that are
    missing, damaged or failed) and ``is_complete``.

    >>> [(run.manifest.judge, run.is_complete) for run in status("study")]
    [('scripted', True)]

    Args:
        study: The opened study, or its directory.
    """
    return tuple(run_status(run_dir) for run_dir in list_runs(as_study(study).ratings_dir))


def record_precision_reached(run_dir: Path, *, num_shards: int, error: float, tau: float) -> None:
    """Record in a run's folder that it ended because its weights were precise enough.

    Args:
        run_dir: Folder of the run.
        num_shards: Number of shards, from the first of the plan, that suffice.
        error: Largest relative error of their weights against those of the whole plan (95 %
            confidence).
        tau: Temperature of these weights.
    """
    write_json(run_dir / _PRECISION_FILE, {"num_shards": num_shards, "error": error, "tau": tau})


def sufficiency_note(status: RatingStatus) -> str:
    """Return a sentence on why an incomplete run needs no more shards; empty if it needs them."""
    try:
        record = json.loads((status.run_dir / _PRECISION_FILE).read_bytes())
        num_needed, error = int(record["num_shards"]), float(record["error"])
        at_tau = f" at tau {record['tau']:g}" if "tau" in record else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if status.is_complete or any(shard.index < num_needed for shard in status.unfinished):
        return ""
    return (
        f"run {status.manifest.run_key} has {status.count('done')} of {len(status.shards)} shards "
        f"and needs no more: {num_needed} give every weight{at_tau} within "
        f"{error:.2%} of what all would give (95% confidence)"
    )


def null_reasons(status: RatingStatus) -> dict[str, int]:
    """Count the null ratings of a run's finished shards by reason, the most frequent first."""
    reasons = sum(map(null_reasons_of_shard, status.shards), Counter[str]())
    return dict(sorted(reasons.items(), key=lambda count: (-count[1], count[0])))


def null_reasons_of_shard(shard: ShardState) -> Counter[str]:
    """Count the null ratings of a finished shard by reason; empty if it is not finished."""
    numbers = (shard.footer.get(name) for name in ("num_nulls", "num_not_applicable"))
    if shard.path is None or not any(numbers):
        return Counter()
    column = pq.read_table(shard.path, columns=["null_reason"], partitioning=None)
    return Counter(column["null_reason"].drop_null().to_pylist())


def note_on_label_mass(manifest: RatingManifest, paths: Sequence[Path]) -> str:
    """Return a sentence on how much of the judge's probability is on the labels.

    It is empty unless the run's decoding is ``expected``, or if it has no reply yet.

    Args:
        manifest: Manifest of the run.
        paths: Files of its finished shards.
    """
    if not manifest.has_expected or not paths:
        return ""
    judge = manifest.identity.get("judge") or {}
    if judge.get("engine_args", {}).get("api") == "decisions":  # it does not tell the mass
        return ""
    columns = (
        pq.read_table(path, columns=["label_mass"], partitioning=None)["label_mass"]
        for path in paths
    )
    mass = pa.chunked_array([chunk for column in columns for chunk in column.chunks])
    mean = pc.mean(mass).as_py()
    if mean is None:
        return ""
    least, middle = pc.quantile(mass, q=[0.05, 0.5]).to_pylist()
    return (
        f"{percent(mean, digits=0)} of the judge's probability is on the labels in the mean "
        f"({percent(middle, digits=0)} in the median, {percent(least, digits=0)} or less in one "
        "reply of 20)"
    )
