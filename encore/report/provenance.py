"""Where the ratings of a report come from: the run, its judge, its data, and what is synthetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from encore.analysis.statistics import RuleStats
from encore.data.pairs import SYNTHETIC_LABEL, labels_of, read_manifest
from encore.data.study import MARKER, open_study
from encore.files import file_sha256
from encore.rating_runs import RatingManifest, RatingStatus, null_reasons, run_status
from encore.report.words import count, plural, printable
from encore.versions import installed_version, package_versions
from encore.warehouse import Ratings

#: What draws the report, beside the packages that `encore.versions` records.
_DRAWING_PACKAGES = ("matplotlib", "jinja2")


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the provenance. ``is_code``: a key or digest, to be set so."""

    name: str
    value: str
    is_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where ratings come from.

    Attributes:
        facts: What is recorded, in the order to be read.
        null_reasons: Null ratings by the recorded reason; None where no reason is recorded.
        num_nulls: Null ratings.
        num_ratings: Ratings that are not null.
        num_pairs: Pairs of a prompt and two responses.
        titles: Titles of the rules by rule_id, where the run recorded them.
        judge: The judge's name; None where nobody wrote it down.
        run_key: The run's key; None where there is no run.
        synthetic: What of it is synthetic, in words; empty where nothing is known to be.
        versions: Versions of packages, of the rating and of this report.
    """

    facts: tuple[Fact, ...]
    null_reasons: tuple[tuple[str, int], ...] | None
    num_nulls: int
    num_ratings: int
    num_pairs: int
    titles: Mapping[str, str]
    judge: str | None
    run_key: str | None
    synthetic: tuple[str, ...]
    versions: tuple[tuple[str, Mapping[str, str]], ...]

    @property
    def null_share(self) -> float | None:
        """Null ratings among all; None without any."""
        total = self.num_nulls + self.num_ratings
        return self.num_nulls / total if total else None


def provenance_of(
    source: Ratings, *, rules: Sequence[RuleStats], sources: Sequence[str]
) -> Provenance:
    """What is recorded about an input.

    Args:
        source: The input.
        rules: Statistics of its rules over all sources.
        sources: The names of its data sets.
    """
    status = _status(source)
    if status is None:
        judge, run_key = _recorded(source, "judge"), _recorded(source, "run_key")
    else:
        judge, run_key = status.manifest.judge, status.manifest.run_key
    return Provenance(
        facts=tuple(_file_facts(source) if status is None else _run_facts(status)),
        null_reasons=None if status is None else tuple(null_reasons(status).items()),
        num_nulls=sum(rule.num_unparsed for rule in rules),
        num_ratings=sum(rule.num_ratings for rule in rules),
        num_pairs=max((rule.num_pairs_total for rule in rules), default=0),
        titles={} if status is None else _titles(status.manifest),
        judge=source.judge or judge,
        run_key=source.run or run_key,
        synthetic=tuple(_synthetic(sources, status, source.judge or judge)),
        versions=tuple(_versions(status)),
    )


def _status(source: Ratings) -> RatingStatus | None:
    """The run that an input is, if it is one."""
    return run_status(source.files[0].parent) if source.is_validated else None


def _recorded(source: Ratings, column: str) -> str | None:
    """What a column of provenance says, if the files have one: the same in every row.

    `encore.warehouse.Warehouse` refuses ratings of several runs or judges unless one is chosen.
    """
    for path in source.files:
        with pq.ParquetFile(path) as file:
            if column in file.schema_arrow.names and file.metadata.num_rows:
                rows = next(file.iter_batches(batch_size=1, columns=[column]))
                value = rows.column(0)[0].as_py()
                return None if value is None else str(value)
    return None


def _run_facts(status: RatingStatus) -> Iterable[Fact]:
    manifest = status.manifest
    identity, plan = manifest.identity, manifest.identity["plan"]
    yield Fact("run key", manifest.run_key, is_code=True)
    yield from _judge_facts(identity["judge"])
    yield Fact("rule set", f"{printable(manifest.rule_set)}, {plural(len(manifest.rules), 'rule')}")
    for name, key in (("rules", "rules_sha256"), ("prompt", "prompt_sha256")):
        yield from _digest(f"{name}, SHA-256", identity.get(key))
    yield from _digest("pairs, SHA-256", identity.get("data_sha256"))
    decoding = identity.get("decoding", {})
    if decoding:
        yield Fact("decoding", _settings(decoding))
    overlong = f"; over-long prompts: {printable(plan['overlong'])}" if "overlong" in plan else ""
    pairs = plural(manifest.num_pairs, "pair")
    yield Fact("plan", f"{pairs} in shards of {count(manifest.shard_size)}{overlong}")
    done = f"{count(status.count('done'))} of {count(len(status.shards))}"
    yield Fact("shards", f"{done} finished and validated")


def _judge_facts(judge: Mapping[str, Any]) -> Iterable[Fact]:
    yield Fact("judge", printable(judge["name"]))
    if revision := judge.get("revision"):
        yield Fact("judge's revision", printable(revision), is_code=True)
    settings = {
        key: value
        for key, value in judge.items()
        if key not in {"name", "revision", "chat_template_sha256", "engine_args"}
    }
    settings |= dict(judge.get("engine_args", {}))
    if settings:
        yield Fact("judge's engine", _settings(settings))
    yield from _digest("chat template, SHA-256", judge.get("chat_template_sha256"))


def _file_facts(source: Ratings) -> Iterable[Fact]:
    if source.table is not None:
        yield Fact("ratings", "a table in memory")
    else:
        names = [path.name for path in source.files]
        more = f" and {count(len(names) - 3)} more" if len(names) > 3 else ""
        yield Fact("files", printable(", ".join(names[:3]) + more))
        if len(source.files) == 1:
            yield Fact("file, SHA-256", file_sha256(source.files[0]), is_code=True)
    for column, chosen in (("run_key", source.run), ("judge", source.judge)):
        found = chosen or _recorded(source, column)
        if found is not None:
            yield Fact(column.replace("_", " "), printable(found), is_code=column == "run_key")
    yield Fact("revision, rules, prompt", "not recorded: these ratings are not a run of a study")


def _digest(name: str, value: str | None) -> Iterable[Fact]:
    if value:
        yield Fact(name, printable(value), is_code=True)


def _settings(values: Mapping[str, Any]) -> str:
    return printable(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items()))


def _titles(manifest: RatingManifest) -> dict[str, str]:
    return {rule["rule_id"]: rule["title"] for rule in manifest.rules}


def _versions(status: RatingStatus | None) -> Iterable[tuple[str, Mapping[str, str]]]:
    if status is not None and status.manifest.versions:
        yield (
            "rating",
            {printable(name): printable(text) for name, text in status.manifest.versions.items()},
        )
    drawing = {name: installed_version(name) for name in _DRAWING_PACKAGES}
    shown = {**package_versions(), **{name: text for name, text in drawing.items() if text}}
    used = ("python", "encore-reward", "duckdb", "numpy", "pyarrow", "scipy", *_DRAWING_PACKAGES)
    yield "this report", {name: shown[name] for name in used if name in shown}


def _synthetic(
    sources: Sequence[str], status: RatingStatus | None, judge: str | None
) -> Iterable[str]:
    """What is synthetic: sources and judges that are called so, the demo's pairs and judge."""
    known = set() if status is None else _synthetic_labels(status)
    named = [source for source in sources if source in known or _is_called_synthetic(source)]
    if named:
        pairs = "all pairs" if len(named) == len(sources) else "the pairs"
        yield f"{pairs} (source {', '.join(map(printable, named))})"
    is_demo_judge = status is not None and bool(status.manifest.synthetic)
    if judge is not None and (is_demo_judge or _is_called_synthetic(judge)):
        yield f"the judge ({printable(judge)})"


def _synthetic_labels(status: RatingStatus) -> set[str]:
    """The labels of a run's study whose pairs are synthetic by what was recorded of them."""
    folder = status.run_dir.parent.parent
    if not (folder / MARKER).is_file():
        return set()
    study = open_study(folder)
    manifests = [read_manifest(study, label) for label in labels_of(study)]
    return {manifest.label for manifest in manifests if manifest.synthetic}


def _is_called_synthetic(name: str) -> bool:
    return name.casefold().startswith(SYNTHETIC_LABEL)
