"""Merge pools into one: copies are dropped, and every rule records its provenance."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from encore.core.errors import InputError
from encore.core.number_text import first_names
from encore.core.spreadsheets import is_formula
from encore.data.rule_sets import rule_file
from encore.rules.pool import Pool, PoolRule, check_output, read_pool, write_pool
from encore.rules.rules_options import MergeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPool:
    """Result of `merge`.

    Attributes:
        output: File of the merged pool.
        num_rules: Number of rules in the merged pool.
        pools: For each pool its name ``pool``, and its counts ``num_rules``, ``num_copies`` and
            ``num_empty`` (records without a text).
        copies: Dropped rules: ``rule_id``, ``title``, ``pool``, ``origin``, and the id of the rule
            that was ``kept``.
        notes: What a person should know about the merged pool, one sentence each.
    """

    output: str
    num_rules: int
    pools: tuple[dict[str, str | int], ...]
    copies: tuple[dict[str, str], ...]
    notes: tuple[str, ...]


def merge(config: MergeConfig) -> MergedPool:
    """Read pools, drop copies, give every rule a unique id, and write one pool.

    Two rules are copies if their description, preference text and rating text are the same, apart
    from case, spaces and Unicode form. The first rule is kept, in the order of the pools and of
    their files. It records the provenance of its copies.

    Raises:
        InputError: A pool cannot be read, two pools have one name, or a licence names no pool.
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
    return MergedPool(
        output=str(config.output),
        num_rules=len(rules),
        pools=tuple(
            {
                "pool": pool.name,
                "num_rules": len(pool.rules),
                "num_copies": num_copies[pool.name],
                "num_empty": len(pool.empty),
            }
            for pool in pools
        ),
        copies=tuple(copies),
        notes=tuple(_notes(pools, rules, renamed)),
    )


def _name_and_file(text: str) -> tuple[str | None, str]:
    """Split ``NAME=FILE``. A path that exists is a file, even with ``=`` in its name."""
    name, equals, file = text.partition("=")
    return (name.strip(), file) if equals and not Path(text).is_file() else (None, text)


def _licences(options: Sequence[str], pools: Sequence[Pool]) -> dict[str, str]:
    """Return the licences of ``--licence NAME=TEXT`` by source."""
    sources = sorted({rule.source for pool in pools for rule in pool.rules})
    licences = {}
    for text in options:
        name, _, licence = (part.strip() for part in text.partition("="))
        if name not in sources or not licence:
            raise InputError(
                f"--licence {text!r}: expected NAME=TEXT, e.g. my-pool=MIT; NAME is one of "
                f"{', '.join(sources)}"
            )
        licences[name] = licence
    return licences


def plain_text(text: str) -> str:
    """Return the text in one case, spacing and Unicode form, so that copies compare equal."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _unique(
    pools: Sequence[Pool], licences: Mapping[str, str]
) -> tuple[list[PoolRule], list[dict[str, str]], list[str]]:
    """Return the kept rules with unique ids, the dropped copies, and messages on changed ids.

    A rule whose id an earlier rule has gets the next free suffix: -2, -3, ….
    """
    kept: dict[tuple[str, ...], PoolRule] = {}
    copies, renamed = [], []
    used_ids = {rule.rule_id for pool in pools for rule in pool.rules}
    kept_ids, suffixes = set(), Counter[str]()
    for name, unlicensed in [(pool.name, rule) for pool in pools for rule in pool.rules]:
        licence = unlicensed.licence or licences.get(unlicensed.source, "")
        rule = unlicensed.model_copy(update={"licence": licence})
        texts = tuple(map(plain_text, (rule.description, rule.preference_rule, rule.rating_rule)))
        if texts in kept:
            kept[texts] = kept[texts].absorbing(rule)
            names = rule.model_dump(include={"rule_id", "title", "origin"})
            copies.append({**names, "pool": name, "kept": kept[texts].rule_id})
            continue
        new_id = rule.rule_id
        if rule.rule_id in kept_ids:
            while new_id in used_ids:
                suffixes[rule.rule_id] += 1
                new_id = f"{rule.rule_id}-{suffixes[rule.rule_id] + 1}"
            renamed.append(f"{rule.rule_id} of {rule.source}, {rule.origin} is {new_id}")
        kept_ids.add(rule.rule_id)
        used_ids.add(new_id)
        kept[texts] = rule.model_copy(update={"rule_id": new_id})
    return [*kept.values()], copies, renamed


def _notes(
    pools: Sequence[Pool], rules: Sequence[PoolRule], renamed: Sequence[str]
) -> Iterator[str]:
    for pool in pools:
        if pool.empty:
            labels = first_names(pool.empty)
            yield f"pool {pool.name}: {len(pool.empty):,} records have no text, left out: {labels}"
    if renamed:
        yield (
            f"{len(renamed):,} rules have the id of an earlier rule with another text and got a "
            f"new id: {first_names(renamed)}"
        )
    if formulas := [rule.rule_id for rule in rules if any(map(is_formula, rule.texts.values()))]:
        yield (
            f"{len(formulas):,} rules have texts that begin like a spreadsheet formula; they are "
            f"kept as text: {first_names(formulas)}"
        )
    if unlicensed := sorted({rule.source for rule in rules if not rule.licence}):
        yield (
            f"no licence is named for rules of {first_names(unlicensed)}; if you know it, add "
            f"--licence {unlicensed[0]}=TEXT"
        )
