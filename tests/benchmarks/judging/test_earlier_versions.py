"""Verdicts and ratings that earlier versions stored are read: nothing is asked again.

The keys are those that these versions gave to the same pairs and judge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.benchmark_config import JudgeBenchmarkConfig
from encore.benchmarks.judging.judged_pairs import JudgingManifest, judge_pairs
from encore.benchmarks.judging.rated_pairs import rate_pairs
from encore.judges.judge_config import JudgeConfig
from encore.runs import run_files as runs
from encore.runs.run_files import ShardTable, claim_folder, run_status, write_shard
from tests.benchmarks.judging.scripted import judge_of_opinions, make_benchmark
from tests.worlds.judges import ScriptedJudge

OPINIONS = ["right", "wrong", "A", "B", "right"]
VERDICTS = [[1, 1], [0, 0], [1, 0], [0, 1], [1, 1]]
PAIRS = make_benchmark(5, subsets=2)
#: What both earlier versions had for the digest of these pairs.
EARLIER_DATA = "d18613d5115dd74fafdc12107e4cd9826ac212223c2ecdb17f88e881de6c46a2"
#: The key of the same judging in an earlier version, and what its identity had beside the pairs.
EARLIER: dict[str, dict[str, Any]] = {
    "4e5a972e33dea096": {},
    "f17cd24691696053": {
        "prompt_sha256": "b61fb380c5a9b339227113bbcf037728b778e29f92a355e0c95811812b4e4d71",
        "criterion_ids": ["overall"],
    },
}


def judged(out: Path, judge, *, pairs=PAIRS, **options: Any):
    settings = {"judge": JudgeConfig(model="scripted"), "out": out, "shard_size": 2, **options}
    return judge_pairs(pairs, JudgeBenchmarkConfig(**settings), judge=judge)


def store_as_earlier(current: Path, out: Path, key: str) -> Path:
    """Write the verdicts of a judging as an earlier version did: other key, one more column."""
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
    return out / key


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """Return the folder of a judging by this version."""
    manifest, _, _ = judged(tmp_path / "current", judge_of_opinions(OPINIONS))
    return tmp_path / "current" / manifest.key


@pytest.mark.parametrize("key", EARLIER)
def test_verdicts_of_earlier_versions_are_read_and_no_judge_is_asked(tmp_path, current, key):
    folder = store_as_earlier(current, tmp_path, key)
    judge = judge_of_opinions(["wrong"] * 5)
    manifest, verdict_P2, null_reasons = judged(tmp_path, judge)
    assert judge.num_asked == 0
    assert (verdict_P2.tolist(), null_reasons) == (VERDICTS, {})
    assert (manifest.key, folder.name) == (key, key)


def test_a_manifest_of_an_earlier_version_calls_its_key_by_another_name(tmp_path, current):
    folder = store_as_earlier(current, tmp_path, "f17cd24691696053")
    content = json.loads((folder / "judging.json").read_text())
    content["key"] = content.pop("judging_key")
    (folder / "judging.json").write_text(json.dumps(content))
    judge = judge_of_opinions(["wrong"] * 5)
    assert judged(tmp_path, judge)[1].tolist() == VERDICTS
    assert judge.num_asked == 0


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
    judge = judge_of_opinions(["wrong"] * 5)
    manifest, _, _ = judged(tmp_path, judge, **change)
    assert judge.num_asked == 10
    assert manifest.key not in EARLIER


def test_the_folder_with_most_verdicts_is_taken(tmp_path, current):
    """Who began to judge again before old keys were read goes on with what is more complete."""
    key = "f17cd24691696053"
    earlier = store_as_earlier(current, current.parent, key)
    run_status(current, JudgingManifest).paths[0].unlink()
    judge = judge_of_opinions(["wrong"] * 5)
    assert judged(current.parent, judge)[0].key == key
    # Of an earlier run that was interrupted, this version judges what is missing.
    for path in run_status(earlier, JudgingManifest).paths[:2]:
        path.unlink()
    assert judged(current.parent, judge)[0].key == current.name
    assert judge.num_asked == 4
    assert runs.run_status(current, JudgingManifest).is_complete


@pytest.fixture
def rated(tmp_path: Path):
    """Return a function that rates three pairs under one rule, with a count of the prompts."""
    rules = tmp_path / "one.toml"
    rules.write_text(
        'name = "one"\n[[rules]]\ntitle = "Kind"\ndescription = "d"\n'
        'preference_rule = "Accept the kinder response."\n'
        'rating_rule = "The response should be kind."\n'
    )

    def rate_in(out: Path, *, judge: str) -> tuple[Path, int]:
        config = JudgeBenchmarkConfig(
            judge=JudgeConfig(model="scripted"), out=out, rules=str(rules), shard_size=2
        )
        scripted = ScriptedJudge(lambda _: "0.5", name=judge)
        result = rate_pairs(make_benchmark(3), config, {"kind": 1.0}, judge=scripted)
        return result.study, scripted.num_asked

    return rate_in


def test_ratings_of_a_benchmark_by_earlier_versions_are_read(tmp_path, rated):
    study, num_asked = rated(tmp_path / "before", judge="a")
    assert num_asked == 6
    now = tmp_path / "now"
    now.mkdir()
    earlier = study.rename(now / "rated-f8242e4c8a6452bb")
    assert rated(now, judge="a") == (earlier, 0)
    # Where this version has begun a study of its own, each judge is found in the study it is in.
    study, _ = rated(tmp_path / "between", judge="b")
    current = study.rename(now / study.name)
    assert rated(now, judge="a") == (earlier, 0)
    assert rated(now, judge="b") == (current, 0)
    assert rated(now, judge="c") == (current, 6)
