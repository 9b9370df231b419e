"""The same analysis by three libraries, one call in one process: prints seconds, memory, figures.

Run: python -m tests.perf.analysis.contenders LIBRARY TASK PATH

Tasks: `entropy`, `accuracies` (four tie policies) and `analyze` (both, with levels, kernel
densities, intervals, correlations and null bands, by source). Every library makes the same checks:
no id is null, every response is chosen or rejected, every rating lies in [0, 1]; and where pairs
are looked at, no rating is there twice. What follows from counts (intervals, correlations,
integrals of kernel densities) is the same numpy code for all: they differ in how they count.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.perf.analysis.counts import Counts, figures_of_counts, shares

Figures = dict[str, Any]
Act = Callable[[Path], Figures]

IDS = ["source", "pair_id", "response", "rule_id"]
PAIR = ["source", "pair_id", "rule_id"]


def main() -> None:
    """One measurement. Libraries are imported before the clock starts."""
    library, task, path = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    act = {"encore": with_encore, "polars": with_polars, "pandas": with_pandas}[library]()[task]
    start = time.perf_counter()
    figures = act(path)
    seconds = time.perf_counter() - start
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mib": peak_mib, "figures": figures}))


def with_encore() -> dict[str, Act]:
    """Ours."""
    from encore.analysis.analyze import analyze
    from encore.analysis.pair_counts import count_pairs
    from encore.analysis.statistics import rating_statistics
    from encore.warehouse import Warehouse, open_ratings

    def entropy(path: Path) -> Figures:
        with Warehouse(open_ratings(path)) as warehouse:
            rows = warehouse.query("rule_statistics").to_pylist()
        return {row["rule_id"]: row["entropy_nats"] for row in rows if row["source"] is None}

    def accuracies(path: Path) -> Figures:
        with Warehouse(open_ratings(path)) as warehouse:
            rows = warehouse.query("rule_statistics").to_pylist()
            rule_ids = sorted({row["rule_id"] for row in rows})
            sources = sorted({row["source"] for row in rows if row["source"] is not None})
            no_cells = dict.fromkeys(rule_ids)
            counts = count_pairs(warehouse, sources=sources, levels=no_cells)[None]
        triples = zip(counts.wins_R, counts.losses_R, counts.ties_R, strict=True)
        return {r: shares(*triple) for r, triple in zip(rule_ids, triples, strict=True)}

    def whole(path: Path) -> Figures:
        analysis = analyze(path, by_source=True)
        pooled = [rule for rule in analysis.rules if rule.source == "all"]
        return {
            "entropy": {rule.rule_id: rule.entropy_nats for rule in pooled},
            "half": {rule.rule_id: rule.accuracy.half for rule in pooled},
            "r": [row.pearson_r for row in analysis.correlation],
        }

    def statistics(path: Path) -> Figures:
        with Warehouse(open_ratings(path)) as warehouse:
            return {"sources": [part.source for part in rating_statistics(warehouse)]}

    return {
        "entropy": entropy,
        "accuracies": accuracies,
        "analyze": whole,
        "statistics": statistics,  # `analyze` without what follows from counts
    }


def with_polars() -> dict[str, Act]:
    """Lazy frames on Polars' streaming engine."""
    import polars as pl

    def read(path: Path) -> pl.LazyFrame:
        rows = pl.scan_parquet(path / "*.parquet").select(*IDS, "rating")
        is_bad = (
            pl.any_horizontal(pl.col(IDS).is_null())
            | ~pl.col("response").is_in(["chosen", "rejected"])
            | ~pl.col("rating").is_between(0, 1)
        )
        if rows.filter(is_bad).head(1).collect(engine="streaming").height:
            raise ValueError("a row breaks the contract")
        return rows

    def level_counts(rows: pl.LazyFrame) -> pl.DataFrame:
        return rows.group_by("source", "rule_id", "rating").len().collect(engine="streaming")

    def side_by_side(rows: pl.LazyFrame) -> pl.DataFrame:
        is_chosen = pl.col("response") == "chosen"
        pairs = (
            rows.select(
                *PAIR,
                chosen=pl.when(is_chosen).then("rating"),
                rejected=pl.when(~is_chosen).then("rating"),
                is_chosen=is_chosen.cast(pl.Int32),
                is_rejected=(~is_chosen).cast(pl.Int32),
            )
            .group_by(PAIR)
            .agg(
                pl.col("chosen", "rejected").max(),
                pl.col("is_chosen", "is_rejected").sum(),
            )
            .collect(engine="streaming")
        )
        if pairs.filter((pl.col("is_chosen") > 1) | (pl.col("is_rejected") > 1)).height:
            raise ValueError("a rating is there twice")
        return pairs

    def entropy(path: Path) -> Figures:
        counts = level_counts(read(path)).drop_nulls("rating")
        by_rule = counts.group_by("rule_id", "rating").agg(pl.col("len").sum())
        found = by_rule.group_by("rule_id").agg(
            h=(-(pl.col("len") / pl.col("len").sum()).log() * pl.col("len")).sum()
            / pl.col("len").sum()
        )
        return dict(found.iter_rows())

    def accuracies(path: Path) -> Figures:
        found = (
            side_by_side(read(path))
            .group_by("rule_id")
            .agg(
                wins=(pl.col("chosen") > pl.col("rejected")).sum(),
                losses=(pl.col("chosen") < pl.col("rejected")).sum(),
                ties=(pl.col("chosen") == pl.col("rejected")).sum(),
            )
        )
        return {rule_id: shares(*triple) for rule_id, *triple in found.iter_rows()}

    def whole(path: Path) -> Figures:
        rows = read(path)
        levels = level_counts(rows)
        pairs = side_by_side(rows)
        cells = pairs.group_by("source", "rule_id", "chosen", "rejected").len()
        signs = pairs.select(
            *PAIR, sign=(pl.col("chosen") - pl.col("rejected")).sign().fill_null(0.0)
        ).pivot(on="rule_id", index=["source", "pair_id"], values="sign")
        rule_ids = sorted(signs.columns[2:])
        signs = signs.fill_null(0.0)
        counts = Counts(
            levels=list(levels.iter_rows()),
            cells=list(cells.iter_rows()),
            sign_PR_of={
                str(key[0]): part.select(rule_ids).to_numpy()
                for key, part in signs.group_by("source")
            },
        )
        return figures_of_counts(counts, rule_ids=rule_ids)

    return {"entropy": entropy, "accuracies": accuracies, "analyze": whole}


def with_pandas() -> dict[str, Act]:
    """Data frames."""
    import numpy as np
    import pandas as pd

    def read(path: Path) -> pd.DataFrame:
        rows = pd.read_parquet(path, columns=[*IDS, "rating"])
        is_good = rows["response"].isin(["chosen", "rejected"])
        is_good &= rows["rating"].isna() | rows["rating"].between(0, 1)
        if not is_good.all() or rows[IDS].isna().any(axis=None):
            raise ValueError("a row breaks the contract")
        return rows

    def side_by_side(rows: pd.DataFrame) -> pd.DataFrame:
        if rows.duplicated(IDS).any():
            raise ValueError("a rating is there twice")
        is_chosen = rows["response"] == "chosen"
        columns = [*PAIR, "rating"]
        chosen = rows.loc[is_chosen, columns].rename(columns={"rating": "chosen"})
        rejected = rows.loc[~is_chosen, columns].rename(columns={"rating": "rejected"})
        return chosen.merge(rejected, on=PAIR, how="outer")

    def entropy(path: Path) -> Figures:
        counts = read(path).groupby(["rule_id", "rating"]).size()
        mass = counts / counts.groupby("rule_id").transform("sum")
        return dict((-mass * np.log(mass)).groupby("rule_id").sum())

    def accuracies(path: Path) -> Figures:
        pairs = side_by_side(read(path))
        outcome = pd.DataFrame(
            {
                "rule_id": pairs["rule_id"],
                "wins": pairs["chosen"] > pairs["rejected"],
                "losses": pairs["chosen"] < pairs["rejected"],
                "ties": pairs["chosen"] == pairs["rejected"],
            }
        )
        found = outcome.groupby("rule_id").sum()
        return {rule_id: shares(*triple) for rule_id, *triple in found.itertuples()}

    def whole(path: Path) -> Figures:
        rows = read(path)
        levels = rows.groupby(["source", "rule_id", "rating"], dropna=False).size()
        pairs = side_by_side(rows)
        cells = pairs.groupby(["source", "rule_id", "chosen", "rejected"], dropna=False).size()
        sign = np.sign(pairs["chosen"] - pairs["rejected"]).fillna(0.0)
        signs = (
            pairs[PAIR]
            .assign(sign=sign)
            .pivot(index=["source", "pair_id"], columns="rule_id", values="sign")
        )
        signs = signs.fillna(0.0)
        rule_ids = sorted(signs.columns)
        counts = Counts(
            levels=[(*key, number) for key, number in levels.items()],
            cells=[(*key, number) for key, number in cells.items()],
            sign_PR_of={
                source: part[rule_ids].to_numpy() for source, part in signs.groupby(level="source")
            },
        )
        return figures_of_counts(counts, rule_ids=rule_ids)

    return {"entropy": entropy, "accuracies": accuracies, "analyze": whole}


if __name__ == "__main__":
    main()
