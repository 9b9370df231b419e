"""Order of the rules in a prompt that asks for all of them (``--layout all-rules``).

The order is drawn for each response. It follows from the run's seed and the response alone, so it
is not stored: the same function gives the position of a rule again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def rule_order(
    rule_ids: Sequence[str], *, pair_id: str, response: str, seed: int
) -> tuple[str, ...]:
    """Return the ids of the rules in the order in which a response's prompt lists them.

    They are sorted by a hash, so every order is equally likely, on every machine.

    >>> rule_order(["a", "b", "c"], pair_id="00", response="chosen", seed=0)
    ('c', 'b', 'a')

    Args:
        rule_ids: Ids of all rules of the run, in any order.
        pair_id: Id of the rated pair, a hash of its texts.
        response: The rated response of the pair, chosen or rejected.
        seed: Seed of the run, which draws all orders anew.
    """

    def digest(rule_id: str) -> bytes:
        return hashlib.sha256(f"{seed}:{pair_id}:{response}:{rule_id}".encode()).digest()

    return tuple(sorted(rule_ids, key=digest))
