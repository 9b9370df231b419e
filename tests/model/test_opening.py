"""Reward models of every kind open the same way; what is none is refused in one line."""

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
from tests.model.tiny_models import edit_json, edit_tensors

PROMPT = (Message(role="user", content="What is a kind answer?"),)
RULES = ("be-kind", "be-brief", "be-honest")
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of ours on the demo's judge: three random heads, means that are not 0."""
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
    """Plain transformers: the judge's trunk with three labels."""
    return make_classifier(tmp_path_factory.mktemp("plain") / "rm", labels=RULES)


def make_classifier(folder: Path, *, labels: tuple[str, ...]) -> Path:
    """A …ForSequenceClassification with the judge's weights and random labels."""
    with quiet_transformers():
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_pretrained(
            JUDGE_PATH, id2label=dict(enumerate(labels))
        )
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(JUDGE_PATH).save_pretrained(folder)
    return folder


def changed(folder: Path, to: Path, change: Change) -> Path:
    shutil.copytree(folder, to)
    change(to)
    return to


def edited(name: str, **values: object) -> Change:
    return lambda folder: edit_json(folder / name, **values)


def nudged(name: str, tensor: str) -> Change:
    return lambda folder: edit_tensors(
        folder / name, lambda tensors: tensors[tensor].view(-1)[0].add_(1e-3)
    )


def one_merge_less(folder: Path) -> None:
    path = folder / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    edit_json(path, model=model | {"merges": model["merges"][:-1]})


def test_a_training_run_opens_by_its_folder_and_gives_its_name(trained, tmp_path):
    run = tmp_path / "0123abcd"
    shutil.copytree(trained, run / "model")
    (run / "training.json").write_text("{}")
    opened = open_reward_model(run)
    assert opened.name == "0123abcd"
    # The digest is of content and not of place.
    assert opened.digest == open_reward_model(trained).digest
    shutil.rmtree(run / "model")
    with pytest.raises(InputError, match="has no model yet"):
        open_reward_model(run)


def test_whatever_changes_a_score_or_its_meaning_changes_the_digest(trained, tmp_path):
    folders = [trained] + [
        changed(trained, tmp_path / name, change)
        for name, change in {
            "means": nudged("heads.safetensors", "mean"),
            "trunk": nudged("model.safetensors", "norm.weight"),
            "length": edited("reward_model.json", max_length=128),
            "tokenizer": one_merge_less,
        }.items()
    ]
    assert len({open_reward_model(folder).digest for folder in folders}) == 5


def test_a_length_stays_within_the_positions(trained, classifier, tmp_path):
    assert open_reward_model(trained, max_length=10**6).tokenizer.max_length == 4096
    # A classifier is as long as its tokenizer says.
    path = "tokenizer_config.json"
    short = changed(classifier, tmp_path / "short", edited(path, model_max_length=100))
    assert open_reward_model(short).tokenizer.max_length == 100
    assert open_reward_model(short, max_length=200).tokenizer.max_length == 200
    endless = changed(classifier, tmp_path / "endless", edited(path, model_max_length=10**30))
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
        (edited("config.json", auto_map={"AutoModel": "modeling.Mine"}), "wants Python code"),
        (edited("config.json", architectures=["LlamaForCausalLM"]), "CausalLM gives no scores"),
        (
            edited("config.json", problem_type="single_label_classification"),
            "whose outputs are no rewards",
        ),
    ],
)
def test_what_is_no_reward_model_is_refused_in_one_line(classifier, tmp_path, damage, message):
    folder = changed(classifier, tmp_path / "rm", damage)
    with pytest.raises(InputError, match=message) as caught:
        open_reward_model(folder)
    assert "\n" not in str(caught.value)


def test_arguments_out_of_range_are_named(trained):
    for settings, message in (
        ({"model": "no/such/folder"}, "no such folder"),
        ({"revision": "main"}, "belongs to a hub id"),
    ):
        with pytest.raises(InputError, match=message):
            open_reward_model(**{"model": trained, **settings})


def test_an_export_on_a_hub_knows_what_it_knows_in_a_folder(trained, tmp_path, monkeypatch):
    """The hub's client finds the export where it keeps what it fetched."""
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


def test_a_downloaded_model_keeps_its_own_template_and_the_day_is_pinned(
    classifier, trained, tmp_path
):
    # A line break behind every turn, as ChatML has it, in tokens that the judge's tokenizer has.
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
    # It scores the token that its own template ends with; ours end where the turn does.
    assert text.endswith("This one.<|end|>\n")
    assert open_reward_model(trained).tokenizer.render(PROMPT, "This one.").endswith("<|end|>")
