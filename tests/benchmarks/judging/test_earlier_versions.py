"""Verdicts and ratings that earlier versions stored are read: nothing is asked again.

The keys are those that these versions gave to the same pairs and judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.judging.judged_pairs import JudgingManifest
from encore.benchmarks.judging.rated_pairs import rate_pairs
from encore.runs.run_files import ShardTable, run_status, write_shard
from encore.runs.run_manifest import claim_folder
from tests.benchmarks.judging.scripted import (
    VERDICTS,
    judge_of_opinions,
    judged,
    make_benchmark,
    opposed_judge,
    rating_options,
)
from tests.worlds.judges import ScriptedJudge

#: Digest of the judged pairs in both earlier versions.
EARLIER_DATA = "d18613d5115dd74fafdc12107e4cd9826ac212223c2ecdb17f88e881de6c46a2"
#: Key of the same judging in each earlier version, and the other parts of its identity.
OLDEST_KEY = "f17cd24691696053"
EARLIER: dict[str, dict[str, Any]] = {
    "4e5a972e33dea096": {},
    OLDEST_KEY: {
        "prompt_sha256": "b61fb380c5a9b339227113bbcf037728b778e29f92a355e0c95811812b4e4d71",
        "criterion_ids": ["overall"],
    },
}


def store_as_earlier(current: Path, out: Path, key: str) -> Path:
    """Write the verdicts of a judging as an earlier version did: other key, one more column.

    The oldest version called the key ``key``.
    """
    manifest = run_status(current, JudgingManifest).manifest
    identity = {**manifest.identity, "data_sha256": EARLIER_DATA, **EARLIER[key]}
    earlier = manifest.model_copy(update={"identity": identity, "judging_key": key})
    claim_folder(out / key, earlier)
    for shard, path in zip(
        manifest.shards, run_status(current, JudgingManifest).paths, strict=True
    ):
        table = pq.read_table(path)
        column = table.schema.get_field_index("run_key")
        table = table.set_column(column, "run_key", pa.array([key] * table.num_rows))
        table = table.append_column("criterion", pa.array(["overall"] * table.num_rows))
        write_shard(out / key, earlier, shard, ShardTable(table=table))
    if key == OLDEST_KEY:
        path = out / key / JudgingManifest.FILE
        path.write_text(path.read_text().replace('"judging_key"', '"key"'))
    return out / key


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """Return the folder of a judging by this version."""
    out = tmp_path / "current"
    return out / judged(out, judge_of_opinions()).manifest.key


@pytest.mark.parametrize("key", EARLIER)
def test_verdicts_of_earlier_versions_are_read_and_no_judge_is_asked(tmp_path, current, key):
    store_as_earlier(current, tmp_path, key)
    judge = opposed_judge()
    manifest, verdict_P2, null_reasons = judged(tmp_path, judge)
    assert (verdict_P2.tolist(), null_reasons) == (VERDICTS, {})
    assert (manifest.key, judge.num_asked) == (key, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": "verdict-only"},
        {"max_reply_tokens": 99},
        {"shard_size": 3},
        {"pairs": make_benchmark(5, subsets=1)},
    ],
    ids=["protocol", "max_reply_tokens", "shard_size", "pairs"],
)
def test_verdicts_of_another_earlier_judging_are_not_read(tmp_path, current, change):
    for key in EARLIER:
        store_as_earlier(current, tmp_path, key)
    judge = opposed_judge()
    manifest, _, _ = judged(tmp_path, judge, **change)
    assert judge.num_asked == 10
    assert manifest.key not in EARLIER


def test_the_folder_with_most_verdicts_is_continued(tmp_path, current):
    earlier = store_as_earlier(current, current.parent, OLDEST_KEY)
    run_status(current, JudgingManifest).paths[0].unlink()
    judge = opposed_judge()
    assert judged(current.parent, judge).manifest.key == OLDEST_KEY
    # The earlier run lacks more: this version judges what is missing in its own folder.
    for path in run_status(earlier, JudgingManifest).paths[:2]:
        path.unlink()
    assert judged(current.parent, judge).manifest.key == current.name
    assert judge.num_asked == 4
    assert run_status(current, JudgingManifest).is_complete


def rated(out: Path, *, judge: str) -> tuple[Path, int]:
    """Rate three pairs under two rules; return their study and the number of prompts."""
    scripted = ScriptedJudge(lambda _: "0.5", name=judge)
    weights = {"kind": 0.5, "long": 0.5}
    result = rate_pairs(make_benchmark(3), rating_options(out), weights, judge=scripted)
    return result.study, scripted.num_asked


def test_ratings_of_a_benchmark_by_earlier_versions_are_read(tmp_path):
    study, num_asked = rated(tmp_path / "before", judge="a")
    assert num_asked == 12  # three pairs, two answers, two rules
    now = tmp_path / "now"
    now.mkdir()
    earlier = study.rename(now / "rated-f8242e4c8a6452bb")
    assert rated(now, judge="a") == (earlier, 0)
    # This version has a study too: the ratings of each judge are read from the study that has them.
    study, _ = rated(tmp_path / "between", judge="b")
    current = study.rename(now / study.name)
    assert rated(now, judge="a") == (earlier, 0)
    assert rated(now, judge="b") == (current, 0)
    assert rated(now, judge="c") == (current, 12)
