"""Why ratings of a run are null."""

from __future__ import annotations

from collections import Counter

import pyarrow.parquet as pq

from encore.rating_runs import RatingStatus
from encore.runs import shard_path


def null_reasons(status: RatingStatus) -> tuple[tuple[str, int], ...]:
    """Null ratings of a run's finished shards by reason, the most frequent first.

    Only shards that have nulls are opened, and of these one column of few values.
    """
    reasons: Counter[str] = Counter()
    for shard in status.shards:
        if shard.state == "done" and shard.num_nulls:
            path = shard_path(status.run_dir, shard.index)
            counted = pq.read_table(path, columns=["null_reason"])["null_reason"].value_counts()
            for row in counted.to_pylist():
                if row["values"] is not None:
                    reasons[row["values"]] += row["counts"]
    return tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
