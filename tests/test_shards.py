"""A shard is done when its file validates, and only then."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore import shards
from encore.data.rules.load import rules_digest
from encore.errors import EncoreError, InputError
from encore.schemas import RATINGS
from encore.shards import RunManifest, Shard

NUM_RULES = 10
RULES = [
    {
        "rule_id": f"rule-{index}",
        "title": f"Rule {index}",
        "description": "d",
        "preference_rule": "p",
        "rating_rule": "r",
    }
    for index in range(NUM_RULES)
]


def make_manifest(*, num_pairs: int = 40, shard_size: int = 20, judge: str = "tiny") -> RunManifest:
    identity = {
        "judge": {"name": judge},
        "rules_sha256": rules_digest(RULES),
        "plan": {"num_pairs": num_pairs, "shard_size": shard_size},
    }
    return RunManifest(
        run_key=shards.run_key_of(identity),
        identity=identity,
        rule_set="ten",
        rules=RULES,
        versions={},
    )


def make_table(manifest: RunManifest, shard: Shard, *, seed: int = 0) -> pa.Table:
    """Random ratings of a shard's pairs, every twentieth null."""
    rng = random.Random(seed)
    rows = []
    for position in range(shard.start, shard.stop):
        pair_id = hashlib.sha256(str(position).encode()).hexdigest()[:32]
        for response in ("chosen", "rejected"):
            for rule_id in manifest.rule_ids:
                is_null = rng.random() < 0.05
                rating = None if is_null else rng.choice([0.0, 0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1.0])
                rows.append(
                    {
                        "pair_id": pair_id,
                        "source": "hh",
                        "response": response,
                        "rule_id": rule_id,
                        "rating": rating,
                        "null_reason": "empty_reply" if is_null else None,
                        "num_truncated_tokens": 0,
                        "raw_reply": "" if is_null else str(rating),
                        "judge": manifest.judge,
                        "run_key": manifest.run_key,
                    }
                )
    return pa.Table.from_pylist(rows, schema=RATINGS)


@pytest.fixture
def manifest() -> RunManifest:
    return make_manifest()


@pytest.fixture
def run_dir(tmp_path: Path, manifest: RunManifest) -> Path:
    """A complete run of two shards."""
    folder = tmp_path / manifest.run_key
    shards.write_run(folder, manifest)
    for shard in manifest.shards:
        table = make_table(manifest, shard)
        shards.write_shard(folder, shard, table, footer={"run_key": manifest.run_key})
    return folder


def states(run_dir: Path) -> list[str]:
    return [shard.state for shard in shards.run_status(run_dir).shards]


@given(st.integers(1, 5000), st.integers(1, 700))
def test_a_plan_covers_every_pair_once_in_order(num_pairs, shard_size):
    plan = shards.plan_shards(num_pairs, shard_size=shard_size)
    covered = [position for shard in plan for position in range(shard.start, shard.stop)]
    assert covered == list(range(num_pairs))
    assert [shard.index for shard in plan] == list(range(len(plan)))
    assert all(shard.num_pairs == shard_size for shard in plan[:-1])


def test_a_written_run_is_complete_and_counts_add_up(run_dir, manifest):
    status = shards.run_status(run_dir)
    assert status.is_complete
    counted = sum(shard.num_ratings + shard.num_nulls for shard in status.shards)
    assert counted == manifest.num_pairs * 2 * NUM_RULES
    assert len(shards.validated_shards(status)) == 2


def test_the_digest_file_is_what_sha256sum_checks(run_dir):
    path = shards.shard_path(run_dir, 0)
    recorded = shards.digest_path(run_dir, 0).read_text()
    assert recorded == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"


def test_writing_the_same_table_twice_gives_the_same_bytes(run_dir, manifest):
    path = shards.shard_path(run_dir, 0)
    before = path.read_bytes()
    shard = manifest.shards[0]
    table = make_table(manifest, shard)
    shards.write_shard(run_dir, shard, table, footer={"run_key": manifest.run_key})
    assert path.read_bytes() == before


def test_a_deleted_shard_is_missing_and_a_cut_one_damaged(run_dir):
    shards.shard_path(run_dir, 0).unlink()
    second = shards.shard_path(run_dir, 1)
    second.write_bytes(second.read_bytes()[: second.stat().st_size // 2])
    assert states(run_dir) == ["missing", "damaged"]


def test_every_flipped_bit_is_found(run_dir):
    path = shards.shard_path(run_dir, 0)
    content = path.read_bytes()
    rng = random.Random(4)
    for offset in rng.sample(range(len(content)), 200):
        flipped = bytearray(content)
        flipped[offset] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        assert states(run_dir) == ["damaged", "done"], f"offset {offset}"
    path.write_bytes(content)
    assert states(run_dir) == ["done", "done"]


def test_a_missing_or_changed_digest_makes_a_shard_damaged(run_dir):
    shards.digest_path(run_dir, 0).unlink()
    shards.digest_path(run_dir, 1).write_text("0" * 64 + "  shard-00001.parquet\n")
    assert states(run_dir) == ["damaged", "damaged"]


def test_another_runs_shard_or_another_index_is_damaged(run_dir, manifest):
    """Copied whole with its digest: only the footer can tell."""
    for suffix in ("parquet", "sha256"):
        source = run_dir / f"shard-00000.{suffix}"
        (run_dir / f"shard-00001.{suffix}").write_bytes(source.read_bytes())
    shard = manifest.shards[0]
    shards.write_shard(run_dir, shard, make_table(manifest, shard), footer={"run_key": "other"})
    assert states(run_dir) == ["damaged", "damaged"]


def test_a_recorded_failure_is_shown_until_the_shard_is_written(run_dir, manifest):
    shard = manifest.shards[1]
    shards.shard_path(run_dir, 1).unlink()
    shards.record_failure(run_dir, shard, TimeoutError("passed 3 s\nof generation"))
    state = shards.run_status(run_dir).shards[1]
    assert (state.state, state.detail) == ("failed", "TimeoutError: passed 3 s of generation")
    table = make_table(manifest, shard)
    shards.write_shard(run_dir, shard, table, footer={"run_key": manifest.run_key})
    assert not shards.failure_path(run_dir, 1).exists()
    assert states(run_dir) == ["done", "done"]


def test_a_write_that_fails_leaves_the_shard_missing_and_no_file_behind(
    run_dir, manifest, monkeypatch
):
    shard = manifest.shards[0]
    shards.shard_path(run_dir, 0).unlink()
    before = sorted(path.name for path in run_dir.iterdir())

    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full_disk)
    with pytest.raises(OSError, match="No space"):
        shards.write_shard(
            run_dir, shard, make_table(manifest, shard), footer={"run_key": manifest.run_key}
        )
    assert sorted(path.name for path in run_dir.iterdir()) == before
    assert states(run_dir) == ["missing", "done"]


def test_a_crash_between_digest_and_data_counts_as_missing(run_dir):
    """The digest is written first, so this is all that a kill at the worst moment leaves."""
    shards.shard_path(run_dir, 0).unlink()
    assert states(run_dir) == ["missing", "done"]


def _try_lock(run_dir: Path, answers: multiprocessing.Queue) -> None:
    with shards.shard_lock(run_dir, 0) as is_mine:
        answers.put(is_mine)


def test_a_shards_lock_has_one_holder_among_processes(run_dir):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with shards.shard_lock(run_dir, 0) as is_mine:
        assert is_mine
        other = context.Process(target=_try_lock, args=(run_dir, answers))
        other.start()
        assert answers.get(timeout=30) is False
        other.join()
    with shards.shard_lock(run_dir, 0) as is_mine:
        assert is_mine


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["identity"]["judge"].update(name="someone-else"),
        lambda run: run["identity"]["plan"].update(num_pairs=20),
        lambda run: run["rules"].pop(),
        lambda run: run["rules"][0].update(rating_rule="other"),
        lambda run: run.pop("identity"),
        lambda run: run.update(identity=[]),
        lambda run: run.update(extra=1),
    ],
    ids=["judge", "plan", "rule gone", "rule text", "no identity", "odd identity", "extra"],
)
def test_a_changed_run_file_is_refused_and_says_what_to_do(run_dir, change):
    path = run_dir / shards.RUN_FILE
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(EncoreError, match=r"damaged .* delete that file"):
        shards.read_run(run_dir)


def test_a_copied_run_folder_is_no_second_run(run_dir):
    copy = run_dir.parent / "0123456789abcdef"
    shutil.copytree(run_dir, copy)
    with pytest.raises(EncoreError, match=f"belongs to run {run_dir.name}"):
        shards.read_run(copy)


def test_one_damaged_run_does_not_hide_the_others(run_dir, manifest):
    other = make_manifest(judge="other")
    shards.write_run(run_dir.parent / other.run_key, other)
    (run_dir.parent / other.run_key / shards.RUN_FILE).write_text("{")
    assert shards.choose_run(run_dir.parent, manifest.run_key) == run_dir
    with pytest.raises(InputError, match=f"{other.run_key} .run.json damaged."):
        shards.choose_run(run_dir.parent, None)


def test_shards_without_their_run_file_are_not_forgotten(run_dir):
    (run_dir / shards.RUN_FILE).unlink()
    assert shards.list_runs(run_dir.parent) == (run_dir,)
    with pytest.raises(EncoreError, match=r"run\.json is missing"):
        shards.run_status(run_dir)


def test_odd_things_in_a_shards_place_are_damage_not_a_crash(run_dir, manifest):
    shards.shard_path(run_dir, 0).unlink()
    shards.shard_path(run_dir, 0).mkdir()
    shards.digest_path(run_dir, 1).unlink()
    shards.digest_path(run_dir, 1).mkdir()
    assert states(run_dir) == ["damaged", "damaged"]
    shards.shard_path(run_dir, 1).unlink()
    shards.failure_path(run_dir, 1).write_text("[]")
    assert states(run_dir) == ["damaged", "failed"]


def test_several_runs_must_be_chosen_between(tmp_path):
    keys = []
    for judge in ("one", "two"):
        manifest = make_manifest(judge=judge)
        shards.write_run(tmp_path / manifest.run_key, manifest)
        keys.append(manifest.run_key)
    with pytest.raises(InputError) as caught:
        shards.choose_run(tmp_path, None)
    assert all(key in str(caught.value) for key in keys)
    assert shards.choose_run(tmp_path, keys[0][:6]).name == keys[0]
    with pytest.raises(InputError, match="nope"):
        shards.choose_run(tmp_path, "nope")


def test_a_rating_costs_at_most_1_6_bytes_without_the_raw_reply(tmp_path):
    """1,000 pairs with hashed ids, ten rules, eight levels: the shard size that is the default."""
    manifest = make_manifest(num_pairs=1000, shard_size=1000)
    shard = manifest.shards[0]
    shards.write_shard(tmp_path, shard, make_table(manifest, shard), footer={"versions": "x" * 300})
    path = shards.shard_path(tmp_path, 0)
    row_group = pq.read_metadata(path).row_group(0)
    columns = [row_group.column(index) for index in range(row_group.num_columns)]
    [raw_reply] = [column for column in columns if column.path_in_schema == "raw_reply"]
    num_bytes = path.stat().st_size - raw_reply.total_compressed_size
    assert num_bytes / row_group.num_rows <= 1.6
