"""An export goes to a hub through its own client: whole, private, and without showing a token."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from encore.errors import EncoreError, InputError
from encore.export.push import push_export
from encore.export.write_export import export_model
from tests.export.opened import WEIGHTS, opened_model

SECRET = "hf_" + "S3cret" * 5
STALE = (
    *("model-00001-of-00002.safetensors", "pytorch_model.bin", "model.pt", "old.pth"),
    *("adapter_config.json", "generation_config.json", "special_tokens_map.json"),
    *("tokenizer.model", "chat_template.json", "additional_chat_templates/tool.jinja"),
)


class Hub:
    """The part of `huggingface_hub.HfApi` that a push calls, over one repository in memory."""

    def __init__(self, *names: str, refusal: str = "") -> None:
        self.files, self.created, self.refusal = dict.fromkeys(names, b"old"), {}, refusal

    def create_repo(self, repo_id: str, **settings: Any) -> Any:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.created = settings
        return SimpleNamespace(repo_id=repo_id)

    def list_repo_files(self, _repo_id: str, *, repo_type: str) -> list[str]:
        assert repo_type == "model"
        return list(self.files)

    def upload_folder(self, *, folder_path: Path, delete_patterns: list[str], **_: Any) -> Any:
        self.files = {
            name: content
            for name, content in self.files.items()
            if not any(fnmatch(name, pattern) for pattern in delete_patterns)
        } | {path.name: path.read_bytes() for path in folder_path.iterdir()}
        return SimpleNamespace(commit_url="https://hub/commit/1", oid="1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push") / "my-model"
    export_model(opened_model(), out=folder, weights=WEIGHTS)
    return folder


def test_every_file_arrives_in_a_private_repository_and_replaces_an_earlier_export(folder):
    hub = Hub(*STALE, "encore_export.json", "notes.md")
    pushed = push_export(folder, repo_id="team/model", api=hub)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert hub.files == files | {"notes.md": b"old"}
    assert hub.created == {"repo_type": "model", "private": True, "exist_ok": True}
    assert pushed.url == "https://hub/commit/1"


def test_a_repository_of_something_else_is_left_alone(folder):
    hub = Hub("model.safetensors", "README.md", ".gitattributes")
    with pytest.raises(InputError, match=r"something else in it .*model\.safetensors"):
        push_export(folder, repo_id="team/model", api=hub)
    assert set(hub.files.values()) == {b"old"}
    # What a hub puts into a new one is nothing.
    push_export(folder, repo_id="team/model", api=Hub("README.md", ".gitattributes"))


def test_a_refusal_is_one_line_that_keeps_the_token_to_itself(folder):
    hub = Hub(refusal=f"token {SECRET} may not\nwrite here")
    with pytest.raises(EncoreError, match="the hub did not take it") as caught:
        push_export(folder, repo_id="team/model", api=hub)
    message = str(caught.value)
    assert SECRET not in message
    assert "\n" not in message
    assert str(folder) in message  # it is complete, and can be pushed again


def test_only_an_export_is_uploaded(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    hub = Hub()
    with pytest.raises(InputError, match="it is not an export"):
        push_export(tmp_path, repo_id="team/model", api=hub)
    assert hub.created == {}
