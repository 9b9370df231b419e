"""One process works on a run in a bucket; a second one is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo

import pytest

from encore.buckets import driver_claim
from encore.buckets.bucket_store import BucketStore
from encore.buckets.driver_claim import DriverClaim
from encore.core.errors import EncoreError
from tests.worlds.buckets import new_bucket, s3_server, set_s3_environment

pytestmark = pytest.mark.services

RUN = "ratings/0123"
CLAIM = f"{RUN}/.driver.json"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def store(server: str, monkeypatch: pytest.MonkeyPatch) -> BucketStore:
    set_s3_environment(monkeypatch, server)
    return BucketStore(f"{new_bucket(server)}/study")


def write_claim(store: BucketStore, **changes: object) -> None:
    """Write the claim of a process on another machine."""
    holder = {"host": "elsewhere", "machine": "00000000", "process": 7, "since": "noon"}
    store.put(CLAIM, json.dumps({**holder, **changes}).encode())


def test_a_second_process_is_refused_by_name_until_the_first_has_ended(store: BucketStore) -> None:
    claim = DriverClaim(store, RUN)
    with pytest.raises(EncoreError, match=rf"another process works .*process {os.getpid()}, since"):
        DriverClaim(store, RUN)
    DriverClaim(store, "ratings/4567").release()  # another run
    slices = [DriverClaim(store, RUN, part=f"{index}-2") for index in range(2)]
    with pytest.raises(EncoreError, match="another process works"):
        DriverClaim(store, RUN, part="1-2")
    for claim_on_slice in slices:
        claim_on_slice.release()
    claim.release()
    DriverClaim(store, RUN).release()
    assert not [name for name in store.objects() if "driver" in name]


def test_the_claim_of_another_machine_ends_by_the_clock_of_the_store(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WrongClock(datetime):
        """The clock of a machine that is years ahead."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> WrongClock:
            return cls(2100, 1, 1, tzinfo=tz)

    write_claim(store)
    monkeypatch.setattr(driver_claim, "datetime", WrongClock)
    with pytest.raises(EncoreError, match=r"host elsewhere, process 7, since noon.*again in 1\d\d"):
        DriverClaim(store, RUN)
    monkeypatch.setattr(driver_claim, "EXPIRY", timedelta(seconds=1))
    time.sleep(2.1)  # the store's times are whole seconds
    DriverClaim(store, RUN).release()


def test_the_claim_of_a_dead_process_of_this_machine_is_taken_at_once(store: BucketStore) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    write_claim(store, machine=driver_claim.this_machine(), process=process.pid)
    DriverClaim(store, RUN).release()


def test_an_unreadable_claim_counts_as_one(store: BucketStore) -> None:
    for content in (b"", b"[]", b"\xff"):
        store.put(CLAIM, content)
        with pytest.raises(EncoreError, match="host unknown, process unknown"):
            DriverClaim(store, RUN)


def test_a_claim_is_renewed_and_its_loss_is_seen(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_claim, "RENEWAL_SECONDS", 0.05)
    claim = DriverClaim(store, RUN)
    written = store.objects()[CLAIM]["last_modified"]
    deadline = time.monotonic() + 60
    while store.objects()[CLAIM]["last_modified"] == written:
        assert time.monotonic() < deadline
    assert not claim.is_lost
    write_claim(store)
    claim._thread.join(60)
    assert claim.is_lost
    claim.release()
    assert store.head(CLAIM) is not None  # the other process's claim stays
