"""Pools of principles whose importance a scripted judge knows."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from encore.data.rule_sets import title_of
from encore.judges.judge_options import JudgeConfig
from encore.rules.importance import ImportanceReport, rate_importance
from encore.rules.pool import PoolRule, read_pool, write_pool
from encore.rules.rules_options import ImportanceConfig
from tests.worlds.judges import ScriptedJudge

SCRIPTED = JudgeConfig(model="scripted")


def principle(index: int, **changes: object) -> PoolRule:
    """Return a principle that names its index."""
    text = str(changes.get("description", f"Principle {index} says what is right."))
    fields: dict[str, object] = {
        "rule_id": f"principle-{index}",
        "title": title_of(text),
        "description": text,
        "source": "made-up",
        "licence": "CC0-1.0",
        "origin": f"line {index}",
    }
    return PoolRule.model_validate(fields | changes)


def write_principles(path: Path, num_rules: int) -> Path:
    """Write a pool file of numbered principles."""
    write_pool(path, [principle(index) for index in range(num_rules)])
    return path


def index_in(prompt: str) -> int:
    """Return the index of the principle in a prompt."""
    match = re.search(r"Principle (\d+) says", prompt)
    assert match is not None
    return int(match[1])


def judge_of(reply: Callable[[int], str], **changes: object) -> ScriptedJudge:
    """Return a judge whose reply depends on the principle."""
    return ScriptedJudge(script=lambda prompt: reply(index_in(prompt)), **changes)


def rated(
    pool: Path, out: Path, reply: Callable[[int], str], *, name: str = "scripted", **options: object
) -> ImportanceReport:
    """Rate a pool by one judge."""
    config = ImportanceConfig(pool=pool, output=out, judge=SCRIPTED, **options)
    return rate_importance(config, judge=judge_of(reply, name=name))


def write_text_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write lines of text, e.g. a CSV file of people's answers."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_in_any_format(path: Path, rules: Sequence[PoolRule]) -> None:
    """Write a pool file in the format of its suffix, as a user may have it."""
    records = [rule.model_dump(exclude={"merged_from", "is_draft"}) for rule in rules]
    if path.suffix == ".toml":
        write_pool(path, rules)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, records[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)


def rules_in(path: Path | str) -> tuple[PoolRule, ...]:
    """Return the rules of a pool file."""
    return read_pool(path).rules
