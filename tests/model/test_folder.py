"""A saved reward model scores as before, and a damaged model folder is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from encore.core.errors import EncoreError
from encore.data.records import Message
from encore.model.conversation import ConversationTokenizer
from encore.model.saved_model import load_model, save_model
from encore.model.score_sequences import score_sequences
from tests.worlds.models import MAX_LENGTH, edit_tensors, opened_model
from tests.worlds.tokenizers import bert

PROMPT = (Message(role="user", content="Hello there. <|eot_id|>"),)


def score(model, tokenizer: ConversationTokenizer, text: str):
    ids = tokenizer.encode(PROMPT, text).token_ids
    return score_sequences(model, [ids], pad_token_id=0).tolist()


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_a_saved_model_scores_the_same_to_the_last_bit(model_type, tmp_path):
    opened = opened_model(model_type, tokenizer=bert() if model_type == "bert" else None)
    model, tokenizer = opened.model, opened.tokenizer
    model.mean_R[0] = 1 / 3
    save_model(tmp_path / "new" / "model", model, tokenizer, metadata={"step": 7, "note": "é"})
    loaded, loaded_tokenizer, metadata = load_model(tmp_path / "new" / "model")
    for text in ("Be kind.", "No.", "y" * 600):
        assert score(loaded, loaded_tokenizer, text) == score(model, tokenizer, text)
    assert metadata == {"step": 7, "note": "é"}
    assert torch.equal(loaded.mean_R, model.mean_R)  # 1 / 3 in float64
    assert loaded_tokenizer.template == tokenizer.template
    assert loaded_tokenizer.max_length == MAX_LENGTH
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["model"]
    files = {path.name for path in (tmp_path / "new" / "model").iterdir()}
    expected = {"config.json", "model.safetensors", "heads.safetensors", "reward_model.json"}
    # The tokenizer with its template; nothing is pickled.
    assert files == expected | {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def remove_a_head(folder: Path) -> None:
    edit_tensors(
        folder / "heads.safetensors", lambda t: t.update({"weight": t["weight"][:1].clone()})
    )


def write(name: str, content: str | None):
    """Return a function that writes a file of a folder, or deletes it."""
    return lambda folder: (
        (folder / name).unlink() if content is None else (folder / name).write_text(content)
    )


ANOTHER_TEMPLATE = "{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_a_head, r"size mismatch for heads.weight: .*\[1, 32\].*\[3, 32\]"),
        (write("chat_template.jinja", ANOTHER_TEMPLATE), "not the one it was trained with"),
        (write("reward_model.json", None), "reward_model.json: missing or damaged"),
        (write("reward_model.json", "{}"), "missing or damaged .*head_ids Field required"),
        (write("tokenizer.json", None), "its tokenizer does not load"),
        (write("pytorch_model.bin", "x"), r"pickled files \(pytorch_model.bin\)"),
        (write("heads.safetensors", "x"), "heads.safetensors: cannot be used"),
    ],
)
def test_a_damaged_model_folder_is_refused_in_one_line(tmp_path, damage, message):
    opened = opened_model()
    save_model(tmp_path / "model", opened.model, opened.tokenizer, metadata={})
    damage(tmp_path / "model")
    with pytest.raises(EncoreError, match=message) as caught:
        load_model(tmp_path / "model")
    assert "\n" not in str(caught.value)
