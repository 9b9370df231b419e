"""Upload an export to the Hugging Face hub, with the hub's own client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from encore.core.errors import EncoreError, InputError
from encore.model.backbone_options import EXPORT_FILE

#: Access tokens as hubs write them. They are cut from every error text of the client.
_TOKEN = re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{8,}|(?i:bearer)\s+\S+")

#: Files of an earlier export that readers would mix up with the new ones: surplus weight shards,
#: and other files that describe weights, tokens or the template.
_STALE_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth"),
    *("adapter_*", "generation_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("chat_template.json", "additional_chat_templates/*"),
)
#: Files that the hub puts into a new repository.
_FILES_OF_THE_HUB = frozenset((".gitattributes", "README.md"))


def push_export(folder: Path, *, repo_id: str, api: Any | None = None) -> dict[str, str]:
    """Upload an export in one commit; create the repository if there is none.

    The client takes the token from the environment (``HF_TOKEN``) or from `hf auth login`. It is
    neither stored nor shown here.

    Args:
        folder: Folder that `encore export` wrote.
        repo_id: ``owner/name``, or a name in your own account. A new repository is private.
        api: Client with the methods of `huggingface_hub.HfApi`. None: the real client.

    Returns:
        ``repo_id``, ``url`` of the commit, and ``commit``, which `revision=` takes for loading.

    Raises:
        InputError: The folder is not an export, or the repository holds something else.
        EncoreError: The hub refused the upload or could not be reached.
    """
    if not (folder / EXPORT_FILE).is_file():
        raise InputError(
            f"--push {repo_id}: {folder} holds no {EXPORT_FILE}, so it is not an export; only what "
            "`encore export` wrote and checked is uploaded"
        )
    if api is None:
        from huggingface_hub import HfApi

        api = HfApi()
    try:
        repo = api.create_repo(repo_id, repo_type="model", private=True, exist_ok=True)
        repo_id = repo.repo_id
        _refuse_strangers(repo_id, set(api.list_repo_files(repo_id, repo_type="model")))
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            repo_type="model",
            commit_message="Upload a reward model exported with ENCORE",
            delete_patterns=list(_STALE_FILES),
        )
    except InputError:
        raise
    except Exception as error:  # the hub's client may raise any error
        reason = _TOKEN.sub("…", " ".join(str(error).split()))[:300]
        raise EncoreError(
            f"--push {repo_id}: the hub did not take it ({type(error).__name__}: {reason}); the "
            f"export in {folder} is complete: check the name and `hf auth login`, then push again"
        ) from error
    return {"repo_id": repo_id, "url": str(commit.commit_url), "commit": str(commit.oid)}


def _refuse_strangers(repo_id: str, names: set[str]) -> None:
    """Raise InputError if a repository's files are no export: only an export is replaced."""
    strangers = sorted(names - _FILES_OF_THE_HUB)
    if strangers and EXPORT_FILE not in names:
        raise InputError(
            f"--push {repo_id}: this repository has something else in it than an export (no "
            f"{EXPORT_FILE}, but {', '.join(strangers[:3])}); name a new one, or empty it first"
        )
