"""A judge whose files are wrong is refused: never run as code, never filled with random weights."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from encore.config import JudgeConfig
from encore.errors import JudgeUnavailableError
from encore.judges import open_judge
from tests.tiny_judge import make_tiny_judge


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_judge(tmp_path_factory.mktemp("judges") / "tiny")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "tiny"))


def start(folder: Path) -> None:
    open_judge(JudgeConfig(model=str(folder), backend="transformers")).start()


def replies(folder: Path, prompts: list[list[int]]) -> list[str]:
    judge = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    answered = judge.reply(prompts, max_reply_tokens=16, on_progress=lambda _: None)
    return [reply.text for reply in answered]


def test_missing_weights_are_named_and_not_made_up(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(JudgeUnavailableError, match=r"1 weights are missing.*q_proj"):
        start(folder)


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _without_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": None}))
    for template in folder.glob("chat_template*"):
        template.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "model.safetensors: it is cut short"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "empty or no safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"garbage!"), "no safetensors"),
        (_without_template, "no chat template"),
    ],
    ids=["cut", "empty", "garbage", "no-template"],
)
def test_what_an_engine_would_find_late_is_refused_at_once(folder, damage, message, monkeypatch):
    """F6: no tokenizer, engine or weights are loaded for it."""
    damage(folder)
    for backend in ("vllm_engine", "transformers_model"):
        monkeypatch.setattr(
            f"encore.judges.{backend}.load_tokenizer", lambda _: pytest.fail("tokenizer loaded")
        )
    for backend in ("vllm", "transformers"):
        with pytest.raises(JudgeUnavailableError, match=message) as caught:
            open_judge(JudgeConfig(model=str(folder), backend=backend))
        assert "\n" not in str(caught.value)


def test_a_folders_own_code_is_never_run(folder, tmp_path, monkeypatch):
    """Whatever is answered to a question on the terminal: there is no question."""
    marker = tmp_path / "it-ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    for name, entry in (
        ("config.json", {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["evil.T", "evil.T"]}),
    ):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {"auto_map": entry}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with contextlib.suppress(JudgeUnavailableError):  # refusing it is as good as ignoring the code
        start(folder)
    assert not marker.exists()


def test_a_models_own_chat_penalties_do_not_change_its_ratings(folder):
    prompts = [[1, 3, *range(10, 10 + length), 2, 4] for length in range(20, 60)]
    before = replies(folder, prompts)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"repetition_penalty": 1.9}))
    assert replies(folder, prompts) == before


def test_a_chat_template_that_raises_is_one_clear_error(folder):
    for path in folder.glob("chat_template*"):
        path.write_text("{{ raise_exception('no user turns here') }}")
    with pytest.raises(JudgeUnavailableError, match="no user turns here"):
        open_judge(JudgeConfig(model=str(folder)))
