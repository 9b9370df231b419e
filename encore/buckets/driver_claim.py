"""The claim of one process on a run in a bucket: a second one is refused by name.

The claim is a small object beside the run. Its holder writes it again now and then. Who finds a
claim compares the time at which it was last written with the time of an object that it writes
itself: both are of the store's clock, so a machine whose clock is wrong does no harm.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psutil

from encore.buckets.bucket_store import BucketStore
from encore.core.errors import EncoreError
from encore.core.leftovers import this_machine, unique_suffix

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult

#: The holder writes its claim again after this time. A claim ends when that did not happen for
#: `EXPIRY`, for which a network may be away.
RENEWAL_SECONDS = 30.0
EXPIRY = timedelta(minutes=3)


class DriverClaim:
    """One process's claim on a run's folder in a bucket, held until `release`.

    Attributes:
        is_lost: True since another process took the claim.
        lost_error: The message that says so.
    """

    def __init__(self, store: BucketStore, folder: str, *, part: str = "") -> None:
        """Take the claim, and begin to renew it.

        Args:
            store: The study's bucket.
            folder: Name of the run's folder in it.
            part: Part of the run that has a claim of its own; empty for all of it.

        Raises:
            EncoreError: Another process holds the claim, or the bucket cannot be written.
        """
        self.is_lost = False
        self._store, self._folder = store, folder
        self.lost_error = (
            f"{store.url}/{folder}: another process took over this run, because the "
            f"store had no sign of life of this one for {EXPIRY.seconds // 60} minutes; finished "
            "shards are kept; run the same command again when the other one has ended"
        )
        self._name = f"{folder}/.driver{part and f'-{part}'}.json"
        holder = {
            "host": socket.gethostname(),
            "machine": this_machine(),
            "process": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "token": unique_suffix(),
        }
        self._content = json.dumps(holder).encode()
        self._written = self._take()
        self._is_released = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="driver-claim")
        self._thread.start()

    def release(self) -> None:
        """End the claim, so that the next process need not wait."""
        self._is_released.set()
        self._thread.join()
        with suppress(EncoreError, OSError):
            if not self.is_lost:
                self._store.remove(self._name)

    def _take(self) -> PutResult:
        """Write the claim if there is none, or if its holder is dead."""
        claim = self._store.head(self._name)
        if claim is not None:
            self._refuse_living_holder(claim)
        try:
            return self._store.put(
                self._name, self._content, only_new=claim is None, replaces=claim
            )
        except (FileExistsError, FileNotFoundError) as error:
            raise EncoreError(
                f"{self._store.url}/{self._folder}: another process has just begun to work on "
                "this run; wait for it, then run this again"
            ) from error

    def _refuse_living_holder(self, claim: ObjectMeta) -> None:
        """Refuse the run if a claim's holder may be alive.

        Raises:
            EncoreError: The host, the process, the time to wait.
        """
        try:
            holder = dict(json.loads(self._store.read(self._name)))
        except (FileNotFoundError, ValueError, TypeError):  # released meanwhile, or unreadable
            holder = {}
        age = self._age_of(claim)
        if age < EXPIRY and not _is_dead(holder):
            raise EncoreError(
                f"{self._store.url}/{self._folder}: another process works on this run (host "
                f"{holder.get('host', 'unknown')}, process {holder.get('process', 'unknown')}, "
                f"since {holder.get('since', 'unknown')}, last sign of life "
                f"{max(0, int(age.total_seconds()))} s ago); wait for it; if it is dead, run this "
                f"again in {int((EXPIRY - age).total_seconds()) + 1} s"
            )

    def _age_of(self, claim: ObjectMeta) -> timedelta:
        """Return the time since a claim was written, by the store's clock."""
        probe = f"{self._folder}/.driver-time-{unique_suffix()}"
        self._store.put(probe, b"")
        now = self._store.head(probe)
        self._store.remove(probe)
        return now["last_modified"] - claim["last_modified"] if now else timedelta(0)

    def _renew(self) -> None:
        while not self._is_released.wait(RENEWAL_SECONDS):
            try:
                self._written = self._store.put(self._name, self._content, replaces=self._written)
            except (FileExistsError, FileNotFoundError):
                self.is_lost = True
                return
            except EncoreError:  # the store is away: the next attempt may succeed
                continue


def _is_dead(holder: Mapping[str, Any]) -> bool:
    """Return True if a claim's holder was a process of this machine, and has ended."""
    is_of_this_machine = holder.get("machine") == this_machine()
    return is_of_this_machine and not psutil.pid_exists(holder["process"])
