"""One claim per known way in which another tool reads a reward model differently than it was meant.

Each test holds the export beside the same thing without the cure, which must go wrong: else the
claim would be empty.
"""

from __future__ import annotations

import copy
import json
import math
from datetime import datetime
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
)

from encore.data.records import Message
from encore.demo import judge_path
from encore.errors import InputError
from encore.export.classifier import rope_in_both_forms
from encore.export.write_export import export_model
from encore.model.config import BackboneConfig
from encore.model.loading import load_tokenizer
from tests.export.opened import MAX_LENGTH, RULES, WEIGHTS, opened_model
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


def test_vllm_puts_no_sigmoid_over_the_score(tmp_path):
    activations = pytest.importorskip("vllm.model_executor.layers.pooler.activations")
    folder = exported(tmp_path, weights=WEIGHTS)
    raw = torch.tensor([[-1.5]])
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    assert activations.get_act_fn(config)(raw).item() == -1.5
    config.problem_type = None
    assert activations.get_act_fn(config)(raw).item() == pytest.approx(0.1824, abs=1e-4)  # sigmoid


def test_the_labels_of_all_heads_are_the_rules_and_the_card_says_they_are_several(tmp_path):
    folder = exported(tmp_path)
    config = read(folder)
    assert config["id2label"] == {str(index): rule for index, rule in enumerate(RULES)}
    assert config["label2id"] == {rule: index for index, rule in enumerate(RULES)}
    assert config["problem_type"] == "regression"
    assert "**not** for tools that expect one score" in (folder / "README.md").read_text()


def test_heads_with_a_bias_are_refused_since_transformers_would_drop_it(tmp_path):
    opened = opened_model()
    opened.model.heads.bias = torch.nn.Parameter(torch.ones(len(RULES)))
    with pytest.raises(InputError, match="have a bias"):
        export_model(opened, out=tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


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


def as_4_51_computes_yarn(config) -> tuple[torch.Tensor, float]:
    """Frequencies and attention factor of YaRN (arXiv:2309.00071) in transformers 4.51.

    Its own way with the factor: where the original length is said, `factor` is not read.
    """
    scaling = config["rope_scaling"]
    base, dim, factor = config["rope_theta"], config["head_dim"], scaling["factor"]
    original = config["max_position_embeddings"]
    if "original_max_position_embeddings" in scaling:
        original = scaling["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original

    def dimension(rotations: float) -> float:
        """The one whose wave makes so many rotations over the original length."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling.get("beta_fast") or 32)), 0)
    high = min(math.ceil(dimension(scaling.get("beta_slow") or 1)), dim - 1)
    plain = base ** -(torch.arange(0, dim, 2) / dim)
    ramp = ((torch.arange(dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    attention = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return plain * (1 - ramp) + plain / factor * ramp, scaling.get("attention_factor") or attention


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "beta_fast": 8.0}


@pytest.mark.parametrize(
    "rope",
    [
        # As in Qwen2.5-Math and others: the original length is the one the config states.
        YARN | {"factor": 4.0, "original_max_position_embeddings": 512},
        YARN | {"factor": 4.0},
        # The positions are the factor times the original length.
        YARN | {"factor": 4.0, "original_max_position_embeddings": 128},
        YARN | {"factor": 4, "original_max_position_embeddings": 512, "attention_factor": 1.25},
    ],
    ids=["original is all", "original unsaid", "original times factor", "integer factor"],
)
def test_yarn_is_said_so_that_transformers_4_51_computes_the_same(tmp_path, rope):
    opened = opened_model(rope_parameters=rope, head_dim=64)
    export_model(opened, out=tmp_path / "export")
    config = read(tmp_path / "export")
    trunk = opened.model.trunk.rotary_emb
    frequency, attention = as_4_51_computes_yarn(config)
    torch.testing.assert_close(frequency, trunk.inv_freq, atol=0, rtol=1e-5)
    assert attention == pytest.approx(trunk.attention_scaling)
    torch.testing.assert_close(
        frequencies(config, without={"rope_parameters"}), trunk.inv_freq, atol=0, rtol=1e-6
    )
    assert isinstance(config["rope_scaling"]["factor"], float)  # 4.57 wants it, and as a float


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


def test_rope_by_layer_type_is_refused_and_not_flattened():
    nested = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    with pytest.raises(InputError, match="expected one set of them"):
        rope_in_both_forms({"rope_parameters": nested}, model_type="other")


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


def test_the_tokenizer_gives_nothing_that_a_decoder_does_not_take(tmp_path):
    folder = exported(tmp_path)
    model, tokenizer = plain(folder)
    inputs = tokenizer("Hi.", return_tensors="pt")
    assert scores(model, inputs).shape == (1, len(RULES))
    # Said in the file: by itself the class of version 4 adds token_type_ids, which its decoders
    # refuse (version 5 leaves them out, so that only the file can be looked at here).
    config = read(folder, "tokenizer_config.json")
    assert config["model_input_names"] == ["input_ids", "attention_mask"] == list(inputs)


def test_the_weights_format_is_named_with_the_keys_of_both_versions(tmp_path):
    export_model(opened_model(), out=tmp_path / "export", dtype="bfloat16")
    config = read(tmp_path / "export")
    assert (config["dtype"], config["torch_dtype"]) == ("bfloat16", "bfloat16")


def test_settings_at_their_defaults_are_said_since_defaults_change(tmp_path):
    config = read(exported(tmp_path))
    assert {"head_dim", "attention_bias", "mlp_bias", "rms_norm_eps", "hidden_act"} <= set(config)


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


def test_a_backbone_without_a_template_gets_a_plain_one_in_both_places(tmp_path):
    hf_tokenizer = byte_level(LLAMA_3_TOKENS, **NAMES)
    assert hf_tokenizer.chat_template is None
    folder = exported(tmp_path, tokenizer=hf_tokenizer)
    _, tokenizer = plain(folder)
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == (
        "<|begin_of_text|>Human: Hi.\n\nAssistant: Hello there.<|eot_id|>"
    )
    template = (folder / "chat_template.jinja").read_text()
    assert read(folder, "tokenizer_config.json")["chat_template"] == template


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


def test_the_folder_holds_no_code_no_pickle_and_nothing_that_generates(tmp_path):
    folder = exported(tmp_path)
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "model.safetensors", "encore_export.json", "README.md"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    config = read(folder)
    assert "auto_map" not in config  # the backbone had one
    assert config["architectures"] == ["LlamaForSequenceClassification"]


def test_no_path_of_this_machine_is_in_any_file(tmp_path):
    folder = exported(tmp_path)
    for path in folder.iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path.name


def test_what_a_tokenizer_may_have_been_told_to_cut_and_pad_is_not_written(tmp_path):
    hf_tokenizer = load_tokenizer(BackboneConfig(model=str(judge_path()))).hf_tokenizer
    hf_tokenizer.backend_tokenizer.enable_truncation(8)
    hf_tokenizer.backend_tokenizer.enable_padding(length=99)
    folder = exported(tmp_path, tokenizer=hf_tokenizer, vocab_size=len(hf_tokenizer))
    content = read(folder, "tokenizer.json")
    assert (content["truncation"], content["padding"]) == (None, None)


def test_an_old_transformers_finds_the_mark_it_asks_every_weight_file_for(tmp_path):
    from safetensors import safe_open

    with safe_open(exported(tmp_path) / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
