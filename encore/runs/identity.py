"""The identity of a sharded run: what is asked, of what, and in which shards. Its hash is the key.

No stage writes it by hand: what is asked is the stage's config, and what the config leads to (a
judge, data, rules) has digests beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from encore.core.config import StageConfig, identity_of

#: Changes when identities or shards change their meaning.
_FORMAT = 2


def run_identity(
    config: StageConfig | None,
    *,
    kind: type[StageConfig] | None = None,
    order: str,
    num_pairs: int,
    shard_size: int,
    **sources: Any,
) -> dict[str, Any]:
    """Return the identity of a run, as JSON values. It has no path of a machine.

    Args:
        config: What is asked. Values that are not the default are in the identity. None: the
            stage has no options that change a result.
        kind: Class of the config whose fields count, if it is not the config's own.
        order: Order of the pairs.
        num_pairs: Number of pairs in all shards.
        shard_size: Number of pairs in a shard.
        **sources: What the config leads to, by name: the judge's identity, digests of data, rules,
            prompt or model, the version of what reads replies. None: there is no such source.
    """
    settings = None if config is None else identity_of(config, kind)
    return {
        "format": _FORMAT,
        **({"config": settings} if settings else {}),
        "plan": {"order": order, "num_pairs": num_pairs, "shard_size": shard_size},
        **{name: source for name, source in sources.items() if source is not None},
    }


def run_key_of(identity: Mapping[str, Any]) -> str:
    """Return 16 hex digits of the SHA-256 of an identity in canonical JSON."""
    canonical = json.dumps(identity, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def differences(first: Any, second: Any) -> Iterator[tuple[str, str, str]]:
    """Yield every difference of two identities: the dotted path, and both values as JSON."""
    first_leaves, second_leaves = dict(_leaves(first)), dict(_leaves(second))
    for path in sorted(first_leaves | second_leaves):
        values = (first_leaves.get(path, "nothing"), second_leaves.get(path, "nothing"))
        if values[0] != values[1]:
            yield ".".join(path), *values


def _leaves(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every value inside a JSON value with its path, as JSON text."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, *path, name)
    else:
        yield path, json.dumps(value, ensure_ascii=False)
