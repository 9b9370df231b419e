"""The folder of a study in a bucket: its address, its objects through obstore, its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.core.bucket_addresses import ADDRESS, shown_address
from encore.core.errors import EncoreError, InputError
from encore.core.extras import require_packages

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult
    from obstore.store import ObjectStore

#: Variables from which the library takes the keys of each kind of bucket.
CREDENTIALS: Mapping[str, str] = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION (and AWS_SESSION_TOKEN)",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "file": "",
}
_PAGE_SIZE = 1000
_NUM_LISTERS = 16
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
#: Limits of a connection, of silence, and of one request, which may read a model of many GB.
_LIMITS: Any = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "6h"}
_ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")

#: Patterns of the library's texts. Where it finds no key, it asks a cloud's own service for one.
_NO_BUCKET = r"<Code>(NoSuchBucket|ContainerNotFound|InvalidBucketName)<"
_NO_KEY = (
    r"(?s)\A(?!.*<Code>).*(169\.254\.|metadata\.google|token request|must be specified|Missing"
    r"|service account file|Invalid Access Key)"
)
_DENIED = (
    r"\A(PermissionDenied|Unauthenticated)Error|status code: 40[13]"
    r"|<Code>(AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|AllAccessDisabled)<"
)
_AWAY = (
    r"(?s)status code: (5\d\d|429)"
    r"|\A(?!.*status code).*(error sending request|HTTP error|timed out)"
)
#: What refuses every request, by pattern: the first one that fits.
_REFUSALS: Mapping[str, str] = {
    _NO_BUCKET: "there is no such bucket; correct its name, or create it first",
    r"<Code>(ExpiredToken\w*|TokenRefreshRequired|RequestExpired)<": (
        "the key has expired; set a new one ({variables})"
    ),
    r"<Code>RequestTimeTooSkewed<": "the store refuses this machine's clock; set the time right",
    r"\bBadScheme\b": (
        "the endpoint begins with http:, so keys and data would not be encrypted; give an https: "
        "address, or set AWS_ALLOW_HTTP=true for a store on this machine"
    ),
    _NO_KEY: "no key for the bucket was found; set {variables}",
    _DENIED: (
        "cannot {action}: the store refuses the key ({reason}); give it the right to, or set "
        "another one ({variables})"
    ),
}
#: Reason of any other error: the store's code, its status, or an error of this machine.
_REASON = r"(?s).*<Code>(\w+)</Code>|.*status code: (\d{3})|.*\(os error (\d+)\)"


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

    def objects(self, known_names: Iterable[str] = ()) -> dict[str, ObjectMeta]:
        """Return every object by its name.

        Args:
            known_names: Names that are probably there. A store lists a thousand in one request; in
                S3 they say where requests that are made at once can begin.
        """
        starts = sorted(known_names)[_PAGE_SIZE - 1 :: _PAGE_SIZE] if self.url[:3] == "s3:" else []
        with self._errors("list it"), ThreadPoolExecutor(_NUM_LISTERS) as pool:
            parts = pool.map(self._objects_between, [None, *starts], [*starts, None])
            return {meta["path"]: meta for part in parts for meta in part}

    def head(self, name: str) -> ObjectMeta | None:
        """Return an object without its content; None if it does not exist."""
        try:
            with self._errors(f"read {name}"):
                return self._store.head(name)
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        """Return an object's content.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with self._errors(f"read {name}"):
            return bytes(self._store.get(name).bytes())

    def download(self, name: str, path: Path) -> None:
        """Write an object's content to a file.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with self._errors(f"read {name}"), path.open("wb") as file:
            for chunk in self._store.get(name):
                file.write(chunk)

    def put(
        self,
        name: str,
        content: Path | bytes,
        *,
        only_new: bool = False,
        replaces: Mapping[str, Any] | None = None,
    ) -> PutResult:
        """Write an object.

        Args:
            name: Name of the object.
            content: Its bytes, or the file that has them.
            only_new: True refuses to replace an object.
            replaces: What an earlier `put` or `head` returned: that content must still be there. A
                folder of this machine cannot compare it.

        Raises:
            FileExistsError: The object is there, or not as ``replaces`` says.
        """
        mode: Any = "create" if only_new else "overwrite"
        if replaces is not None and not self.url.startswith("file:"):
            mode = {key: replaces[key] for key in ("e_tag", "version") if replaces[key]}
        with self._errors(f"write {name}"):
            return self._store.put(name, content, mode=mode)

    def remove(self, name: str) -> None:
        """Remove an object if it is there."""
        try:
            with self._errors(f"remove {name}"):
                self._store.delete(name)
        except FileNotFoundError:
            return

    def _objects_between(self, start: str | None, end: str | None) -> list[ObjectMeta]:
        """Return the objects after one name, up to another one; only S3 lists them in order."""
        objects: list[ObjectMeta] = []
        for page in self._store.list(offset=start, chunk_size=_PAGE_SIZE):
            objects += [meta for meta in page if end is None or meta["path"] <= end]
            if end is not None and any(meta["path"] >= end for meta in page):
                break
        return objects

    @cached_property
    def _store(self) -> ObjectStore:
        from obstore.store import from_url

        if self.url.startswith("file:"):
            try:
                Path(self.url.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EncoreError(
                    f"{self.url}: the folder cannot be made ({error.strerror}); name another one"
                ) from error
            return from_url(self.url)
        allows_http = any(os.environ.get(name, "").lower() in ("1", "true") for name in _ALLOW_HTTP)
        client_options: Any = {**_LIMITS, "allow_http": allows_http}
        store: ObjectStore = from_url(
            self.url, client_options=client_options, retry_config=_RETRIES
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
            if re.search(_NO_BUCKET, str(error)) is None:
                raise
            raise _store_error(self.url, action, error) from None
        except exceptions.BaseError as error:
            is_away = re.search(_AWAY, str(error)) is not None
            cause = ConnectionError("the store does not answer") if is_away else None
            raise _store_error(self.url, action, error) from cause


def _store_error(url: str, action: str, error: Exception) -> EncoreError:
    """Return the error of a store. The library's text is not shown: it may have a key in it."""
    kind = type(error).__name__
    text = f"{kind}: {error}"
    code, status, number = match.groups() if (match := re.match(_REASON, text)) else ("", "", "")
    reason = code or status or (os.strerror(int(number)) if number else kind)
    variables = CREDENTIALS[url.partition(":")[0]]
    for pattern, message in _REFUSALS.items():
        if re.search(pattern, text):
            refusal = message.format(action=action, reason=reason, variables=variables)
            return InputError(f"{url}: {refusal}")
    if re.search(_AWAY, text):
        return EncoreError(
            f"{url}: cannot {action}: the store does not answer{f' ({status})' if status else ''}; "
            "look at the network and the endpoint (AWS_ENDPOINT_URL), then run the command again"
        )
    return EncoreError(f"{url}: cannot {action} ({reason}); put this right and run it again")
