"""Measure what it does to ENCORE's weights that propositions apply to some completions only.

``python -m examples.rbr_applies rbr-gold-dev.jsonl.gz proposition_prompts.yaml`` takes people's
labels of Rule Based Rewards' gold data as ratings. A proposition applies to a completion if the
classes of the completion's response type (refuse, comply, …) mention it. The table has ENCORE's
weight of each proposition in three cases: ratings where it does not apply are left out; they are
what people answered all the same; they are its most frequent rating (`weights_if_rated`).

A script, not a part of the library: it takes inner parts of ENCORE, which may change.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cyclopts
import pyarrow as pa
import yaml

from encore.analysis.analyze import Analysis, analyze
from encore.core.number_text import percent
from encore.data.rating_runs import DOES_NOT_APPLY
from encore.weighting.weigh import weights
from encore.weighting.weights_if_rated import weights_if_rated


def applicable_propositions(config: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the simple propositions that the classes of each response type mention.

    Args:
        config: Content of the file of propositions: classes, and derived propositions.
    """
    derived = config["derived_propositions"]

    def simple(names: Mapping[str, bool]) -> Iterator[str]:
        for name in names:
            yield from simple(derived[name]) if name in derived else (name,)

    by_type: dict[str, set[str]] = {}
    for classes in config["completion_classes"].values():
        for response_type, names in classes.items():
            by_type.setdefault(response_type, set()).update(simple(names))
    return by_type


def gold_ratings(gold: Path, by_type: Mapping[str, set[str]]) -> pa.Table:
    """Return people's labels as ratings of single responses, with ``label`` for every proposition.

    ``rating`` is null where the proposition does not apply. Propositions that never apply are left
    out.
    """
    rules = set().union(*by_type.values())
    rows = []
    with gzip.open(gold, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            record = json.loads(line)
            applicable = by_type[record["response_type"].lower().replace(" ", "_")]
            for rule_id in sorted(rules & record["propositions"].keys()):
                label = float(record["propositions"][rule_id])
                applies = rule_id in applicable
                rows.append(
                    {
                        "pair_id": f"{number:04}",
                        "source": "rbr-gold",
                        "response": "chosen",
                        "rule_id": rule_id,
                        "rating": label if applies else None,
                        "null_reason": None if applies else DOES_NOT_APPLY,
                        "label": label,
                    }
                )
    return pa.Table.from_pylist(rows)


def weights_table(table: pa.Table) -> str:
    """Return a Markdown table with the weights in the three cases, by descending movement."""
    asked = table.drop_columns("label")
    labelled = asked.set_column(4, "rating", table["label"]).drop_columns("null_reason")
    analysis: Analysis = analyze(asked)
    applicability = analysis.applicability
    entropy_if_labelled = {rule.rule_id: rule.entropy_nats for rule in analyze(labelled).rules}
    left_out, as_labelled = weights(asked), weights(labelled)
    constant_R = weights_if_rated(analysis.rules, [row.num_not_applicable for row in applicability])
    rows = [
        (
            rule.rule_id,
            percent(row.applies.value, digits=0),
            f"{rule.entropy_nats:.2f}",
            f"{entropy_if_labelled[rule.rule_id]:.2f}",
            percent(left_out[rule.rule_id]),
            percent(as_labelled[rule.rule_id]),
            percent(constant),
            f"{100 * (as_labelled[rule.rule_id] / left_out[rule.rule_id] - 1):+.0f} %",
        )
        for rule, row, constant in zip(
            analysis.rules, applicability, constant_R.tolist(), strict=True
        )
    ]
    rows.sort(key=lambda cells: -float(cells[-1].removesuffix(" %")))
    columns = ("proposition", "applies", "entropy", "of all labels", "weight", "by all labels")
    columns += ("with a constant", "moves by")
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(gold: Path, propositions: Path) -> None:
    """Print the table.

    Args:
        gold: Gold data of Rule Based Rewards, JSON lines in gzip.
        propositions: The file ``proposition_prompts.yaml`` that belongs to them.
    """
    config = yaml.safe_load(propositions.read_text(encoding="utf-8"))
    print(weights_table(gold_ratings(gold, applicable_propositions(config))))


if __name__ == "__main__":
    cyclopts.run(main)
