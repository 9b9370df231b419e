"""Read records from a data set on the Hugging Face hub, at one recorded commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from encore.core.errors import InputError
from encore.data.sources.raw_records import RawRecord

_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")


def resolve_commit(repo_id: str, revision: str | None) -> str:
    """The full commit id of a revision, after asking the hub that it exists.

    Args:
        repo_id: The data set, as OWNER/NAME.
        revision: A commit id (full, or its first seven digits or more), a branch, a tag, or None
            for the main branch.

    Raises:
        InputError: hub not reachable; no such repository or revision.
    """
    with _hub_errors(repo_id, revision):
        from huggingface_hub import HfApi

        api = HfApi()
        if revision is not None and _SHORT_COMMIT.fullmatch(revision):
            commits = api.list_repo_commits(repo_id, repo_type="dataset")
            found = [one.commit_id for one in commits if one.commit_id.startswith(revision)]
        else:
            found = [api.dataset_info(repo_id, revision=revision).sha or ""]
    if len(found) != 1 or not found[0]:
        raise InputError(
            f"{repo_id}: {len(found)} commits of the main branch start with {revision!r}, "
            "expected one; give the full commit id as @REVISION"
        )
    return found[0]


def stream_records(
    path: str, *, revision: str | None = None, split: str = "train", subset: str | None = None
) -> Iterator[RawRecord]:
    """Every record of a data set in order, streamed: memory does not grow with its size.

    Args:
        path: A hub id, or a local folder laid out like one.
        revision: Commit id (a local folder has none).
        split: ``train``, or several joined as ``train+test``.
        subset: Only this folder of the repository.

    Raises:
        InputError: not reachable; no such split or subset; damaged data.
    """
    with _hub_errors(path, revision):
        import datasets

        parts = (
            datasets.load_dataset(
                path, revision=revision, split=part.strip(), data_dir=subset, streaming=True
            )
            for part in split.split("+")
        )
        for number, record in enumerate(chain.from_iterable(parts), start=1):
            yield RawRecord(number=number, value=record)


@contextmanager
def _hub_errors(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turn what the hub libraries raise into one line that says what to do."""
    try:
        from datasets.exceptions import DatasetsError
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise InputError(
            f"{repo_id}: loading from the hub needs the package {error.name}; install it with "
            "pip install 'encore-reward[hub]', or give a local copy as FORMAT:PATH"
        ) from error
    # A hub that cannot be reached raises the error of the HTTP library underneath, as it is.
    http_errors = HfHubHTTPError.__bases__
    try:
        yield
    except (OSError, ValueError, DatasetsError, *http_errors) as error:
        where = f"{repo_id}@{revision}" if revision else repo_id
        problem = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
        raise InputError(
            f"{where}: loading from the Hugging Face hub failed ({problem[:300]}); check "
            "id, revision and network (HF_ENDPOINT names a mirror), or give a local copy as "
            "FORMAT:PATH"
        ) from error
