"""Parameter counts are transformers' own, from config.json alone; what is not known is refused."""

from __future__ import annotations

import json

import pytest

from encore.errors import InputError
from encore.model.trunks import TRUNKS
from encore.training.plan.kinds import shape_from_config
from encore.training.plan.locate import find_shape
from encore.training.plan.named import SHAPE_NAMES, named_shape

_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 200,
    "pad_token_id": 0,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}

CONFIGS = {
    "llama": ("llama", _GROUPED),
    "llama, every bias": ("llama", {**_GROUPED, "attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("llama", {**_GROUPED, "head_dim": 20}),
    "mistral": ("mistral", _GROUPED),
    "qwen2": ("qwen2", _GROUPED),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 16}),
    "qwen3, biases": ("qwen3", {**_GROUPED, "head_dim": 16, "attention_bias": True}),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 12}),
    "gemma2": ("gemma2", {**_GROUPED, "head_dim": 12}),
    "bert": ("bert", {**_SMALL, "max_position_embeddings": 64}),
    "olmo2": ("olmo2", _GROUPED),
    "phi3": ("phi3", {**_GROUPED, "eos_token_id": 1}),
    "roberta": ("roberta", {**_SMALL, "max_position_embeddings": 66, "type_vocab_size": 1}),
    "xlm-roberta": ("xlm-roberta", {**_SMALL, "max_position_embeddings": 66}),
}


def trunk(model_type: str, settings: dict):
    """(config, trunk) of transformers on the meta device: shapes without numbers."""
    import torch
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(model_type, **settings)
    pooler = {} if hasattr(config, "num_key_value_heads") else {"add_pooling_layer": False}
    with torch.device("meta"):
        return config, AutoModel.from_config(config, **pooler)


def count(parameters) -> int:
    return sum(parameter.numel() for parameter in parameters)


def test_every_backbone_that_can_be_trained_can_be_planned():
    assert set(TRUNKS) <= {model_type for model_type, _ in CONFIGS.values()}


@pytest.mark.parametrize("case", CONFIGS)
def test_the_parameters_are_those_that_transformers_builds(case, tmp_path):
    config, model = trunk(*CONFIGS[case])
    config.save_pretrained(tmp_path)
    shape = find_shape(str(tmp_path))
    assert shape.num_parameters == count(model.parameters())
    layers = model.encoder.layer if hasattr(model, "encoder") else model.layers
    assert shape.num_layer_parameters == count(layers[0].parameters())
    matrices = [parameter for parameter in layers[0].parameters() if parameter.dim() == 2]
    assert shape.num_layer_matrix_parameters == count(matrices)
    tables = [
        m.weight
        for m in model.modules()
        if type(m).__name__.endswith("Embedding") and hasattr(m, "weight")
    ]
    assert shape.num_embedding_parameters == count(tables)
    assert shape.num_active_parameters == count(model.parameters()) - count(tables)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"])
def test_the_output_layer_is_what_the_language_model_has_beyond_its_trunk(model_type):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **{**_GROUPED, "head_dim": 12})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = shape_from_config(config.to_dict(), name="small")
    assert count(model.parameters()) == shape.num_parameters + shape.num_output_parameters


def test_a_config_that_leaves_out_what_is_usual_means_what_transformers_means():
    """Mistral's eight key heads, Qwen 3's and Gemma's wide heads need not be written down."""
    bare = {key: _SMALL[key] * 8 for key in ("hidden_size", "intermediate_size", "vocab_size")}
    bare |= {"num_hidden_layers": 1, "num_attention_heads": 32}
    for model_type in ("llama", "mistral", "qwen2", "qwen3", "olmo2"):
        _, model = trunk(model_type, bare)
        shape = shape_from_config({"model_type": model_type, **bare}, name=model_type)
        assert shape.num_parameters == count(model.parameters()), model_type


# What the models' own pages and weight files say, output layer included.
PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "minilm": 22_713_216 - 384 * 385,  # without its pooler
}


@pytest.mark.parametrize("name", SHAPE_NAMES)
def test_a_named_shape_has_the_parameters_its_publisher_states(name):
    shape = named_shape(name)
    assert shape is not None
    assert shape.num_parameters + shape.num_output_parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"model_type": None}, "model_type None"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "bert", "is_decoder": True}, "used as a decoder"),
        ({"num_local_experts": 8}, "mixtures of experts"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"intermediate_size": None}, "intermediate_size is None"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change, named):
    with pytest.raises(InputError, match="backbone 'odd'") as caught:
        shape_from_config({"model_type": "llama", **_GROUPED, **change}, name="odd")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "no config.json"), ("{", "cannot be read as JSON"), ("[1]", "holds a list")],
)
def test_a_folder_without_a_proper_config_is_refused(content, named, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=named):
        find_shape(str(tmp_path))


def test_a_folder_comes_before_a_name_and_its_files_need_be_no_more_than_a_config(
    tmp_path, monkeypatch
):
    (tmp_path / "minilm").mkdir()
    config = {"model_type": "llama", **_GROUPED}
    (tmp_path / "minilm" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert find_shape("minilm").kind == "llama"
    assert find_shape("MiniLM").kind == "bert"


@pytest.mark.parametrize("model", ["./nowhere", "nowhere", "a/b/c"])
def test_neither_folder_nor_name_nor_hub_id_is_refused(model):
    with pytest.raises(InputError, match=f"backbone '{model}': no such folder"):
        find_shape(model)


def test_a_hub_id_reads_one_config_out_of_the_hubs_cache(tmp_path, monkeypatch):
    """The cache's own layout: a reference to a commit, a snapshot of it."""
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--some--backbone"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama", **_GROUPED}))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_shape("some/backbone").num_layers == 3
    with pytest.raises(InputError, match=r"neither a folder nor a model the hub can give"):
        find_shape("some/other")
