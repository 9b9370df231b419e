"""An export goes to a hub through its own client: whole, private, and without showing a token."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from encore.errors import EncoreError, InputError
from encore.export import export_model
from encore.export.push import push_export
from tests.export.mini_hub import COMMIT, running_hub
from tests.export.opened import WEIGHTS, opened_model

SECRET = "hf_" + "S3cret" * 5


@pytest.fixture(autouse=True)
def reachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run offline; the hub of these tests is on this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", SECRET)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push") / "my-model"
    export_model(opened_model(), out=folder, weights=WEIGHTS)
    return folder


def test_every_file_arrives_in_a_private_repository(folder):
    with running_hub() as hub:
        pushed = push_export(folder, repo_id="team/model", api=HfApi(endpoint=hub.endpoint))
    assert hub.files["team/model"] == {path.name: path.read_bytes() for path in folder.iterdir()}
    [created] = hub.created
    assert (created["organization"], created["name"]) == ("team", "model")
    assert created["visibility"] == "private"
    assert (pushed.repo_id, pushed.commit) == ("team/model", COMMIT)
    assert pushed.url.endswith(f"/team/model/commit/{COMMIT}")
    assert hub.tokens == {f"Bearer {SECRET}"}  # the client's own, from the environment


STALE = (
    *("model-00001-of-00002.safetensors", "pytorch_model.bin", "model.pt", "old.pth"),
    *("adapter_config.json", "adapter_model.safetensors", "generation_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "tokenizer.model", "chat_template.json"),
    "additional_chat_templates/tool.jinja",
)


def test_files_of_an_earlier_export_do_not_stay_to_contradict_the_new_ones(folder):
    with running_hub() as hub:
        old = dict.fromkeys((*STALE, "encore_export.json"), b"old") | {"notes.md": b"mine"}
        hub.files["team/model"] = dict(old)
        push_export(folder, repo_id="team/model", api=HfApi(endpoint=hub.endpoint))
    assert sorted(hub.deleted) == sorted(STALE)
    assert hub.files["team/model"]["notes.md"] == b"mine"
    assert set(hub.files["team/model"]) == {
        *(path.name for path in folder.iterdir()),
        "notes.md",
    }


def test_a_repository_of_something_else_is_left_alone(folder):
    with running_hub() as hub:
        old = {"model.safetensors": b"mine", "README.md": b"mine", ".gitattributes": b""}
        hub.files["team/model"] = dict(old)
        with pytest.raises(InputError, match=r"something else in it .*model\.safetensors"):
            push_export(folder, repo_id="team/model", api=HfApi(endpoint=hub.endpoint))
        assert hub.files["team/model"] == old
        # What a hub puts into a new one is nothing.
        hub.files["team/model"] = {"README.md": b"", ".gitattributes": b""}
        push_export(folder, repo_id="team/model", api=HfApi(endpoint=hub.endpoint))
    assert "encore_export.json" in hub.files["team/model"]


def test_a_refusal_is_one_line_that_keeps_the_token_to_itself(folder):
    with (
        running_hub(refusal=f"token {SECRET} may not\nwrite here") as hub,
        pytest.raises(EncoreError, match="the hub did not take it") as caught,
    ):
        push_export(folder, repo_id="team/model", api=HfApi(endpoint=hub.endpoint))
    message = str(caught.value)
    assert SECRET not in message
    assert "\n" not in message
    assert str(folder) in message  # it is complete, and can be pushed again


def test_without_a_network_the_export_is_said_to_be_complete(folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoreError, match=r"offline mode is enabled.* is complete"):
        push_export(folder, repo_id="team/model")


def test_only_an_export_is_uploaded(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with running_hub() as hub, pytest.raises(InputError, match="it is not an export"):
        push_export(tmp_path, repo_id="team/model", api=HfApi(endpoint=hub.endpoint))
    assert hub.created == []
