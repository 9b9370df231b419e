"""A study in a bucket: machines see the same, and a kill at any point leaves a consistent study."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from encore.buckets import mirror_sender
from encore.buckets.bucket_store import BucketStore
from encore.buckets.study_mirror import StudyMirror, study_path
from encore.core.errors import EncoreError, EveryShardError, InputError
from encore.core.file_lock import file_lock
from encore.core.files import atomic_write_bytes, remove_file, write_json
from encore.core.folder_watches import claim_for_work
from encore.data.ingestion import ingest
from encore.data.pairs import read_pairs
from encore.data.study import open_study
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import open_run
from encore.runs.worker import Job, work_through
from tests.worlds.buckets import (
    fail_after,
    killed_machine,
    machine,
    new_bucket,
    open_mirrors,
    refusing_server,
    s3_server,
    set_s3_environment,
)
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import numbered_pairs, study_of, write_lines

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from obstore import ObjectMeta

SHARD = f"ratings/0123/shard-00000.{'0' * 32}.parquet"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def address(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a study that does not exist yet."""
    set_s3_environment(monkeypatch, server)
    monkeypatch.setattr(mirror_sender, "_PAUSE_SECONDS", 0.05)
    return f"{new_bucket(server)}/folder/my-study"


def ingest_numbered(address: str, tmp_path: Path, num_pairs: int, *, replace: bool = False) -> None:
    """Ingest some pairs under the label mine."""
    file = write_lines(tmp_path / f"{num_pairs}.jsonl", numbered_pairs(num_pairs))
    ingest(f"mine={file}", out=address, replace=replace)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a study by its name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write_shard(folder: Path, name: str = SHARD, content: bytes = b"rows") -> Path:
    """Write a file under a shard's name, as the shard runner does."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(path, content)
    return path


def test_a_second_machine_sees_the_same_files(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        first = study_path(address)
    with machine(monkeypatch, tmp_path / "b"):
        second = study_path(address)
        assert second != first
        assert second.name == "my-study"
        assert read_pairs(open_study(address)).num_rows == 3
        local = study_of(numbered_pairs(3), tmp_path / "local")
        assert files_of(second).keys() == files_of(first).keys() == files_of(local).keys()
        assert files_of(second) == files_of(first)


def test_only_what_changed_is_read_again(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
    with machine(monkeypatch, tmp_path / "b"):
        study_path(address)
    with machine(monkeypatch, tmp_path / "a"):
        write_json(study_path(address) / "notes.json", {"pair": "note"})
    names: list[str] = []
    download = BucketStore.download
    monkeypatch.setattr(
        BucketStore,
        "download",
        lambda store, name, path: names.append(name) or download(store, name, path),
    )
    with machine(monkeypatch, tmp_path / "b"):
        study_path(address)
        study_path(address)
    assert names == ["notes.json"]


def test_a_removed_file_is_removed_everywhere(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        shard = write_shard(study_path(address))
    with machine(monkeypatch, tmp_path / "b"):
        assert (study_path(address) / SHARD).is_file()
    with machine(monkeypatch, tmp_path / "a"):
        study_path(address)
        remove_file(shard)
    with machine(monkeypatch, tmp_path / "b"):
        assert not (study_path(address) / SHARD).exists()


def test_locks_journals_checkpoints_and_databases_stay_on_the_machine(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = (
        *("ratings/0123/locks/shard-00000.lock", "ratings/0123/replies-00000.jsonl"),
        *("mlflow.db", "mlflow-artifacts/1/a.txt", ".mlflow.lock", "training/x/.lock"),
        *("training/x/checkpoints/step-1/state.json", "training/x/embeddings/a.safetensors"),
    )
    models = ("training/x/model/heads.safetensors", "exports/y/config.json")
    shared = ("training/x/result.json", "scores/0123/score.json", "recipes/.x.made.json")
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        for name in (*local, *models, *shared):
            write_shard(study_path(address), name)
    names = BucketStore(address).objects().keys()
    assert {*shared} < names
    assert not {*local, *models} & names
    monkeypatch.setenv("ENCORE_BUCKET_MODELS", "true")
    with machine(monkeypatch, tmp_path / "b"):
        ingest_numbered(address, tmp_path, 3)
        for name in models:
            write_shard(study_path(address), name)
    assert {*models} < BucketStore(address).objects().keys()
    monkeypatch.delenv("ENCORE_BUCKET_MODELS")
    with machine(monkeypatch, tmp_path / "b"):  # what is there is not removed
        assert (study_path(address) / models[0]).is_file()


def test_that_models_stay_is_said(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        write_shard(study_path(address), "training/x/model/heads.safetensors")
    assert "ENCORE_BUCKET_MODELS=true" in caplog.text


# --- kills --------------------------------------------------------------------------------------


def num_pairs_seen(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of pairs that a new machine reads; 0 if there is no study."""
    with machine(monkeypatch, folder):
        if not study_path(address).exists():
            return 0
        return read_pairs(open_study(address)).num_rows


@pytest.mark.parametrize("num_changes", range(8))
def test_a_kill_at_any_change_leaves_no_study_or_a_whole_one(
    num_changes: int, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.MonkeyPatch.context() as limit:
        changed = fail_after(limit, num_changes)
        with killed_machine(patch, tmp_path / "a"):
            ingest_numbered(address, tmp_path, 3)
            send_all()
    # The archive, its 4 files, and its removal.
    assert num_pairs_seen(address, tmp_path / "b", monkeypatch) == (3 if num_changes else 0)
    assert len(changed) == min(num_changes, 6)
    if num_changes == 0:  # the machine that was killed sends what it has
        assert num_pairs_seen(address, tmp_path / "a", monkeypatch) == 3
        assert num_pairs_seen(address, tmp_path / "c", monkeypatch) == 3


@pytest.mark.parametrize("num_changes", range(7))
def test_a_kill_leaves_the_old_pairs_or_the_new_ones(
    num_changes: int, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
    with monkeypatch.context() as patch, pytest.MonkeyPatch.context() as limit:
        fail_after(limit, num_changes)
        with killed_machine(patch, tmp_path / "a"):
            ingest_numbered(address, tmp_path, 5, replace=True)
            send_all()
    # The archive, its 3 files, and its removal.
    assert num_pairs_seen(address, tmp_path / "b", monkeypatch) == (5 if num_changes else 3)


def send_all() -> None:
    """Wait until every file is sent, or sending has failed."""
    for mirror in open_mirrors():
        mirror._sender.close()


def test_the_new_file_of_a_shard_is_there_before_the_old_one_is_removed(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = SHARD.replace("0" * 32, "f" * 32)
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        folder = study_path(address)
        write_shard(folder)
    with pytest.MonkeyPatch.context() as limit, machine(monkeypatch, tmp_path / "a"):
        study_path(address)
        [mirror] = open_mirrors()
        changed = fail_after(limit, 99)
        with file_lock(mirror._lock):  # both changes are sent at once
            write_shard(folder, newer)
            remove_file(folder / SHARD)
    assert changed == [newer, SHARD]


def test_after_data_that_cannot_be_sent_its_manifest_is_not(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = BucketStore.put

    def put_no_data(store: BucketStore, name: str, *args: Any, **options: Any) -> Any:
        if name.endswith(".parquet"):
            raise EncoreError("the store does not answer")
        return put(store, name, *args, **options)

    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
    file = write_lines(tmp_path / "other.jsonl", numbered_pairs(5))
    with pytest.MonkeyPatch.context() as limit, killed_machine(monkeypatch, tmp_path / "a"):
        limit.setattr(BucketStore, "put", put_no_data)
        ingest(f"other={file}", out=address)
        send_all()
    assert "pairs/other.manifest.json" not in BucketStore(address).objects()


def test_the_next_command_sends_what_a_killed_one_did_not(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
    with pytest.MonkeyPatch.context() as limit:
        fail_after(limit, 0)
        with killed_machine(monkeypatch, tmp_path / "a"):
            write_shard(study_path(address))
            send_all()
    assert SHARD not in BucketStore(address).objects()
    with machine(monkeypatch, tmp_path / "a"):
        study_path(address)
    assert SHARD in BucketStore(address).objects()


def test_a_second_process_leaves_alone_what_the_first_has_to_send(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
    with pytest.MonkeyPatch.context() as limit, killed_machine(monkeypatch, tmp_path / "a"):
        folder = study_path(address)
        changed = fail_after(limit, 0)
        write_json(folder / "study.json", {"encore_study": 1, "newer": True})
        second = StudyMirror(address)  # the first one holds the lock, as another process would
        second.pull()
        second.close()
        assert b"newer" in (folder / "study.json").read_bytes()
    assert not changed


def test_while_the_store_is_away_the_work_goes_on(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        folder = study_path(address)
        with pytest.MonkeyPatch.context() as limit:
            fail_after(limit, 0)
            for index in range(3):
                write_shard(folder, SHARD.replace("shard-00000", f"shard-0000{index}"))
            monkeypatch.setattr(mirror_sender, "_PAUSE_SECONDS", 0.05)
            while "the work goes on" not in caplog.text:
                continue
        # The store answers again.
    assert sum("shard-" in name for name in BucketStore(address).objects()) == 3


def test_files_that_cannot_be_sent_at_all_are_an_error_and_kept(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
    with (
        pytest.MonkeyPatch.context() as limit,
        pytest.raises(EncoreError, match=r"1 new files are not in .* the same command sends"),
        machine(monkeypatch, tmp_path / "a"),
    ):
        folder = study_path(address)
        fail_after(limit, 0)
        write_json(folder / "notes.json", {})
    assert (folder / "notes.json").is_file()


def test_a_key_that_may_only_read_is_enough_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing_server(403, "AccessDenied", refuses="PUTDELETE") as url:
        set_s3_environment(monkeypatch, url)
        with machine(monkeypatch, tmp_path / "a"):
            assert not study_path("s3://bucket/study").exists()
        with (
            pytest.raises(InputError, match=r"cannot write ratings/0123/.driver.json"),
            machine(monkeypatch, tmp_path / "a"),
        ):
            claim_for_work(study_path("s3://bucket/study") / "ratings" / "0123")


def test_a_file_written_while_the_bucket_is_listed_is_kept(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
    objects_before = BucketStore(address).objects()
    with machine(monkeypatch, tmp_path / "a"):
        folder = study_path(address)

        def list_slowly(store: BucketStore, known_names: object) -> dict[str, ObjectMeta]:
            write_shard(folder)
            write_json(folder / "study.json", {"encore_study": 1, "newer": True})
            return objects_before

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BucketStore, "objects", list_slowly)
            patch.delattr(BucketStore, "download")  # nothing is read over what may be newer by now
            study_path(address)
        assert (folder / SHARD).is_file()
        assert b"newer" in (folder / "study.json").read_bytes()


# --- damage and other things --------------------------------------------------------------------


def test_a_damaged_copy_is_read_again_and_not_sent(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        folder = study_path(address)
        write_shard(folder)
    before = files_of(folder)
    (folder / SHARD).write_bytes(b"ro")
    (folder / "pairs/mine.parquet").unlink()
    (folder / "pairs/mine.manifest.json").write_text("{}", encoding="utf-8")
    with machine(monkeypatch, tmp_path / "a"):
        assert files_of(study_path(address)) == before
        write_json(folder / "notes.json", {})
    with machine(monkeypatch, tmp_path / "b"):
        assert files_of(study_path(address)) == files_of(folder)


def test_a_damaged_record_costs_only_reading_again(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        folder = study_path(address)
    before = files_of(folder)
    record = folder.parent.parent / "record.jsonl"
    record.write_bytes(b'{"x": 1}\n[]\n[1,2\n["pairs/mine.parquet", "tag"]\nnull\n\xff')
    with machine(monkeypatch, tmp_path / "a"):
        assert files_of(study_path(address)) == before


def test_a_change_here_is_lost_to_a_later_one_in_the_bucket_and_named(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        write_json(study_path(address) / "notes.json", {"pair": "old"})
    with pytest.MonkeyPatch.context() as limit:
        fail_after(limit, 0)
        with killed_machine(monkeypatch, tmp_path / "a"):
            write_json(study_path(address) / "notes.json", {"pair": "mine"})
            send_all()
    with machine(monkeypatch, tmp_path / "b"):
        write_json(study_path(address) / "notes.json", {"pair": "theirs"})
    with machine(monkeypatch, tmp_path / "a"):
        notes = json.loads((study_path(address) / "notes.json").read_bytes())
    assert notes == {"pair": "theirs"}
    assert "notes.json was changed in" in caplog.text


def test_a_folder_with_other_things_is_no_study(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BucketStore(address).put("holiday/picture.png", b"1")
    with machine(monkeypatch, tmp_path / "a"):
        for call in (lambda: study_path(address), lambda: ingest_numbered(address, tmp_path, 3)):
            with pytest.raises(InputError, match=r"other things are at this address \(holiday"):
                call()


def test_a_study_that_was_removed_is_not_made_again_from_a_copy(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
    store = BucketStore(address)
    for name in store.objects():
        store.remove(name)
    with (
        machine(monkeypatch, tmp_path / "a"),
        pytest.raises(InputError, match="it was removed from the bucket"),
    ):
        study_path(address)


def test_two_machines_cannot_make_the_same_study(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(EncoreError, match="another process made it in the meantime"),
        machine(monkeypatch, tmp_path / "a"),
    ):
        folder = study_path(address)
        BucketStore(address).put("study.json", b'{"encore_study": 1}')
        ingest_numbered(str(folder), tmp_path, 3)  # without another look at the bucket


def test_a_file_has_the_stores_time(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        shard = write_shard(study_path(address))
        os.utime(shard, (0, 0))
    with machine(monkeypatch, tmp_path / "b"):
        modified = (study_path(address) / SHARD).stat().st_mtime
    assert abs(modified - datetime.now(UTC).timestamp()) < 600


def test_a_folder_of_this_machine_serves_as_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"file://{tmp_path}/bucket/my-study"
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        claim_for_work(study_path(address) / "ratings" / "0123")
    with machine(monkeypatch, tmp_path / "b"):
        assert read_pairs(open_study(address)).num_rows == 3
        ingest_numbered(address, tmp_path, 5, replace=True)
    assert open_study(tmp_path / "bucket" / "my-study").labels == ("mine",)


def test_a_run_of_another_machine_is_refused_before_the_judge_starts(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoJudge(ScriptedJudge):
        def start(self) -> None:
            raise AssertionError("the judge was started")

    def job_of(judge: ScriptedJudge) -> Job:
        config = RatingConfig(judge=JudgeConfig(model="scripted"), shard_size=1)
        return open_run(open_study(study_path(address)), config, judge=judge).job()

    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 2)
        run_dir = job_of(ScriptedJudge()).run_dir
        name = run_dir.relative_to(study_path(address)).as_posix()
        store = BucketStore(address)
        store.put(f"{name}/.driver.json", b'{"host": "elsewhere"}')
        with pytest.raises(EncoreError, match="host elsewhere"):
            work_through(job_of(NoJudge()))
        store.remove(f"{name}/.driver.json")
        assert work_through(job_of(ScriptedJudge())).count("rated") == 2
        store.put(f"{name}/.driver.json", b'{"host": "elsewhere"}')
        assert work_through(job_of(NoJudge())).count("reused") == 2  # nothing is left to do


def test_a_run_that_was_taken_over_stops(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(monkeypatch, tmp_path / "a"):
        ingest_numbered(address, tmp_path, 3)
        folder = study_path(address)
        claim_for_work(folder / "ratings" / "0123")
        [claim] = open_mirrors()[0]._claims.values()
        claim.is_lost = True
        write_shard(folder, "ratings/4567/took-00000.json")
        with pytest.raises(EveryShardError, match="another process took over this run"):
            write_shard(folder)
    assert (folder / SHARD).is_file()
