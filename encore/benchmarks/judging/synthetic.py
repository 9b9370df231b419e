"""Which parts of a judging are synthetic, so that nobody takes its figures for evidence."""

from __future__ import annotations

from encore.synthetic import SYNTHETIC_LABEL, is_demo_judge


def synthetic_in_judging(*, benchmark: str, judge: str, revision: str | None) -> tuple[str, ...]:
    """What of a judging is synthetic, in words: the demo's judge, a benchmark that says so.

    Args:
        benchmark: The benchmark's name in this call: the same pairs may have been judged under
            another one before.
        judge: The judge's name.
        revision: Its digest or commit.
    """
    is_synthetic = benchmark.casefold().startswith(SYNTHETIC_LABEL)
    return (
        *((f"benchmark {benchmark}",) if is_synthetic else ()),
        *((f"judge {judge}",) if is_demo_judge(revision) else ()),
    )
