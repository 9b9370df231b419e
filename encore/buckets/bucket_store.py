"""The folder of a study in a bucket: its address, its objects through obstore, its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from encore.core.bucket_addresses import ADDRESS, shown_address
from encore.core.errors import EncoreError, InputError
from encore.core.extras import require_packages

if TYPE_CHECKING:
    from obstore.store import ObjectStore

#: Variables from which the library takes the keys of each kind of bucket.
CREDENTIALS: Mapping[str, str] = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION (and AWS_SESSION_TOKEN)",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "file": "",
}
#: Files up to this size are sent in one request.
_SMALL_BYTES = 16 * 2**20
_MAX_RETRIES = 5
_RETRY_TIMEOUT = timedelta(seconds=60)
#: Limits of a connection, of silence, and of one request, which may read a model of many GB.
_CLIENT_OPTIONS: Any = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "6h"}

#: A store does not say when it wrote something.
_UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled"}
_DENIALS = {"PermissionDeniedError", "UnauthenticatedError"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
#: Parts of errors about a machine without keys: the library asks a cloud's own service for them.
_NO_CREDENTIALS = re.compile(r"169\.254\.|metadata\.google|token request|must be specified|Missing")
_NO_ANSWER = re.compile(r"error sending request|HTTP error|timed out")


class BucketObject(NamedTuple):
    """One object of a bucket.

    Attributes:
        size: Number of bytes.
        e_tag: The store's tag of this content.
        modified: When it was written, by the store's clock.
        version: Number of this content, in stores that have numbers.
    """

    size: int
    e_tag: str | None
    modified: datetime
    version: str | None = None


def bucket_url(study: str | Path) -> str | None:
    """Return the address of a study in a bucket in its normal form; None for a local path.

    >>> bucket_url("s3://bucket/my-study/")
    's3://bucket/my-study'

    Raises:
        InputError: The scheme is unknown, or the address names no folder of a bucket.
    """
    if (match := ADDRESS.fullmatch(str(study))) is None:
        return None
    scheme, path = match[1].lower(), match[2]
    bucket, *folders = path.split("/") if scheme != "file" else ("", *path.split("/"))
    address = shown_address(study)
    if "@" in path or "?" in path:  # a key may be in it: it is not shown
        raise InputError(
            f"study {address}: the address has @ or ?; leave keys out of it, they are read from "
            f"{CREDENTIALS.get(scheme) or 'the environment'}"
        )
    if scheme not in CREDENTIALS:
        names = ", ".join(f"{name}://" for name in CREDENTIALS)
        raise InputError(
            f"study {address}: a bucket's address begins with one of {names}, not {scheme}://; "
            f"a folder of this name is ./{study}"
        )
    folders = [folder for folder in folders if folder]
    if not folders or {".", ".."} & {*folders} or not (bucket or scheme == "file"):
        raise InputError(
            f"study {address}: expected a bucket and a folder in it, e.g. {scheme}://"
            f"{'' if scheme == 'file' else 'bucket'}/my-study"
        )
    return f"{scheme}://{'/'.join((bucket, *folders))}"


class BucketStore:
    """The objects below an address. Their names are paths relative to it.

    Every error of the store becomes an `EncoreError` that names the address and the next step.
    """

    def __init__(self, url: str) -> None:
        """Take an address as `bucket_url` returns it. Nothing is asked yet.

        Raises:
            EncoreError: The library for buckets is not installed.
        """
        require_packages("obstore", work=f"a study at {url}")
        self.url = url

    def objects(self) -> dict[str, BucketObject]:
        """Return every object by its name."""
        folder = self._local_folder
        if folder is not None and not folder.is_dir():
            return {}
        with self._errors("list it"):
            return {
                meta["path"]: _object_of(meta) for batch in self._store.list() for meta in batch
            }

    def head(self, name: str) -> BucketObject | None:
        """Return an object without its content; None if it does not exist."""
        folder = self._local_folder
        if folder is not None and not folder.is_dir():
            return None
        try:
            with self._errors(f"read {name}"):
                return _object_of(self._store.head(name))
        except FileNotFoundError:
            return None

    def read(self, name: str, path: Path | None = None) -> bytes:
        """Return an object's content, or write it to a file and return nothing.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with self._errors(f"read {name}"):
            reply = self._store.get(name)
            if path is None:
                return bytes(reply.bytes())
            with path.open("wb") as file:
                for chunk in reply:
                    file.write(chunk)
        return b""

    def write(
        self, name: str, content: Path | bytes, *, replaces: BucketObject | None = None
    ) -> BucketObject:
        """Write an object, whatever is there.

        Args:
            name: Name of the object.
            content: Its bytes, or the file that has them.
            replaces: Content that must still be there, in stores that can compare it.

        Raises:
            FileExistsError: Another content is there than ``replaces``.
        """
        mode: Any = "overwrite"
        if replaces is not None and self._local_folder is None:
            tags = {"e_tag": replaces.e_tag, "version": replaces.version}
            mode = {key: tag for key, tag in tags.items() if tag}
        return self._put(name, content, mode)

    def create(self, name: str, content: Path | bytes) -> BucketObject:
        """Write an object that is not there yet.

        Raises:
            FileExistsError: It is there.
        """
        return self._put(name, content, "create")

    def copy(self, name: str, target: str) -> None:
        """Copy an object inside the bucket.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with self._errors(f"write {target}"):
            self._store.copy(name, target)

    def remove(self, name: str) -> None:
        """Remove an object if it is there."""
        try:
            with self._errors(f"remove {name}"):
                self._store.delete(name)
        except FileNotFoundError:
            return

    def _put(self, name: str, content: Path | bytes, mode: Any) -> BucketObject:
        if isinstance(content, Path) and (content.stat().st_size <= _SMALL_BYTES):
            content = content.read_bytes()
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        if (folder := self._local_folder) is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EncoreError(
                    f"{self.url}: the folder cannot be made ({error.strerror}); name another one"
                ) from error
        with self._errors(f"write {name}"):
            reply = self._store.put(name, content, mode=mode)
        return BucketObject(size, reply["e_tag"], _UNKNOWN_TIME, reply["version"])

    @property
    def _local_folder(self) -> Path | None:
        """Return the folder of an address ``file://``."""
        is_local = self.url.startswith("file:")
        return Path(self.url.removeprefix("file://")) if is_local else None

    @cached_property
    def _store(self) -> ObjectStore:
        from obstore.store import LocalStore, from_url

        if self._local_folder is not None:
            return LocalStore(self._local_folder)
        client_options: Any = {**_CLIENT_OPTIONS, "allow_http": _allows_http()}
        store: ObjectStore = from_url(
            self.url,
            client_options=client_options,
            retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": _RETRY_TIMEOUT},
        )
        return store

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Turn the library's errors into ours, and into Python's for names that are (not) there."""
        from obstore import exceptions

        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise FileExistsError(f"{self.url}: {action}") from error
        except FileNotFoundError as error:
            if _found(_CODE, str(error)) not in _NO_BUCKET:
                raise
            raise _error_of(self.url, action, error) from error
        except exceptions.BaseError as error:
            raise _error_of(self.url, action, error) from _network_cause(str(error))


def _allows_http() -> bool:
    """Return True if the environment allows a store without encryption.

    Raises:
        InputError: The endpoint has none, and the environment does not allow it.
    """
    variables = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
    is_allowed = any(os.environ.get(name, "").lower() in ("1", "true") for name in variables)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if os.environ.get(name, "").startswith("http:") and not is_allowed:
            raise InputError(
                f"{name} begins with http:, so keys and data would not be encrypted; give an "
                "https: address, or set AWS_ALLOW_HTTP=true for a store on this machine"
            )
    return is_allowed


def _object_of(meta: Mapping[str, Any]) -> BucketObject:
    return BucketObject(meta["size"], meta["e_tag"], meta["last_modified"], meta["version"])


def _found(pattern: re.Pattern[str], text: str) -> str:
    """Return what a pattern's group found in a text, or nothing."""
    match = pattern.search(text)
    return match[1] if match else ""


def _network_cause(text: str) -> ConnectionError | None:
    """Return the cause by which a caller sees that another attempt may succeed."""
    return ConnectionError("the store does not answer") if _is_away(text) else None


def _is_away(text: str) -> bool:
    """Return True if a store did not answer, or answered that it cannot now."""
    status = _found(_STATUS, text)
    return status.startswith("5") or status == "429" or bool(not status and _NO_ANSWER.search(text))


def _error_of(url: str, action: str, error: Exception) -> EncoreError:
    """Return the error of a store. The library's text is not shown: it may have a key in it."""
    text, scheme = unquote(str(error)), url.partition(":")[0]
    code, status = _found(_CODE, text), _found(_STATUS, text)
    system_error = os.strerror(int(_found(_OS_ERROR, text) or 0))
    kind = type(error).__name__
    is_denied = kind in _DENIALS or status in ("401", "403") or code in _REFUSED
    variables = CREDENTIALS[scheme]
    if code in _NO_BUCKET:
        return InputError(f"{url}: there is no such bucket; correct its name, or create it first")
    if code in _EXPIRED:
        return InputError(f"{url}: the key has expired; set a new one ({variables})")
    if code == "RequestTimeTooSkewed":
        return InputError(f"{url}: the store refuses this machine's clock; set the time right")
    if not code and _NO_CREDENTIALS.search(text):
        return InputError(f"{url}: no key for the bucket was found; set {variables}")
    if is_denied:
        return InputError(
            f"{url}: cannot {action}: the store refuses the key ({code or status or kind}); give "
            f"it the right to, or set another one ({variables})"
        )
    if _is_away(text):
        return EncoreError(
            f"{url}: cannot {action}: the store does not answer{f' ({status})' if status else ''}; "
            "look at the network and the endpoint (AWS_ENDPOINT_URL), then run the command again"
        )
    reason = code or status or (system_error if _OS_ERROR.search(text) else kind)
    return EncoreError(f"{url}: cannot {action} ({reason}); put this right and run it again")
