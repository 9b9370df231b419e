"""Known ways in which other tools misread a reward model, and what an export does about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from encore.core.errors import InputError
from encore.data.records import Message
from encore.exports.classifier import rope_in_both_forms
from encore.exports.write_export import export_model
from tests.exports.tokenizers import misleading_tokenizer
from tests.worlds.models import MAX_LENGTH, opened_model

MESSAGES = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello there."}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export all heads of a model whose backbone's config names code."""
    folder, opened = tmp_path_factory.mktemp("traps") / "export", opened_model()
    opened.model.trunk.config.auto_map = {"AutoModel": "somebody--code.Model"}
    export_model(opened, out=folder)
    return folder


def read(folder: Path, name: str = "config.json"):
    return json.loads((folder / name).read_text())


# --- versions of transformers ---------------------------------------------------------------------


def test_rope_is_written_in_both_forms_or_refused_if_version_4_would_misread_it():
    """Version 4 reads every key of rope_scaling as a parameter of the scaling."""
    base = {"rope_theta": 10000.0, "original_max_position_embeddings": 256}
    factors = {"short_factor": [1.0, 1.0], "long_factor": [2.0, 4.0]}
    phi_3 = {"rope_type": "longrope", **base, **factors}
    for model_type, rope, message in (
        ("qwen2", {"rope_type": "yarn", "factor": 4.0, **base}, "'factor': 4.0.* of 512 positions"),
        ("qwen2", {"rope_type": "yarn", "truncate": False, **base}, "'truncate': False"),
        ("qwen2", {"rope_type": "longrope", **base}, "'longrope'"),
        ("phi3", phi_3 | {"attention_factor": 1.2}, "'attention_factor': 1.2"),
        ("gemma3", {"full_attention": {"rope_theta": 1e4}}, "full_attention"),
    ):
        config = {"rope_parameters": rope, "max_position_embeddings": 512}
        with pytest.raises(InputError, match=message):
            rope_in_both_forms(config, model_type=model_type)
    llama_3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 256}
    for model_type, rope, expected in (
        ("phi3", phi_3, {"type": "longrope", **factors}),
        ("llama", {"rope_theta": 1e4, **llama_3}, llama_3),
        ("llama", {"rope_theta": 1e4, "rope_type": "default"}, None),
    ):
        config = {"rope_parameters": rope, "max_position_embeddings": 512}
        rope_settings = rope_in_both_forms(config, model_type=model_type)
        values = [rope_settings[f"rope_{name}"] for name in ("parameters", "theta", "scaling")]
        assert values == [rope, 1e4, expected]


# --- text -----------------------------------------------------------------------------------------


def test_an_exported_tokenizer_adds_no_token_that_the_template_writes(tmp_path):
    hf_tokenizer = misleading_tokenizer()
    opened = opened_model(tokenizer=hf_tokenizer)
    export_model(opened, out=tmp_path / "export")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    prompt = [Message(role="user", content="Hi.")]
    expected = opened.tokenizer.encode(prompt, "Hello there.").token_ids.tolist()
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert tokenizer(text)["input_ids"] == expected
    # The original tokenizer writes the first token twice, and a line break after the last turn.
    original = hf_tokenizer(hf_tokenizer.apply_chat_template(MESSAGES, tokenize=False))
    line_break = hf_tokenizer("\n")["input_ids"][1:]
    assert original["input_ids"] == [expected[0], *expected, *line_break]
    # The text between turns and before a response has not changed.
    for generation in (True, False):
        exported_text, original_text = (
            each.apply_chat_template(MESSAGES[:1], tokenize=False, add_generation_prompt=generation)
            for each in (tokenizer, hf_tokenizer)
        )
        assert exported_text == (original_text if generation else original_text.rstrip())


def test_readers_cut_the_oldest_tokens_at_the_length_of_training(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.padding_side == "right"
    ids = tokenizer("x" * (MAX_LENGTH - 1) + "y" * 9, truncation=True)["input_ids"]
    assert len(ids) == MAX_LENGTH
    assert ids[-9:] == tokenizer("y" * 9)["input_ids"]


# --- files ----------------------------------------------------------------------------------------


def test_the_files_have_every_setting_that_any_version_needs_and_no_path(folder):
    config, tokenizer = read(folder), read(folder, "tokenizer_config.json")
    assert "auto_map" not in config  # the backbone's config has it
    # By default the class of version 4 adds token_type_ids, which its decoders refuse.
    assert tokenizer["model_input_names"] == ["input_ids", "attention_mask"]
    assert tokenizer["chat_template"] == (folder / "chat_template.jinja").read_text()
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # version 4 refuses a file without it
    # Version 5 writes a class that version 4 does not know.
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    # A list here, as version 5 writes it, is an error in version 4.
    assert "extra_special_tokens" not in tokenizer
    # No path of this machine is in the files.
    for path in folder.iterdir():
        assert str(folder.parent).encode() not in path.read_bytes(), path.name
