"""Pools become one: copies are dropped, every rule keeps where it comes from."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.core.spreadsheets import is_formula
from encore.data.rule_sets import rule_file
from encore.rules.pool import Pool, PoolRule, check_output, first_of, read_pool, write_pool
from encore.rules.rules_config import MergeConfig


def merge(config: MergeConfig) -> dict[str, Any]:
    """Read pools, drop copies, give every rule an id of its own, and write one pool.

    A copy has the same description, preference text and rating text, but for case, spaces and the
    form of its characters. The first one stays, in the order of the pools and then of the file,
    and remembers where the others come from, with their titles.

    Returns:
        JSON values: counts of each of the ``pools``, ``copies`` with the rule that is ``kept`` for
        each, and ``notes``.

    Raises:
        InputError: A pool that cannot be read, two pools of one name, a licence of no pool.
    """
    named = [_name_and_file(pool) for pool in config.pools]
    check_output(config.output, inputs=[rule_file(file) for _, file in named])
    pools = [read_pool(file, name=name, ids_may_repeat=True) for name, file in named]
    names = [pool.name for pool in pools]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"two pools are called {repeated[0]!r}; give each a name of its own as NAME=FILE, so "
            "that every rule's source says which one it is of"
        )
    licences = _licences(config.licence, pools)
    rules, copies, renamed = _unique(pools, licences)
    write_pool(config.output, rules)
    num_copies = Counter(copy["pool"] for copy in copies)
    return {
        "output": str(config.output),
        "num_rules": len(rules),
        "pools": [
            {
                "pool": pool.name,
                "num_rules": len(pool.rules),
                "num_copies": num_copies[pool.name],
                "num_empty": len(pool.empty),
            }
            for pool in pools
        ],
        "copies": copies,
        "notes": [*_notes(pools, rules, renamed)],
    }


def _name_and_file(text: str) -> tuple[str | None, str]:
    name, equals, file = text.partition("=")
    return (name.strip(), file) if equals and not Path(text).is_file() else (None, text)


def _licences(given: Sequence[str], pools: Sequence[Pool]) -> dict[str, str]:
    """The licences that are given, by source."""
    sources = sorted({rule.source for pool in pools for rule in pool.rules})
    licences = {}
    for text in given:
        name, _, licence = (part.strip() for part in text.partition("="))
        if name not in sources or not licence:
            raise InputError(
                f"--licence {text!r}: expected NAME=TEXT, e.g. my-pool=MIT; NAME is one of "
                f"{', '.join(sources)}"
            )
        licences[name] = licence
    return licences


def plain_text(text: str) -> str:
    """A text without what two copies of it may differ in: case, spaces, forms of characters."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _unique(
    pools: Sequence[Pool], licences: Mapping[str, str]
) -> tuple[list[PoolRule], list[dict[str, str]], list[str]]:
    """The rules that stay, each with an id of its own; the copies; rules that got another id.

    An id that an earlier rule has gets the next free suffix: -2, -3, ….
    """
    kept: dict[tuple[str, ...], PoolRule] = {}
    copies, renamed = [], []
    taken = {rule.rule_id for pool in pools for rule in pool.rules}
    seen, suffixes = set(), Counter[str]()
    for name, rule in [(pool.name, rule) for pool in pools for rule in pool.rules]:
        texts = tuple(map(plain_text, (rule.description, rule.preference_rule, rule.rating_rule)))
        old_id = new_id = rule.rule_id
        licence = rule.licence or licences.get(rule.source, "")
        found = rule.model_copy(update={"licence": licence})
        if texts in kept:
            kept[texts] = kept[texts].absorbing(found)
            about = {"rule_id": old_id, "title": rule.title, "pool": name}
            copies.append({**about, "origin": rule.origin, "kept": kept[texts].rule_id})
            continue
        if old_id in seen:
            while new_id in taken:
                suffixes[old_id] += 1
                new_id = f"{old_id}-{suffixes[old_id] + 1}"
            renamed.append(f"{old_id} of {rule.source}, {rule.origin} is {new_id}")
        seen.add(old_id)
        taken.add(new_id)
        kept[texts] = found.model_copy(update={"rule_id": new_id})
    return [*kept.values()], copies, renamed


def _notes(
    pools: Sequence[Pool], rules: Sequence[PoolRule], renamed: Sequence[str]
) -> Iterator[str]:
    for pool in pools:
        if pool.empty:
            where = first_of(pool.empty)
            yield f"pool {pool.name}: {len(pool.empty):,} records have no text, left out: {where}"
    if renamed:
        yield (
            f"{len(renamed):,} rules have the id of an earlier rule with another text, and get "
            f"another: {first_of(renamed)}"
        )
    if formulas := [rule.rule_id for rule in rules if any(map(is_formula, rule.texts.values()))]:
        yield (
            f"{len(formulas):,} rules have texts that begin like a spreadsheet's formula, kept as "
            f"texts: {first_of(formulas)}"
        )
    if bare := sorted({rule.source for rule in rules if not rule.licence}):
        yield (
            f"no licence is named for rules of {first_of(bare)}; where you know it: --licence "
            f"{bare[0]}=TEXT"
        )
