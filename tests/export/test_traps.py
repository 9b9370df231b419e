"""One claim per known way in which another tool reads a reward model differently than it was meant.

Each test holds the export beside the same thing without the cure, which must go wrong: else the
claim would be empty.
"""

from __future__ import annotations

import copy
import json
from datetime import datetime
from pathlib import Path

import pytest
import torch
import transformers.utils.chat_template_utils as rendering
from safetensors import safe_open
from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from encore.data.records import Message
from encore.errors import InputError
from encore.export.classifier import rope_in_both_forms
from encore.export.write_export import export_model
from encore.model.conversation import ConversationTokenizer
from tests.export.opened import MAX_LENGTH, RULES, opened_model
from tests.model.tokenizers import LLAMA_3_TOKENS, byte_level, llama_3

MESSAGES = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello there."}]
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
CHAT_ML = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}\n{{ m.content }}<|eot_id|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with all heads."""
    folder = tmp_path_factory.mktemp("traps") / "export"
    export_model(opened_model(), out=folder)
    return folder


def read(folder: Path, name: str = "config.json"):
    return json.loads((folder / name).read_text())


def plain(folder: Path):
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=False)
    return model.eval(), AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def scores(model, inputs) -> torch.Tensor:
    with torch.inference_mode():
        return model(**inputs).logits


# --- padding --------------------------------------------------------------------------------------


def test_a_pad_token_of_its_own_makes_a_batch_score_like_single_conversations(folder):
    model, tokenizer = plain(folder)
    end, pad = map(LLAMA_3_TOKENS.index, ("<|eot_id|>", "<|finetune_right_pad_id|>"))
    assert model.config.pad_token_id == tokenizer.pad_token_id == pad
    texts = [
        tokenizer.apply_chat_template(messages, tokenize=False)
        for messages in (MESSAGES, [MESSAGES[0], {"role": "assistant", "content": "No." * 20}])
    ]
    single = scores(model, tokenizer(texts[0], return_tensors="pt"))[0]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    torch.testing.assert_close(scores(model, batch)[0], single, atol=1e-6, rtol=0)
    model.config.pad_token_id = end  # as many reward models have it
    assert (scores(model, tokenizer(texts[0], return_tensors="pt"))[0] - single).abs().max() > 0.01


def test_a_pad_token_beyond_the_embeddings_is_none(folder):
    """Rows are counted from 0: as many rows as the token's id are one too few."""
    pad = LLAMA_3_TOKENS.index("<|finetune_right_pad_id|>")
    whole = ConversationTokenizer(llama_3(), max_length=MAX_LENGTH, num_embeddings=pad + 1)
    assert whole.pad_token_id == pad
    with pytest.raises(InputError, match="no token to pad with"):
        ConversationTokenizer(llama_3(), max_length=MAX_LENGTH, num_embeddings=pad)


# --- versions of transformers ---------------------------------------------------------------------


def frequencies(config, *, without: set[str]) -> torch.Tensor:
    """What a reader turns positions by that does not know some keys of config.json."""
    known = {key: value for key, value in config.items() if key not in without}
    return LlamaRotaryEmbedding(LlamaConfig(**copy.deepcopy(known))).inv_freq


@pytest.mark.parametrize(
    "rope",
    [{"rope_type": "default", "rope_theta": 500000.0}, LLAMA_3_ROPE],
    ids=["default", "llama3"],
)
def test_rope_is_said_in_the_form_of_transformers_4_and_of_5(tmp_path, rope):
    opened = opened_model(rope_parameters=rope)
    export_model(opened, out=tmp_path / "export")
    config = read(tmp_path / "export")
    expected = opened.model.trunk.rotary_emb.inv_freq
    assert config["rope_theta"] == 500000.0
    # Version 4 takes every key of rope_scaling for one of the scaling's own.
    assert "rope_theta" not in (config["rope_scaling"] or {})
    old, new = ({"rope_theta", "rope_scaling"}, {"rope_parameters"})
    torch.testing.assert_close(frequencies(config, without=new), expected)
    torch.testing.assert_close(frequencies(config, without=old), expected)
    assert not torch.allclose(frequencies(config, without=old | new), expected)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
PHI_3 = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.0],
    "long_factor": [2.0, 4.0],
    "original_max_position_embeddings": 4096,
}


def test_scalings_that_version_4_would_take_for_others_are_refused():
    for model_type, rope, message in (
        ("qwen2", YARN, "factor 4, where 4.51 would take true and 2 "),
        ("qwen2", YARN | {"truncate": False}, "truncate False"),
        ("qwen2", {"rope_type": "longrope", "rope_theta": 1e4}, "expected of phi3 only"),
        ("phi3", PHI_3 | {"attention_factor": 1.2}, "attention_factor; transformers 4"),
        ("gemma3", {"full_attention": {"rope_theta": 1e4}}, "are not one set"),
    ):
        config = {"rope_parameters": rope, "max_position_embeddings": 512}
        with pytest.raises(InputError, match=message) as caught:
            rope_in_both_forms(config, model_type=model_type)
        assert "\n" not in str(caught.value)
    both = rope_in_both_forms({"rope_parameters": PHI_3}, model_type="phi3")
    assert set(both["rope_scaling"]) == {"type", "short_factor", "long_factor"}
    assert (both["rope_scaling"]["type"], both["partial_rotary_factor"]) == ("longrope", 0.75)


# --- text -----------------------------------------------------------------------------------------


def test_a_tokenizer_that_adds_tokens_to_every_text_adds_none_to_a_rendered_one(tmp_path):
    hf_tokenizer = llama_3()
    begin = hf_tokenizer.bos_token_id
    adding = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    hf_tokenizer.backend_tokenizer.post_processor = Sequence([ByteLevel(), adding])
    opened = opened_model(tokenizer=hf_tokenizer)
    export_model(opened, out=tmp_path / "export")
    _, tokenizer = plain(tmp_path / "export")
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    prompt = [Message(role="user", content=MESSAGES[0]["content"])]
    own = opened.tokenizer.encode(prompt, MESSAGES[1]["content"]).token_ids.tolist()
    assert tokenizer(text)["input_ids"] == own
    assert hf_tokenizer(text)["input_ids"] == [begin, *own]  # the uncured one
    kept = read(tmp_path / "export", "tokenizer.json")["post_processor"]
    assert [one["type"] for one in kept["processors"]] == ["ByteLevel"]


def test_a_template_with_a_line_break_after_the_last_turn_ends_at_the_turn(tmp_path):
    names = {"eos_token": "<|eot_id|>", "bos_token": "<|begin_of_text|>"}
    hf_tokenizer = byte_level(LLAMA_3_TOKENS, template=CHAT_ML, **names)
    export_model(opened_model(tokenizer=hf_tokenizer), out=tmp_path / "export")
    _, tokenizer = plain(tmp_path / "export")
    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    assert tokenizer.apply_chat_template(MESSAGES, return_dict=True)["input_ids"][-1] == end
    assert hf_tokenizer.apply_chat_template(MESSAGES, return_dict=True)["input_ids"][-1] != end
    # Between turns, and before a response, nothing has changed.
    for generation in (True, False):
        ours, theirs = (
            one.apply_chat_template(MESSAGES[:1], tokenize=False, add_generation_prompt=generation)
            for one in (tokenizer, hf_tokenizer)
        )
        assert ours == (theirs if generation else theirs.rstrip())


def test_the_template_prints_no_date(folder, monkeypatch):
    class SomeDay(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2031, 5, 4)

    ours_and_uncured = (plain(folder)[1], llama_3())
    today = [one.apply_chat_template(MESSAGES, tokenize=False) for one in ours_and_uncured]
    monkeypatch.setattr(rendering, "datetime", SomeDay)
    rendering._compile_jinja_template.cache_clear()
    some_day = [one.apply_chat_template(MESSAGES, tokenize=False) for one in ours_and_uncured]
    rendering._compile_jinja_template.cache_clear()
    assert [a == b for a, b in zip(today, some_day, strict=True)] == [True, False]


def test_readers_that_cut_cut_the_oldest_at_the_length_it_was_trained_with(folder):
    _, tokenizer = plain(folder)
    assert tokenizer.model_max_length == MAX_LENGTH
    assert (tokenizer.truncation_side, tokenizer.padding_side) == ("left", "right")
    ids = tokenizer("x" * (MAX_LENGTH - 1) + "y" * 9, truncation=True)["input_ids"]
    assert len(ids) == MAX_LENGTH
    assert ids[-9:] == tokenizer("y" * 9)["input_ids"]


# --- files ----------------------------------------------------------------------------------------


def test_the_files_say_what_every_version_has_to_read_and_nothing_else(folder, tmp_path):
    config, tokenizer = read(folder), read(folder, "tokenizer_config.json")
    assert config["id2label"] == {str(index): rule for index, rule in enumerate(RULES)}
    assert config["label2id"] == {rule: index for index, rule in enumerate(RULES)}
    assert (config["dtype"], config["torch_dtype"]) == ("float32", "float32")
    # Defaults change from version to version.
    assert {"head_dim", "attention_bias", "mlp_bias", "rms_norm_eps", "hidden_act"} <= set(config)
    assert "auto_map" not in config  # the backbone had one
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    # By itself the class of version 4 adds token_type_ids, which its decoders refuse.
    assert tokenizer["model_input_names"] == ["input_ids", "attention_mask"]
    assert tokenizer["chat_template"] == (folder / "chat_template.jinja").read_text()
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # version 4 refuses a file without it
    llama_3().save_pretrained(tmp_path)
    saved = read(tmp_path, "tokenizer_config.json")
    assert saved["tokenizer_class"] == "TokenizersBackend"  # which version 4 does not know
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    # A list here, as version 5 writes it, is an error in version 4.
    assert "extra_special_tokens" not in tokenizer
    # No code, no pickle, and no path of this machine.
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "model.safetensors", "encore_export.json", "README.md"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    for path in folder.iterdir():
        assert str(folder.parent).encode() not in path.read_bytes(), path.name
