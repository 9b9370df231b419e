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
from safetensors import safe_open
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
)

from encore.data.records import Message
from encore.errors import InputError
from encore.export.classifier import rope_in_both_forms
from encore.export.write_export import export_model
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
NAMES = {"eos_token": "<|eot_id|>", "bos_token": "<|begin_of_text|>"}
CHAT_ML = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}\n{{ m.content }}<|eot_id|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant\n{% endif %}"
)


def exported(tmp_path: Path, *, weights=None, **settings) -> Path:
    folder = tmp_path / "export"
    export_model(opened_model(**settings), out=folder, weights=weights)
    return folder


def read(folder: Path, name: str = "config.json"):
    return json.loads((folder / name).read_text())


def plain(folder: Path):
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=False)
    return model.eval(), AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def scores(model, inputs) -> torch.Tensor:
    with torch.inference_mode():
        return model(**inputs).logits


# --- what stands between head and score -----------------------------------------------------------


# --- padding --------------------------------------------------------------------------------------


def test_a_pad_token_of_its_own_makes_a_batch_score_like_single_conversations(tmp_path):
    opened = opened_model()
    hf_tokenizer = opened.tokenizer.hf_tokenizer
    export_model(opened, out=tmp_path / "export")
    model, tokenizer = plain(tmp_path / "export")
    end = hf_tokenizer.convert_tokens_to_ids("<|eot_id|>")
    pad = hf_tokenizer.convert_tokens_to_ids("<|finetune_right_pad_id|>")
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


# --- versions of transformers ---------------------------------------------------------------------


def frequencies(config, *, without: set[str]) -> torch.Tensor:
    """What a reader turns positions by that does not know some keys of config.json."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

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


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "beta_fast": 8.0}


def test_yarn_that_4_51_would_compute_with_another_factor_is_refused():
    rope = YARN | {"factor": 4.0, "original_max_position_embeddings": 256}
    config = {"rope_parameters": rope, "max_position_embeddings": 512}
    with pytest.raises(InputError, match=r"factor 4, .* would take 2 .* 1024, or the") as caught:
        rope_in_both_forms(config, model_type="qwen2")
    assert "\n" not in str(caught.value)
    whole = rope | {"truncate": False, "original_max_position_embeddings": 128}
    with pytest.raises(InputError, match="truncate false"):
        rope_in_both_forms(config | {"rope_parameters": whole}, model_type="qwen2")
    long = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [1.0]}
    with pytest.raises(InputError, match="expected it of phi3 only"):
        rope_in_both_forms(config | {"rope_parameters": long}, model_type="qwen2")


def test_rope_of_phi_3_has_exactly_the_three_keys_that_transformers_4_takes():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.0],
        "long_factor": [2.0, 4.0],
        "original_max_position_embeddings": 4096,
    }
    both = rope_in_both_forms({"rope_parameters": rope}, model_type="phi3")
    assert set(both["rope_scaling"]) == {"type", "short_factor", "long_factor"}
    assert both["rope_scaling"]["type"] == "longrope"
    assert both["partial_rotary_factor"] == 0.75
    with pytest.raises(InputError, match="attention_factor, which transformers 4 does not take"):
        rope_in_both_forms({"rope_parameters": rope | {"attention_factor": 1.2}}, model_type="phi3")


def test_the_tokenizer_class_is_one_that_transformers_4_has(tmp_path):
    opened = opened_model()
    opened.tokenizer.hf_tokenizer.save_pretrained(tmp_path / "as-5-saves-it")
    saved = read(tmp_path / "as-5-saves-it", "tokenizer_config.json")
    assert saved["tokenizer_class"] == "TokenizersBackend"  # which version 4 does not know
    export_model(opened, out=tmp_path / "export")
    written = read(tmp_path / "export", "tokenizer_config.json")
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    # A list here, as version 5 writes it, is an error in version 4.
    assert "extra_special_tokens" not in written


# --- text -----------------------------------------------------------------------------------------


def own_ids(opened) -> list[int]:
    prompt = [Message(role="user", content=MESSAGES[0]["content"])]
    return opened.tokenizer.encode(prompt, MESSAGES[1]["content"]).token_ids.tolist()


def test_a_tokenizer_that_adds_tokens_to_every_text_adds_none_to_a_rendered_one(tmp_path):
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

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
    assert tokenizer(text)["input_ids"] == own_ids(opened)
    assert hf_tokenizer(text)["input_ids"] == [begin, *own_ids(opened)]  # the uncured one
    kept = read(tmp_path / "export", "tokenizer.json")["post_processor"]
    assert [one["type"] for one in kept["processors"]] == ["ByteLevel"]


def test_a_template_with_a_line_break_after_the_last_turn_ends_at_the_turn(tmp_path):
    hf_tokenizer = byte_level(LLAMA_3_TOKENS, template=CHAT_ML, **NAMES)
    opened = opened_model(tokenizer=hf_tokenizer)
    export_model(opened, out=tmp_path / "export")
    _, tokenizer = plain(tmp_path / "export")
    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    assert tokenizer.apply_chat_template(MESSAGES, return_dict=True)["input_ids"][-1] == end
    assert hf_tokenizer.apply_chat_template(MESSAGES, return_dict=True)["input_ids"][-1] != end
    # Between turns, and before a response, nothing has changed.
    asked = [MESSAGES[0]]
    for generation in (True, False):
        ours, theirs = (
            one.apply_chat_template(asked, tokenize=False, add_generation_prompt=generation)
            for one in (tokenizer, hf_tokenizer)
        )
        assert ours == (theirs if generation else theirs.rstrip())


def test_the_template_prints_no_date(tmp_path, monkeypatch):
    import transformers.utils.chat_template_utils as rendering

    class SomeDay(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2031, 5, 4)

    dated = llama_3()
    _, tokenizer = plain(exported(tmp_path))
    today = [one.apply_chat_template(MESSAGES, tokenize=False) for one in (tokenizer, dated)]
    monkeypatch.setattr(rendering, "datetime", SomeDay)
    rendering._compile_jinja_template.cache_clear()
    some_day = [one.apply_chat_template(MESSAGES, tokenize=False) for one in (tokenizer, dated)]
    rendering._compile_jinja_template.cache_clear()
    assert today[0] == some_day[0]
    assert today[1] != some_day[1]


def test_readers_that_cut_cut_the_oldest_at_the_length_it_was_trained_with(tmp_path):
    _, tokenizer = plain(exported(tmp_path))
    assert tokenizer.model_max_length == MAX_LENGTH
    assert (tokenizer.truncation_side, tokenizer.padding_side) == ("left", "right")
    ids = tokenizer("x" * (MAX_LENGTH - 1) + "y" * 9, truncation=True)["input_ids"]
    assert len(ids) == MAX_LENGTH
    assert ids[-9:] == tokenizer("y" * 9)["input_ids"]


# --- files ----------------------------------------------------------------------------------------


def test_config_and_tokenizer_say_what_every_version_has_to_read(tmp_path):
    folder = exported(tmp_path)
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


def test_the_folder_holds_no_code_no_pickle_and_no_path_of_this_machine(tmp_path):
    folder = exported(tmp_path)
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "model.safetensors", "encore_export.json", "README.md"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    for path in folder.iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path.name
