"""Compare a plan with `--calibrate` with its run: seconds within 20 %, tokens within 2 %.

    python -m tests.perf.plan_accuracy [--pairs hh=FILE] [--judge FOLDER] [--limit 1000]

Each layout is planned in one copy of a study and rated in another copy, which has no ratings yet.
Other work on the machine between the two is the main error of the seconds.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from encore.core.settings import prepare_environment
from encore.data.ingestion import ingest
from encore.data.study import open_study
from encore.demo import DATA_PATHS, JUDGE_PATH
from encore.rating.rating_options import PlanRateConfig, RatingConfig
from encore.rating.rating_plan import plan_rating
from encore.rating.rating_run import rate
from tests.perf import harness

SECONDS_WITHIN, TOKENS_WITHIN = 0.2, 0.02


def main() -> None:
    """Plan and rate each layout, print the table, check the limits."""
    parser = harness.make_parser(__doc__)
    parser.add_argument("--pairs", nargs="+", help="what `encore ingest` takes; default: demo's")
    parser.add_argument("--judge", type=Path, default=JUDGE_PATH, help="default: the demo's")
    parser.add_argument("--calibrate", type=int, default=100)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--layouts", nargs="+", default=["paper", "conversation-first"])
    options = parser.parse_args()
    prepare_environment()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study"
        ingest(options.pairs or [f"{name}={path}" for name, path in DATA_PATHS.items()], out=study)
        for layout in options.layouts:
            rows += planned_and_actual(study, layout, options)
    harness.print_table(f"{options.limit} pairs, planned with {options.calibrate}", rows)
    for row in rows:
        limit = SECONDS_WITHIN if row["quantity"] == "seconds" else TOKENS_WITHIN
        assert abs(float(row["planned / actual"]) - 1) <= limit, row


def planned_and_actual(
    study: Path, layout: str, options: argparse.Namespace
) -> list[dict[str, str | float]]:
    """Return the planned and the actual seconds and computed tokens of one layout."""
    planned_in, rated_in = (study.with_name(f"{layout}-{name}") for name in ("planned", "rated"))
    for copy in (planned_in, rated_in):
        shutil.copytree(study, copy)
    fields = {"judge": {"model": str(options.judge)}, "layout": layout, "limit": options.limit}
    config = PlanRateConfig.model_validate({"calibrate": options.calibrate, **fields})
    cost = plan_rating(open_study(planned_in), config).layouts[layout]
    report = rate(rated_in, RatingConfig.model_validate(fields)).report
    values = {
        "seconds": (cost.hours * 3600, report.seconds),
        "computed tokens": (cost.computed_tokens, report.total("computed_tokens")),
    }
    return [
        {
            "layout": layout,
            "quantity": name,
            "planned": float(planned),
            "actual": float(actual),
            "planned / actual": planned / actual,
        }
        for name, (planned, actual) in values.items()
    ]


if __name__ == "__main__":
    main()
