"""Reward models of every kind open in the same way; other models are refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from encore.core.errors import InputError
from encore.data.records import Message
from encore.demo import JUDGE_PATH
from encore.export.write_export import export_model
from encore.model.backbone_config import BackboneConfig
from encore.model.loading import load_reward_model, load_tokenizer, quiet_transformers
from encore.model.opening import open_reward_model
from encore.model.saved_model import save_model
from tests.worlds.models import edit_json, edit_tensors

PROMPT = (Message(role="user", content="What is a kind answer?"),)
RULES = ("be-kind", "be-brief", "be-honest")
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a reward model on the demo's judge, with three random heads and means."""
    config = BackboneConfig(model=str(JUDGE_PATH), max_length=256)
    model = load_reward_model(config, head_ids=RULES)
    with torch.no_grad():
        torch.manual_seed(0)
        model.heads.weight.normal_()
        model.mean_R.copy_(torch.tensor([0.5, 0.25, 1 / 3]))
    folder = tmp_path_factory.mktemp("trained") / "mine"
    save_model(folder, model, load_tokenizer(config), metadata={"step": 7})
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a plain classifier: the judge's trunk with three labels."""
    return make_classifier(tmp_path_factory.mktemp("plain") / "rm", labels=RULES)


def make_classifier(folder: Path, *, labels: tuple[str, ...]) -> Path:
    """Write a …ForSequenceClassification with the judge's trunk and a random head."""
    with quiet_transformers():
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_pretrained(
            JUDGE_PATH, id2label=dict(enumerate(labels))
        )
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(JUDGE_PATH).save_pretrained(folder)
    return folder


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
    assert open_reward_model(trained, max_length=10**6).tokenizer.max_length == 4096
    # The tokenizer states the maximum length of a classifier.
    path = "tokenizer_config.json"
    short = changed_copy(classifier, tmp_path / "short", set_json(path, model_max_length=100))
    assert open_reward_model(short).tokenizer.max_length == 100
    assert open_reward_model(short, max_length=200).tokenizer.max_length == 200
    endless = changed_copy(
        classifier, tmp_path / "endless", set_json(path, model_max_length=10**30)
    )
    assert open_reward_model(endless).tokenizer.max_length == 4096


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
        ({"model": "no/such/folder"}, "no such folder"),
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
    weights = {"be-kind": 0.5, "be-brief": 0.25, "be-honest": 0.25}
    export_model(source, out=cache / "snapshots" / commit, weights=weights)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    remote = open_reward_model("team/model", device="cpu")
    assert remote.name == "team/model"
    # 0.5 x 0.5 + 0.25 x 0.25 + 0.25 / 3
    assert remote.model.mean_R.tolist() == pytest.approx([0.25 + 0.0625 + 0.25 / 3])
    assert remote.metadata["step"] == 7
    assert remote.metadata["composed"]["weights"] == weights


def test_a_downloaded_model_keeps_its_template_with_a_fixed_date(classifier, trained, tmp_path):
    # A line break after every turn, as in ChatML, with tokens of the judge's tokenizer.
    template = (
        "{{ '<|system|>' + date_string + '<|end|>' }}{% for m in messages %}"
        "{{ '<|user|>' + m.role + ':' + m.content + '<|end|>' + '\\n' }}{% endfor %}"
    )
    folder = shutil.copytree(classifier, tmp_path / "rm")
    (folder / "chat_template.jinja").write_text(template)
    opened = open_reward_model(folder)
    assert opened.model.head_ids == RULES
    text = opened.tokenizer.render(PROMPT, "This one.")
    assert text.startswith("<|system|>26 Jul 2024<|end|>")
    # Its score is read at the last token of its template; our models read the end of the turn.
    assert text.endswith("This one.<|end|>\n")
    assert open_reward_model(trained).tokenizer.render(PROMPT, "This one.").endswith("<|end|>")
