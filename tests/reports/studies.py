"""Ratings to report on: rules that follow people more or less closely, and studies of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.worlds.ratings import table_of
from tests.worlds.studies import rules_of, write_rating_run

#: Titles that try to get out of the page: tags, entities, mathematics, control and direction
#: characters, scripts that the drawing font lacks.
HOSTILE_TITLES = (
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(2)>",
    "\"quoted\" & 'apostrophed' &lt;b&gt;",
    "costs $5 and $10 {{ 7 * 7 }} {% raw %}",
    "right\u202eleft\x1b[31m\x00",
    "规则 🛡️ ]]> <!-- --> javascript:alert(3)",
)
HOSTILE_SOURCE = "<b>s</b>&\u202e"


def some_ratings(
    *,
    num_pairs: int = 240,
    rule_ids: Sequence[str] = ("calm", "fair", "kind", "mild", "neat", "open"),
    sources: Sequence[str] = ("hh", "pku"),
    null_share: float = 0.0,
) -> pa.Table:
    """Return ratings on 11 levels; later rules follow people less closely and spread more."""
    rng = np.random.default_rng(0)
    spread_R = np.linspace(0.3, 1.6, len(rule_ids))
    shared_2P1 = rng.normal(size=(2, num_pairs, 1))
    noise_2PR = rng.normal(size=(2, num_pairs, len(rule_ids)))
    raw_2PR = 1.2 + spread_R * (noise_2PR + 0.6 * shared_2P1)
    raw_2PR[0] += 0.5
    rating_2PR = np.round(10 / (1 + np.exp(-raw_2PR))) / 10
    rating_2PR[rng.random(rating_2PR.shape) < null_share] = np.nan
    source = [sources[index * len(sources) // num_pairs] for index in range(num_pairs)]
    return table_of(*rating_2PR, rule_ids=rule_ids, source=source)


def write_rated_study(
    folder: Path,
    *,
    titles: Sequence[str] = ("Calm", "Fair", "Kind", "Mild", "Neat", "Open"),
    sources: Sequence[str] = ("hh", "pku"),
    judge: str = "tiny-judge",
    num_pairs: int = 240,
) -> Path:
    """Write a study with one finished run of `some_ratings`; one rating in fifty is null."""
    rules = rules_of(titles)
    rule_ids = [rule["rule_id"] for rule in rules]
    ratings = some_ratings(num_pairs=num_pairs, rule_ids=rule_ids, sources=sources, null_share=0.02)
    write_rating_run(folder, ratings, rules=rules, judge=judge)
    return folder
