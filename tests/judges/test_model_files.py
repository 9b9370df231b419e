"""A judge is found, identified by its content and refused with one clear line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from encore.config import JudgeConfig
from encore.errors import JudgeUnavailableError
from encore.judges import BACKENDS, open_judge
from encore.judges.model_files import find_model, resolved_dtype, resolved_max_model_len


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the outward form of a model."""
    folder = tmp_path / "my-judge"
    folder.mkdir()
    config = {"dtype": "float32", "max_position_embeddings": 131_072}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def test_a_folder_is_identified_by_content_not_by_place(folder, tmp_path):
    first = find_model(JudgeConfig(model=str(folder)))
    moved = tmp_path / "elsewhere" / "my-judge"
    shutil.copytree(folder, moved)
    assert find_model(JudgeConfig(model=str(moved))).revision == first.revision
    assert first.name == "my-judge"
    (moved / "model.safetensors").write_bytes(b"weightz")
    assert find_model(JudgeConfig(model=str(moved))).revision != first.revision


def test_a_readme_beside_the_weights_changes_nothing(folder):
    before = find_model(JudgeConfig(model=str(folder))).revision
    (folder / "README.md").write_text("hello")
    assert find_model(JudgeConfig(model=str(folder))).revision == before


@pytest.mark.parametrize(
    ("missing", "message"),
    [("model.safetensors", "no \\*.safetensors weights"), ("config.json", "no config.json")],
)
def test_an_incomplete_folder_is_refused(folder, missing, message):
    (folder / missing).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(JudgeUnavailableError, match=message):
        find_model(JudgeConfig(model=str(folder)))


@pytest.mark.parametrize("model", ["./no-such-folder", "/no/such/folder", "a/b/c", "j/nosuch"])
def test_a_path_that_is_not_there_is_not_taken_for_a_hub_id(model, tmp_path, monkeypatch):
    """F7: ``j`` is a folder here."""
    (tmp_path / "j").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JudgeUnavailableError, match="no such folder"):
        find_model(JudgeConfig(model=model))


def test_a_hub_id_without_a_hub_is_one_clear_error():
    with pytest.raises(
        JudgeUnavailableError, match="neither a folder nor a model the hub"
    ) as caught:
        find_model(JudgeConfig(model="nobody/no-such-model"))
    assert "\n" not in str(caught.value)


def test_a_revision_belongs_to_a_hub_id(folder):
    with pytest.raises(JudgeUnavailableError, match="revision"):
        find_model(JudgeConfig(model=str(folder), revision="main"))


def test_the_judge_is_loaded_in_the_format_it_declares(folder):
    model = find_model(JudgeConfig(model=str(folder)))
    assert resolved_dtype(JudgeConfig(model="x"), model) == "float32"
    assert resolved_dtype(JudgeConfig(model="x", dtype="bfloat16"), model) == "bfloat16"


def test_the_context_is_the_models_own_up_to_8192_and_never_more_than_its_own(folder):
    model = find_model(JudgeConfig(model=str(folder)))
    assert resolved_max_model_len(JudgeConfig(model="x"), model) == 8192
    assert resolved_max_model_len(JudgeConfig(model="x", max_model_len=20_000), model) == 20_000
    with pytest.raises(JudgeUnavailableError, match="131072"):
        resolved_max_model_len(JudgeConfig(model="x", max_model_len=200_000), model)


def test_a_change_deep_inside_a_large_file_is_another_judge(folder):
    weights = folder / "model.safetensors"
    with weights.open("wb") as file:
        file.truncate(1100 * 2**20)  # sparse: takes no room
    before = find_model(JudgeConfig(model=str(folder))).revision
    with weights.open("r+b") as file:
        file.seek(500 * 2**20)
        file.write(b"\x01" * 16 * 2**20)  # one matrix of 2,048 x 4,096 in bfloat16
    assert find_model(JudgeConfig(model=str(folder))).revision != before


def test_settings_of_a_nested_language_model_count(folder):
    nested = {"text_config": {"dtype": "bfloat16", "max_position_embeddings": 2048}}
    (folder / "config.json").write_text(json.dumps(nested))
    model = find_model(JudgeConfig(model=str(folder)))
    assert resolved_dtype(JudgeConfig(model="x"), model) == "bfloat16"
    assert resolved_max_model_len(JudgeConfig(model="x"), model) == 2048


@pytest.mark.parametrize("content", ["[]", "{", "null", '{"dtype": "int3"}'])
def test_an_odd_config_is_one_clear_error(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(JudgeUnavailableError, match="my-judge"):
        open_judge(JudgeConfig(model=str(folder)))


@pytest.mark.parametrize("value", ["abc", 0, True, 1.5])
def test_a_number_of_devices_is_a_whole_number(folder, value):
    with pytest.raises(JudgeUnavailableError, match="tensor_parallel_size"):
        open_judge(JudgeConfig(model=str(folder), engine_args={"tensor_parallel_size": value}))


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_a_folder_without_a_tokenizer_is_refused_by_every_backend(folder, backend):
    with pytest.raises(JudgeUnavailableError, match="tokenizer"):
        open_judge(JudgeConfig(model=str(folder), backend=backend))


@pytest.mark.parametrize("name", ["trust_remote_code", "load_format", "dtype", "model"])
def test_unsafe_and_own_engine_arguments_are_refused(folder, name):
    with pytest.raises(JudgeUnavailableError, match=name):
        open_judge(JudgeConfig(model=str(folder), engine_args={name: "x"}))
