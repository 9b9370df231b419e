"""Backbones: pretrained or random, refused in one line where they cannot be what they should."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from encore.data.records import Message
from encore.demo import judge_path
from encore.errors import EncoreError, InputError
from encore.model.config import BackboneConfig
from encore.model.layouts import lay_out
from encore.model.loading import backbone_identity, load_reward_model, load_tokenizer
from tests.model.tiny_models import edit_json, edit_tensors, tiny_config, token_ids
from tests.model.tokenizers import bert, llama_3

JUDGE = BackboneConfig(model=str(judge_path()))


def backbone(folder: Path, model_type: str = "llama", **changes) -> BackboneConfig:
    """A folder with tokenizer and config.json, without weights."""
    tokenizer = llama_3() if model_type == "llama" else bert()
    tokenizer.save_pretrained(folder)
    tiny_config(model_type, vocab_size=300, **changes).save_pretrained(folder)
    return BackboneConfig(model=str(folder), init="random")


def classifier(folder: Path) -> BackboneConfig:
    """A one-label reward model as one would download it."""
    llama_3().save_pretrained(folder)
    torch.manual_seed(0)
    config = tiny_config("llama", vocab_size=300, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return BackboneConfig(model=str(folder))


def test_random_weights_follow_their_seed_and_leave_the_callers_alone(tmp_path):
    config = backbone(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    models = [load_reward_model(config, head_ids=["a"], seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected)
    first, same, other = (torch.cat([p.flatten() for p in m.parameters()]) for m in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_pad_token_without_an_embedding_is_passed_over(tmp_path):
    """A [PAD] that somebody added behind a table that was never resized."""
    config = backbone(tmp_path)
    tokenizer = llama_3()
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path)
    added = tokenizer.convert_tokens_to_ids("[PAD]")
    edit_json(tmp_path / "config.json", vocab_size=added)
    pad_token_id = load_tokenizer(config).pad_token_id
    assert pad_token_id == tokenizer.convert_tokens_to_ids("<|finetune_right_pad_id|>") < added


def test_an_encoder_is_pooled_over_its_tokens_and_has_no_weight_without_a_gradient(tmp_path):
    model = load_reward_model(backbone(tmp_path, "bert"), head_ids=["a"])
    assert (model.is_causal, model.pooling) == (False, "mean")
    torch.nn.init.ones_(model.heads.weight)
    ids = token_ids(9, seed=0)
    model(lay_out([ids], layout="packed", pad_token_id=0, is_causal=False)).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_conversations_are_never_longer_than_the_model_has_positions(tmp_path):
    assert load_tokenizer(JUDGE).max_length == 1024  # 4096 positions: the default holds
    config = backbone(tmp_path, "bert", max_position_embeddings=64)
    assert load_tokenizer(config).max_length == 64


def test_a_downloaded_reward_model_scores_as_transformers_does(tmp_path):
    config = classifier(tmp_path)
    tokenizer = load_tokenizer(config)
    ids = tokenizer.encode([Message(role="user", content="Hello.")], "Hi.").token_ids
    reference = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    reference.config.pad_token_id = tokenizer.pad_token_id
    every = load_reward_model(config, head_ids=["a", "b"], head_init="own").eval()
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids).long()[None]).logits
        found = every(lay_out([ids], layout="packed", pad_token_id=0, is_causal=True))
    torch.testing.assert_close(found, expected.expand(1, 2), atol=1e-5, rtol=0)


def test_identity_is_content_without_a_place(tmp_path):
    def identity(folder: Path):
        config = BackboneConfig(model=str(folder), init="random")
        return backbone_identity(config, load_tokenizer(config))

    first, moved = tmp_path / "a" / "tiny", tmp_path / "b" / "tiny"
    backbone(first)
    shutil.copytree(first, moved)
    assert identity(moved) == identity(first)
    assert str(tmp_path) not in json.dumps(identity(first))
    template = "{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}"
    (moved / "chat_template.jinja").write_text(template)
    assert identity(moved)["template_sha256"] != identity(first)["template_sha256"]
    assert identity(moved)["config_sha256"] == identity(first)["config_sha256"]


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")


def drop_a_weight(folder: Path) -> None:
    edit_tensors(folder / "model.safetensors", lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))


def truncate_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_weights, "pickled weights are not loaded"),
        (drop_a_weight, "1 weights missing.*layers.1.mlp.up_proj"),
        (truncate_weights, "its weights do not load"),
        (
            lambda folder: edit_json(folder / "config.json", model_type="mamba"),
            "architecture 'mamba' is not one",
        ),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    ],
)
def test_what_is_damaged_is_refused_in_one_line(tmp_path, damage, message):
    config = classifier(tmp_path / "rm")
    damage(tmp_path / "rm")
    with pytest.raises(EncoreError, match=message) as caught:
        load_reward_model(config, head_ids=["a"])
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("backbone ")


@pytest.mark.parametrize(
    ("head_ids", "pooling", "message"),
    [
        ([], "auto", "expected at least one"),
        (["a", "a"], "auto", "each with its own name"),
        (["a"], "class-token", "this trunk is causal"),
    ],
)
def test_heads_and_pooling_must_make_sense(head_ids, pooling, message):
    config = JUDGE.model_copy(update={"pooling": pooling})
    with pytest.raises(InputError, match=message):
        load_reward_model(config, head_ids=head_ids)
