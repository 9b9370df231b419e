"""Read records from a data set on the Hugging Face hub, at one recorded commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from encore.core.errors import InputError
from encore.core.extras import install_command
from encore.data.sources.raw_records import RawRecord

_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")


def resolve_commit(repo_id: str, revision: str | None) -> str:
    """Ask the hub for the full commit id of a revision.

    Args:
        repo_id: Id of the data set, OWNER/NAME.
        revision: A commit id (full, or at least its first seven digits), a branch, a tag, or None
            for the main branch.

    Raises:
        InputError: The hub cannot be reached, or it has no such repository or revision.
    """
    with _hub_errors(repo_id, revision):
        from huggingface_hub import HfApi

        api = HfApi()
        if revision is not None and _SHORT_COMMIT.fullmatch(revision):
            commits = api.list_repo_commits(repo_id, repo_type="dataset")
            ids = [commit.commit_id for commit in commits]
            commit_ids = [commit_id for commit_id in ids if commit_id.startswith(revision)]
        else:
            commit_ids = [api.dataset_info(repo_id, revision=revision).sha or ""]
    if len(commit_ids) != 1 or not commit_ids[0]:
        raise InputError(
            f"{repo_id}: {len(commit_ids)} commits of the main branch start with {revision!r}, "
            "expected one; give the full commit id as @REVISION"
        )
    return commit_ids[0]


def stream_records(
    path: str, *, revision: str | None = None, split: str = "train", subset: str | None = None
) -> Iterator[RawRecord]:
    """Stream every record of a data set in order, in constant memory.

    Args:
        path: Hub id, or a local folder with the same layout.
        revision: Commit id; None for a local folder.
        split: Split to read, e.g. ``train``, or several joined as ``train+test``.
        subset: Folder of the repository to read; None reads all of it.

    Raises:
        InputError: The hub cannot be reached, the split or subset does not exist, or the data are
            damaged.
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
    """Turn errors of the hub libraries into one line that says what to do."""
    try:
        from datasets.exceptions import DatasetsError
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise InputError(
            f"{repo_id}: no such folder here, and loading from the hub needs the package "
            f"{error.name}: "
            f"{install_command('datasets')}, or give a local copy as FORMAT:PATH"
        ) from error
    # If the hub cannot be reached, the error is that of the HTTP library.
    http_errors = HfHubHTTPError.__bases__
    try:
        yield
    except (OSError, ValueError, DatasetsError, *http_errors) as error:
        name = f"{repo_id}@{revision}" if revision else repo_id
        problem = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
        raise InputError(
            f"{name}: no such folder here, and loading from the Hugging Face hub failed "
            f"({problem[:300]}); check id, revision and network (HF_ENDPOINT names a "
            "mirror), or give a local copy as FORMAT:PATH"
        ) from error
