"""The record of a check: what was checked, by digest, and what came out.

A record is bound to the judge, the wording of prompts and rules, and the limits. With another judge
or wording it says nothing, so it is stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from encore.core.errors import EncoreError, first_problem
from encore.core.files import write_json
from encore.data.rating_runs import RatingManifest
from encore.data.rule_sets import rules_digest
from encore.runs.identity import differences, run_key_of

#: Parts of a run's identity that are no wording: its judge stands by itself, its data may change.
_NO_WORDING = ("judge", "data_sha256", "rules_sha256", "plan")


class CheckRecord(BaseModel):
    """One check of a rating run.

    Attributes:
        bound_to: The judge, the wording, the digest of each checked rule, and the limits.
        digest: SHA-256 of ``bound_to``, its first 16 digits.
        passed: True if every rule passed.
        run_key: The run whose ratings were checked.
        against: Key of the run that it was compared with; None without one.
        result: The figures, as ``encore check --json`` has them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bound_to: dict[str, Any]
    digest: str
    passed: bool
    run_key: str
    against: str | None
    result: dict[str, Any]


def binding(
    manifest: RatingManifest, rule_ids: Sequence[str], *, limits: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a record is bound to, as JSON values.

    Args:
        manifest: Manifest of the run whose ratings are checked.
        rule_ids: The rules that are checked.
        limits: What was asked of them: floor, margin, kind of rating.
    """
    identity = manifest.identity
    wording = {name: part for name, part in identity.items() if name not in _NO_WORDING}
    if manifest.asks_all_rules:  # a rule's rating depends on all the rules beside it
        wording["rules_sha256"] = identity["rules_sha256"]
    digests = {rule["rule_id"]: rules_digest([rule]) for rule in manifest.rules}
    return {
        "judge": identity["judge"],
        "wording": wording,
        "rules": {rule_id: digests[rule_id] for rule_id in sorted(rule_ids)},
        "limits": dict(limits),
    }


def stale_parts(record: CheckRecord, bound_to: Mapping[str, Any]) -> Iterator[str]:
    """Yield each part in which a record is of something else, by name with both values."""
    for name, recorded, present in differences(record.bound_to, dict(bound_to)):
        rule_id = name.removeprefix("rules.")
        if rule_id == name:
            yield f"{name} is {present}, not {recorded}"
        elif "nothing" in (recorded, present):
            yield f"rule {rule_id} is {'new' if recorded == 'nothing' else 'left out'}"
        else:
            yield f"rule {rule_id} has another text"


def read_record(path: Path) -> CheckRecord | None:
    """Read the record of a check; None if there is none.

    Raises:
        EncoreError: The file is no record, or was changed by hand.
    """
    try:
        record = CheckRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise EncoreError(
            f"record {path}: {first_problem(error).message}; expected the JSON that `encore check "
            "--record` writes: name another file, or delete this one to write it anew"
        ) from error
    if record.digest != run_key_of(record.bound_to):
        raise EncoreError(
            f"record {path}: its digest is not that of what it is bound to: it was changed by hand "
            "or damaged; delete it to write it anew"
        )
    return record


def write_record(path: Path, record: CheckRecord) -> None:
    """Write the record of a check, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, json.loads(record.model_dump_json()))
