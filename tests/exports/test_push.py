"""An export is uploaded by the hub's client: in one commit, private, without showing a token."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from encore.core.errors import EncoreError, InputError
from encore.exports.push import push_export

SECRET = "hf_" + "S3cret" * 5
STALE = (
    *("model-00001-of-00002.safetensors", "pytorch_model.bin", "model.pt", "old.pth"),
    *("adapter_config.json", "generation_config.json", "special_tokens_map.json"),
    *("tokenizer.model", "chat_template.json", "additional_chat_templates/tool.jinja"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "encore_export.json").write_text("{}")
    return tmp_path


@pytest.fixture
def hub() -> Mock:
    """Return a mock of the methods of `huggingface_hub.HfApi` that a push calls."""
    hub = Mock(spec=["create_repo", "list_repo_files", "upload_folder"])
    hub.create_repo.side_effect = lambda repo_id, **_: SimpleNamespace(repo_id=repo_id)
    hub.list_repo_files.return_value = ["README.md", ".gitattributes"]  # of a new one
    hub.upload_folder.return_value = SimpleNamespace(commit_url="https://hub/commit/1", oid="1")
    return hub


def test_an_export_replaces_an_earlier_one_in_a_private_repository(folder, hub):
    assert push_export(folder, repo_id="team/model", api=hub)["url"] == "https://hub/commit/1"
    hub.list_repo_files.return_value = [*STALE, "encore_export.json", "notes.md"]
    push_export(folder, repo_id="team/model", api=hub)
    assert hub.create_repo.call_args.kwargs["private"]
    upload = hub.upload_folder.call_args.kwargs
    assert (upload["folder_path"], upload["repo_id"]) == (folder, "team/model")
    # Files of the earlier export that contradict the new one are deleted.
    for name in (*STALE, "notes.md"):
        is_deleted = any(fnmatch(name, pattern) for pattern in upload["delete_patterns"])
        assert is_deleted == (name in STALE), name


def test_a_repository_or_folder_with_other_content_is_refused(folder, hub):
    hub.list_repo_files.return_value.append("model.safetensors")
    with pytest.raises(InputError, match=r"something else in it .*model\.safetensors"):
        push_export(folder, repo_id="team/model", api=hub)
    (folder / "encore_export.json").unlink()
    with pytest.raises(InputError, match="it is not an export"):
        push_export(folder, repo_id="team/model", api=hub)
    hub.create_repo.assert_called_once()
    hub.upload_folder.assert_not_called()


def test_a_refused_push_is_one_line_without_the_token(folder, hub):
    hub.upload_folder.side_effect = RuntimeError(f"token {SECRET} may not\nwrite here")
    with pytest.raises(EncoreError, match="the hub did not take it") as caught:
        push_export(folder, repo_id="team/model", api=hub)
    message = str(caught.value)
    assert SECRET not in message
    assert "\n" not in message
    assert str(folder) in message
