"""A judge's files are identified by their content, and unusable ones are refused in one line."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from encore.core import number_formats
from encore.core.errors import JudgeUnavailableError
from encore.core.model_files import ModelFinder
from encore.judges import BACKENDS, open_judge
from encore.judges.base import Decoding
from encore.judges.judge_options import JudgeConfig
from encore.judges.local_model import LocalJudge
from tests.golden.command_line import encore
from tests.worlds.models import edit_json, edit_tensors

FINDER = ModelFinder(name="judge", error=JudgeUnavailableError)


@pytest.fixture
def folder(tiny_judge: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_judge, tmp_path / "my-judge"))


def opened(folder: Path | str, **config: object) -> LocalJudge:
    config = {"model": str(folder), "backend": "transformers", **config}
    judge = open_judge(JudgeConfig.model_validate(config))
    assert isinstance(judge, LocalJudge)
    return judge


def test_a_folder_is_identified_by_its_content_not_by_its_path(folder, tmp_path):
    first = FINDER.find(str(folder))
    assert first.name == "my-judge"
    (folder / "README.md").write_text("hello")
    moved = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "my-judge"))
    assert FINDER.find(str(moved)).revision == first.revision
    edit_json(moved / "generation_config.json", temperature=0.7)
    assert FINDER.find(str(moved)).revision != first.revision


def test_a_change_deep_inside_a_large_file_is_another_judge(folder):
    weights = folder / "model.safetensors"
    with weights.open("wb") as file:
        file.truncate(1100 * 2**20)  # sparse: it takes no disk space
    before = FINDER.find(str(folder)).revision
    with weights.open("r+b") as file:
        file.seek(500 * 2**20)
        file.write(b"\x01" * 16 * 2**20)  # one matrix of 2,048 x 4,096 in bfloat16
    assert FINDER.find(str(folder)).revision != before


@pytest.mark.parametrize(
    ("features", "torch", "dtype"),
    [
        ("fpu avx2", "2.13.0+cpu", "float32"),
        ("fpu avx512_bf16", "2.13.0+cpu", "bfloat16"),
        ("fpu avx2", "2.13.0", "bfloat16"),  # of CUDA: there may be a GPU
    ],
)
def test_a_processor_without_units_for_a_judges_format_loads_float32(
    folder, tmp_path, monkeypatch, caplog, features, torch, dtype
):
    edit_json(folder / "config.json", dtype="bfloat16")
    (tmp_path / "cpuinfo").write_text(f"processor: 0\nflags\t\t: {features}\n")
    monkeypatch.setattr(number_formats, "_PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(number_formats, "installed_version", lambda _: torch)
    assert opened(folder).identity.dtype == dtype
    assert ("float32, because this processor has no units" in caplog.text) == (dtype == "float32")
    assert opened(folder, dtype="bfloat16").identity.dtype == "bfloat16"


def test_a_gguf_file_and_its_folder_are_refused_with_both_ways_to_use_them(tmp_path):
    (tmp_path / "judge.gguf").touch()
    for model in (tmp_path, tmp_path / "judge.gguf"):
        with pytest.raises(
            JudgeUnavailableError, match=r"judge\.gguf is a GGUF.*--backend http.*sa"
        ):
            FINDER.find(str(model))


@pytest.mark.parametrize("model", ["./no-such-folder", "a/b/c", "j/nosuch"])
def test_a_missing_path_is_not_looked_up_on_the_hub(model, tmp_path, monkeypatch):
    """``j/nosuch`` looks like a hub id, but ``j`` is a folder here."""
    (tmp_path / "j").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JudgeUnavailableError, match="no such file or folder"):
        opened(model)
    for command in (
        *("score s --model", "benchmark s --model", "train s --backbone", "serve --port 0"),
        *("judge --out new --judge", "export --out new"),
    ):  # the parser and this check are all that runs: no data set and no package is loaded
        assert "no such file or folder; expected a folder" in encore(*command.split(), model).err
    with pytest.raises(
        JudgeUnavailableError, match="no such folder here, and no model the hub"
    ) as caught:
        opened("nobody/no-such-model")
    assert "\n" not in str(caught.value)


def test_dtype_and_context_come_from_the_model_up_to_8192_or_from_the_options(folder):
    edit_json(folder / "config.json", dtype="float32", max_position_embeddings=131_072)
    default, set_by_options = opened(folder), opened(folder, dtype="bfloat16", max_model_len=20_000)
    assert (default.dtype, default.max_model_len) == ("float32", 8192)
    assert (set_by_options.dtype, set_by_options.max_model_len) == ("bfloat16", 20_000)
    with pytest.raises(JudgeUnavailableError, match="131072"):
        opened(folder, max_model_len=200_000)
    # Models for text and images keep their language model's settings one level down.
    nested = {"dtype": "bfloat16", "max_position_embeddings": 2048}
    edit_json(folder / "config.json", text_config=nested)
    default = opened(folder)
    assert (default.dtype, default.max_model_len) == ("bfloat16", 2048)


def _writes(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: os.truncate(folder / "model.safetensors", 9999), "cut short"),
        (_writes("model.safetensors", b"garbage!"), "no safetensors"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no \*.safetensors weights"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (_writes("config.json", b"[]"), "my-judge.*expected an object"),
        (_writes("config.json", b"{"), "my-judge.*no config.json that can be read"),
        (_writes("config.json", b'{"dtype": "int3"}'), "my-judge.*int3"),
    ],
)
def test_damaged_files_are_refused_before_anything_is_loaded(folder, damage, message, monkeypatch):
    damage(folder)
    monkeypatch.setattr(
        "encore.judges.local_model.load_tokenizer", lambda _: pytest.fail("tokenizer loaded")
    )
    for backend in set(BACKENDS) - {"http"}:
        with pytest.raises(JudgeUnavailableError, match=message) as caught:
            opened(folder, backend=backend)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"revision": "main"}, "revision"),
        ({"backend": "transformers", "engine_args": {"a": 1}}, "belong to the vLLM backend"),
        ({"backend": "vllm", "engine_args": {"trust_remote_code": "x"}}, "trust_remote_code"),
        ({"backend": "vllm", "engine_args": {"dtype": "x"}}, "dtype"),
        ({"backend": "vllm", "engine_args": {"tensor_parallel_size": True}}, "whole number"),
    ],
)
def test_options_that_do_not_fit_the_judge_are_refused(folder, config, message):
    with pytest.raises(JudgeUnavailableError, match=message):
        opened(folder, **config)


def test_a_missing_tokenizer_or_a_template_that_raises_is_refused(folder):
    for path in folder.glob("chat_template*"):
        path.write_text("{{ raise_exception('no user turns here') }}")
    with pytest.raises(JudgeUnavailableError, match="no user turns here"):
        opened(folder)
    edit_json(folder / "tokenizer_config.json", chat_template=None)
    for path in folder.glob("chat_template*"):
        path.unlink()
    with pytest.raises(JudgeUnavailableError, match="no chat template"):
        opened(folder)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(JudgeUnavailableError, match="tokenizer does not load"):
        opened(folder)


def test_missing_weights_are_named_and_not_initialised_at_random(folder):
    edit_tensors(
        folder / "model.safetensors", lambda t: t.pop("model.layers.0.self_attn.q_proj.weight")
    )
    with pytest.raises(JudgeUnavailableError, match=r"1 weights missing.*q_proj"):
        opened(folder).start()


def test_code_in_a_models_folder_is_not_run(folder, tmp_path, monkeypatch):
    """A "yes" on the terminal changes nothing, because nobody is asked."""
    marker = tmp_path / "it-ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    classes = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    edit_json(folder / "config.json", auto_map=classes)
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with contextlib.suppress(JudgeUnavailableError):  # it may be refused or ignored
        opened(folder).start()
    assert not marker.exists()


def test_penalties_in_a_models_generation_config_do_not_change_replies(folder):
    prompts = [[1, 3, *range(10, 10 + length), 2, 4] for length in range(20, 60)]

    def replies() -> list[str]:
        answered = opened(folder).reply(
            prompts, decoding=Decoding(max_reply_tokens=16), on_progress=lambda _: None
        )
        return [reply.text for reply in answered]

    before = replies()
    edit_json(folder / "generation_config.json", repetition_penalty=1.9)
    assert replies() == before


def test_a_package_that_transformers_lacks_is_named_and_not_the_files(folder, monkeypatch):
    """Its modules are read late, and their errors name a class of its own."""

    def fail(*_arguments: object, **_options: object) -> None:
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'LlamaConfig'") from error

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
    with pytest.raises(JudgeUnavailableError, match="cannot import a package") as caught:
        opened(folder)
    assert "(RuntimeError: operator torchvision::nms does not exist)" in str(caught.value)
    assert "beside the weights" not in str(caught.value)
