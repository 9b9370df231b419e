"""Reward models of every kind open in the same way; other models are refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from encore.core.errors import InputError
from encore.data.records import Message
from encore.exports.write_export import export_model
from encore.model.open_model import open_reward_model
from tests.worlds.models import edit_json, edit_tensors, make_classifier, tiny_config
from tests.worlds.scorings import make_model
from tests.worlds.tokenizers import llama_3
from tests.worlds.trainings import RULES

PROMPT = (Message(role="user", content="What is a kind answer?"),)
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of `encore train` with three random heads and means 0.5, 0.25 and 0.125."""
    return make_model(tmp_path_factory.mktemp("trained") / "mine", step=7)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a plain classifier with three labels."""
    config = tiny_config("llama", vocab_size=300, id2label=dict(enumerate(RULES)))
    return make_classifier(tmp_path_factory.mktemp("plain") / "rm", config, llama_3())


def changed_copy(folder: Path, copy: Path, change: Change) -> Path:
    shutil.copytree(folder, copy)
    change(copy)
    return copy


def set_json(name: str, **values: object) -> Change:
    return lambda folder: edit_json(folder / name, **values)


def shift_weight(name: str, tensor: str) -> Change:
    return lambda folder: edit_tensors(
        folder / name, lambda tensors: tensors[tensor].view(-1)[0].add_(1e-3)
    )


def remove_a_merge(folder: Path) -> None:
    path = folder / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    edit_json(path, model=model | {"merges": model["merges"][:-1]})


def test_a_training_run_opens_by_its_folder_and_is_named_after_it(trained, tmp_path):
    run = tmp_path / "0123abcd"
    shutil.copytree(trained, run / "model")
    (run / "training.json").write_text("{}")
    opened = open_reward_model(run)
    assert opened.name == "0123abcd"
    # The digest depends on the content, not on the path.
    assert opened.digest == open_reward_model(trained).digest
    shutil.rmtree(run / "model")
    with pytest.raises(InputError, match="has no model yet"):
        open_reward_model(run)


def test_every_change_of_scores_or_means_changes_the_digest(trained, tmp_path):
    folders = [trained] + [
        changed_copy(trained, tmp_path / name, change)
        for name, change in {
            "means": shift_weight("heads.safetensors", "mean"),
            "trunk": shift_weight("model.safetensors", "norm.weight"),
            "length": set_json("reward_model.json", max_length=128),
            "tokenizer": remove_a_merge,
        }.items()
    ]
    assert len({open_reward_model(folder).digest for folder in folders}) == 5


def test_the_maximum_length_stays_within_the_positions(trained, classifier, tmp_path):
    assert open_reward_model(trained, max_length=10**6).tokenizer.max_length == 256
    # The tokenizer states the maximum length of a classifier, whose model has 128 positions.
    for stated, max_length, expected in ((100, None, 100), (100, 120, 120), (10**30, None, 128)):
        change = set_json("tokenizer_config.json", model_max_length=stated)
        folder = changed_copy(classifier, tmp_path / f"{stated}-{max_length}", change)
        assert open_reward_model(folder, max_length=max_length).tokenizer.max_length == expected


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: edit_tensors(
                folder / "model.safetensors", lambda t: t.update({"score.bias": torch.ones(3)})
            ),
            "without bias",
        ),
        (set_json("config.json", auto_map={"AutoModel": "modeling.Mine"}), "wants Python code"),
        (set_json("config.json", architectures=["LlamaForCausalLM"]), "CausalLM gives no scores"),
        (
            set_json("config.json", problem_type="single_label_classification"),
            "whose outputs are no rewards",
        ),
    ],
)
def test_a_model_that_gives_no_rewards_is_refused_in_one_line(
    classifier, tmp_path, damage, message
):
    folder = changed_copy(classifier, tmp_path / "rm", damage)
    with pytest.raises(InputError, match=message) as caught:
        open_reward_model(folder)
    assert "\n" not in str(caught.value)


def test_a_bad_argument_is_named(trained):
    for settings, message in (
        ({"model": "no/such/folder"}, "no such file or folder"),
        ({"revision": "main"}, "belongs to a hub id"),
    ):
        with pytest.raises(InputError, match=message):
            open_reward_model(**{"model": trained, **settings})


def test_an_export_on_the_hub_opens_with_its_means_and_metadata(trained, tmp_path, monkeypatch):
    """The hub's client reads the export from its cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    cache, commit = tmp_path / "cache" / "models--team--model", "c0ffee" + "0" * 34
    source = open_reward_model(trained, device="cpu", dtype="float32")
    weights = dict(zip(RULES, (0.5, 0.25, 0.25), strict=True))
    export_model(source, out=cache / "snapshots" / commit, weights=weights)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    remote = open_reward_model("team/model", device="cpu")
    assert remote.name == "team/model"
    # 0.5 x 0.5 + 0.25 x 0.25 + 0.25 x 0.125
    assert remote.model.mean_R.tolist() == pytest.approx([0.25 + 0.0625 + 0.03125])
    assert remote.metadata["step"] == 7
    assert remote.metadata["composed"]["weights"] == weights


def test_a_downloaded_model_keeps_its_template_with_a_fixed_date(classifier, trained, tmp_path):
    # A line break after every turn, as in ChatML.
    template = (
        "{{ '<|begin_of_text|>' + date_string + '<|eot_id|>' }}{% for m in messages %}"
        "{{ m.role + ':' + m.content + '<|eot_id|>' + '\\n' }}{% endfor %}"
    )
    folder = shutil.copytree(classifier, tmp_path / "rm")
    (folder / "chat_template.jinja").write_text(template)
    opened = open_reward_model(folder)
    assert opened.model.head_ids == RULES
    text = opened.tokenizer.render(PROMPT, "This answer.")
    assert text.startswith("<|begin_of_text|>26 Jul 2024<|eot_id|>")
    # Its score is read at the last token of its template; our models read the end of the turn.
    assert text.endswith("This answer.<|eot_id|>\n")
    assert open_reward_model(trained).tokenizer.render(PROMPT, "This answer.").endswith("<eot>")
