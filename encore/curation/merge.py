"""Pools become one: copies are dropped, every rule keeps where it comes from."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from encore.curation.curation_config import MergeConfig
from encore.curation.pool import Pool, PoolRule, check_output, first_of, read_pool, write_pool
from encore.data.rules import rule_file
from encore.errors import InputError, did_you_mean

#: Description, preference text and rating text of a rule, in the form that copies share.
_Texts = tuple[str, ...]


def merge(config: MergeConfig) -> dict[str, Any]:
    """Read pools, drop copies, give every rule an id of its own, and write one pool.

    A copy has the same description, preference text and rating text, but for case, spaces and the
    form of its characters. The first one stays, in the order of the pools and then of the file,
    and remembers where the others come from, with their titles.

    Returns:
        JSON values: counts of each of the ``pools``, ``copies`` with the rule that is ``kept`` for
        each, ``renamed`` rules whose id another one has, and ``notes``.

    Raises:
        InputError: A pool that cannot be read, two pools of one name, a licence of no pool.
    """
    named = [_name_and_file(pool) for pool in config.pools]
    check_output(config.output, inputs=[rule_file(file) for _, file in named])
    pools = [read_pool(file, name=name, ids_may_repeat=True) for name, file in named]
    names = Counter(pool.name for pool in pools)
    if repeated := [name for name, count in names.items() if count > 1]:
        raise InputError(
            f"two pools are called {repeated[0]!r}; give each a name of its own as NAME=FILE, so "
            "that every rule's source says which one it is of"
        )
    pools = _licensed(pools, config.licence)
    kept, copies = _without_copies(pools)
    rules, renamed = _with_own_ids([*kept.values()])
    write_pool(config.output, rules)
    num_copies = Counter(name for name, _ in copies)
    kept_for = dict(zip(kept, rules, strict=True))
    return {
        "output": str(config.output),
        "num_rules": len(rules),
        "pools": [
            {
                "pool": pool.name,
                "num_rules": len(pool.rules),
                "num_copies": num_copies[pool.name],
                "num_empty": len(pool.empty),
                "num_without_licence": sum(not rule.licence for rule in pool.rules),
            }
            for pool in pools
        ],
        "copies": [
            {"rule_id": rule.rule_id, "title": rule.title, "pool": name, "origin": rule.origin}
            | {"kept": kept_for[_texts(rule)].rule_id}
            for name, rule in copies
        ],
        "renamed": renamed,
        "notes": _notes(pools),
    }


def _name_and_file(text: str) -> tuple[str | None, str]:
    name, equals, file = text.partition("=")
    if not equals or Path(text).is_file():
        return None, text
    if not name.strip() or not file:
        raise InputError(f"POOL {text!r}: expected FILE or NAME=FILE")
    return name.strip(), file


def _licensed(pools: Sequence[Pool], given: Iterable[str]) -> list[Pool]:
    """The pools; where a rule names no licence, it has that of its source."""
    licences = {}
    sources = sorted({rule.source for pool in pools for rule in pool.rules})
    for text in given:
        name, _, licence = (part.strip() for part in text.partition("="))
        if not licence:
            raise InputError(f"--licence {text!r}: expected NAME=TEXT, e.g. my-pool=MIT")
        if name not in sources:
            near = did_you_mean(name, sources) or f"; pools are {', '.join(sources)}"
            raise InputError(f"--licence {text!r}: no pool is called {name!r}{near}")
        licences[name] = licence

    def licensed(rule: PoolRule) -> PoolRule:
        return rule.model_copy(update={"licence": rule.licence or licences.get(rule.source, "")})

    return [replace(pool, rules=tuple(map(licensed, pool.rules))) for pool in pools]


def plain_text(text: str) -> str:
    """A text without what two copies of it may differ in: case, spaces, forms of characters."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _texts(rule: PoolRule) -> _Texts:
    return tuple(map(plain_text, (rule.description, rule.preference_rule, rule.rating_rule)))


def _without_copies(
    pools: Iterable[Pool],
) -> tuple[dict[_Texts, PoolRule], list[tuple[str, PoolRule]]]:
    """The rules that stay, by their texts; each copy with the name of its pool."""
    kept: dict[_Texts, PoolRule] = {}
    copies = []
    for pool in pools:
        for rule in pool.rules:
            texts = _texts(rule)
            if texts in kept:
                kept[texts] = kept[texts].absorbing(rule)
                copies.append((pool.name, rule))
            else:
                kept[texts] = rule
    return kept, copies


def _with_own_ids(rules: Sequence[PoolRule]) -> tuple[list[PoolRule], list[dict[str, str]]]:
    """The rules, where an id that an earlier rule has gets the next free suffix: -2, -3, …."""
    taken, seen, suffixes = {rule.rule_id for rule in rules}, set(), Counter[str]()
    unique, renamed = [], []
    for rule in rules:
        old_id = new_id = rule.rule_id
        if old_id in seen:
            while new_id in taken:
                suffixes[old_id] += 1
                new_id = f"{old_id}-{suffixes[old_id] + 1}"
            taken.add(new_id)
            origin = {"source": rule.source, "origin": rule.origin}
            renamed.append({"rule_id": old_id, "new_rule_id": new_id, **origin})
        seen.add(new_id)
        unique.append(rule.model_copy(update={"rule_id": new_id}))
    return unique, renamed


def _notes(pools: Sequence[Pool]) -> list[str]:
    notes = [note for pool in pools for note in pool.notes]
    bare = sorted({rule.source for pool in pools for rule in pool.rules if not rule.licence})
    if bare:
        notes.append(
            f"no licence is named for rules of {first_of(bare)}; where you know it: --licence "
            f"{bare[0]}=TEXT"
        )
    return notes
