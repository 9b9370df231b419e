"""Loading of pretrained and random backbones; a damaged one is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from encore.core.errors import EncoreError, InputError
from encore.model.backbone_options import BackboneConfig
from encore.model.layouts import lay_out
from encore.model.load_backbone import load_reward_model, load_tokenizer
from tests.worlds.models import edit_json, edit_tensors, make_classifier, tiny_config, token_ids
from tests.worlds.tokenizers import bert, llama_3


def backbone(folder: Path, model_type: str = "llama", **changes) -> BackboneConfig:
    """Write a folder with a tokenizer and config.json, without weights; return its config."""
    tokenizer = llama_3() if model_type == "llama" else bert()
    tokenizer.save_pretrained(folder)
    tiny_config(model_type, vocab_size=300, **changes).save_pretrained(folder)
    return BackboneConfig(model=str(folder), init="random")


@pytest.fixture
def classifier(tmp_path: Path) -> BackboneConfig:
    """Write a reward model with one label, like a downloaded one; return its config."""
    config = tiny_config("llama", vocab_size=300, num_labels=1)
    return BackboneConfig(model=str(make_classifier(tmp_path / "rm", config, llama_3())))


def test_random_weights_follow_the_seed_and_do_not_draw_from_the_callers_state(tmp_path):
    config = backbone(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    models = [load_reward_model(config, head_ids=["a"], seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected)
    first, repeated, second = (torch.cat([p.flatten() for p in m.parameters()]) for m in models)
    assert torch.equal(first, repeated)
    assert not torch.equal(first, second)


def test_a_pad_token_without_an_embedding_is_not_used(tmp_path):
    """Some models have a [PAD] token beyond the end of their embedding table."""
    config, tokenizer = backbone(tmp_path), llama_3()
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", vocab_size=tokenizer.convert_tokens_to_ids("[PAD]"))
    expected = tokenizer.convert_tokens_to_ids("<|finetune_right_pad_id|>")
    assert load_tokenizer(config).pad_token_id == expected


def test_an_encoder_is_pooled_over_its_tokens_and_has_no_weight_without_a_gradient(tmp_path):
    config = backbone(tmp_path, "bert", max_position_embeddings=64)
    assert load_tokenizer(config).max_length == 64
    model = load_reward_model(config, head_ids=["a"])
    assert not model.is_causal
    torch.nn.init.ones_(model.heads.weight)
    ids = token_ids(9, seed=0)
    model(lay_out([ids], layout="packed", pad_token_id=0, is_causal=False)).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_every_head_may_start_as_the_head_of_a_downloaded_model(classifier):
    ids, pad = token_ids(9, seed=0), 5
    reference = AutoModelForSequenceClassification.from_pretrained(classifier.model).eval()
    reference.config.pad_token_id = pad
    model = load_reward_model(classifier, head_ids=["a", "b"], head_init="own").eval()
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids).long()[None]).logits
        score_NR = model(lay_out([ids], layout="packed", pad_token_id=pad, is_causal=True))
    torch.testing.assert_close(score_NR, expected.expand(1, 2), atol=1e-5, rtol=0)


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


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
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    ],
)
def test_a_damaged_backbone_is_refused_in_one_line(classifier, damage, message):
    damage(Path(classifier.model))
    with pytest.raises(EncoreError, match=rf"^backbone .*{message}") as caught:
        load_reward_model(classifier, head_ids=["a"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("head_ids", [[], ["a", "a"]])
def test_heads_need_unique_ids(tmp_path, head_ids):
    with pytest.raises(InputError, match="expected at least one, each with its own name"):
        load_reward_model(backbone(tmp_path), head_ids=head_ids)
