"""Reward models of every kind open the same way; what is none is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from encore.data.records import Message
from encore.demo import judge_path
from encore.errors import InputError
from encore.export import export_model
from encore.model.config import BackboneConfig
from encore.model.loading import load_reward_model, load_tokenizer, quiet_transformers
from encore.model.opening import OpenedModel, open_reward_model
from encore.model.saved_model import save_model
from encore.model.scoring import score_sequences

PROMPT = (Message(role="user", content="What is a kind answer?"),)
RULES = ("be-kind", "be-brief", "be-honest")
ANSWERS = ("This one.", "No.", "x" * 300)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of ours on the demo's judge: three random heads, means that are not 0."""
    config = BackboneConfig(model=str(judge_path()), max_length=256)
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


def make_classifier(folder: Path, *, labels: tuple[str, ...] | int) -> Path:
    """A …ForSequenceClassification with the judge's weights and random labels; an int: unnamed."""
    num_labels = labels if isinstance(labels, int) else len(labels)
    named = {} if isinstance(labels, int) else {"id2label": dict(enumerate(labels))}
    tokenizer = AutoTokenizer.from_pretrained(judge_path())
    with quiet_transformers():
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_pretrained(
            judge_path(), num_labels=num_labels, **named
        )
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def scores_of(opened: OpenedModel) -> np.ndarray:
    sequences = [opened.tokenizer.encode(PROMPT, answer).token_ids for answer in ANSWERS]
    return score_sequences(opened.model, sequences, pad_token_id=opened.tokenizer.pad_token_id)


def edit_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.fixture
def copied(classifier: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(classifier, tmp_path / "copied"))


# --- ours -----------------------------------------------------------------------------------------


def test_a_training_run_opens_by_its_folder_and_gives_its_name(trained, tmp_path):
    run = tmp_path / "0123abcd"
    shutil.copytree(trained, run / "model")
    (run / "training.json").write_text("{}")
    by_run, by_model = (open_reward_model(path, device="cpu") for path in (run, run / "model"))
    assert by_run.name == by_model.name == "0123abcd"
    assert by_run.digest == by_model.digest
    shutil.rmtree(run / "model")
    with pytest.raises(InputError, match="has no model yet"):
        open_reward_model(run)


def test_the_digest_is_of_content_and_not_of_place(trained, tmp_path):
    moved = Path(shutil.copytree(trained, tmp_path / "moved"))
    first, second = open_reward_model(trained), open_reward_model(moved)
    assert first.digest == second.digest
    assert first.name != second.name
    assert str(tmp_path) not in second.name


def change_means(folder: Path) -> None:
    tensors = load_file(folder / "heads.safetensors")
    tensors["mean"][0] += 1e-3
    save_file(tensors, folder / "heads.safetensors")


def change_trunk(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] += 1e-3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_length(folder: Path) -> None:
    path = folder / "reward_model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_length": 128}))


def change_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = content["model"]["merges"][:-1]
    path.write_text(json.dumps(content))


def change_special_tokens(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text())
    other = next(text for text in ("<|eot_id|>", "<|end_of_text|>") if text != content["eos_token"])
    path.write_text(json.dumps(content | {"eos_token": other}))


@pytest.mark.parametrize(
    "change",
    [
        *(change_means, change_trunk, change_length, change_tokenizer, change_special_tokens),
    ],
)
def test_whatever_changes_a_score_or_its_meaning_changes_the_digest(trained, tmp_path, change):
    changed = Path(shutil.copytree(trained, tmp_path / "changed"))
    change(changed)
    assert open_reward_model(changed).digest != open_reward_model(trained).digest


def test_a_length_stays_within_the_positions(trained):
    assert open_reward_model(trained, max_length=10**6).tokenizer.max_length == 4096


# --- plain classifiers ----------------------------------------------------------------------------


def test_a_plain_classifier_opens_with_its_labels_as_heads_and_scores_as_it_does(classifier):
    opened = open_reward_model(classifier, device="cpu")
    assert opened.model.head_ids == RULES
    assert opened.model.mean_R.tolist() == [0.0, 0.0, 0.0]
    assert not opened.model.training
    plain = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    plain.config.pad_token_id = opened.tokenizer.pad_token_id
    for answer, found_R in zip(ANSWERS, scores_of(opened), strict=True):
        ids = torch.from_numpy(opened.tokenizer.encode(PROMPT, answer).token_ids).long()[None]
        with torch.no_grad():
            expected_R = plain(input_ids=ids).logits[0].numpy()
        np.testing.assert_allclose(found_R, expected_R, atol=1e-5)


@pytest.mark.parametrize(
    ("labels", "heads"),
    [(1, ("reward",)), (("be-kind",), ("be-kind",)), (2, ("LABEL_0", "LABEL_1"))],
)
def test_labels_without_names_are_named(tmp_path, labels, heads):
    opened = open_reward_model(make_classifier(tmp_path / "rm", labels=labels))
    assert opened.model.head_ids == heads


def test_a_classifier_is_as_long_as_its_tokenizer_says(copied):
    path = copied / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"model_max_length": 100}))
    assert open_reward_model(copied).tokenizer.max_length == 100
    assert open_reward_model(copied, max_length=200).tokenizer.max_length == 200
    path.write_text(json.dumps(settings | {"model_max_length": 10**30}))
    assert open_reward_model(copied).tokenizer.max_length == 4096  # its positions


def with_bias(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["score.bias"] = torch.ones(3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def with_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_remote_code(folder: Path) -> None:
    edit_config(folder, auto_map={"AutoModelForSequenceClassification": "modeling.Mine"})


def without_reward(folder: Path) -> None:
    edit_config(folder, architectures=["LlamaForCausalLM"])


def with_exclusive_labels(folder: Path) -> None:
    edit_config(folder, problem_type="single_label_classification")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_bias, "without bias"),
        (with_pickled_weights, "pickled weights are not loaded"),
        (with_remote_code, "wants Python code that it brings"),
        (without_reward, "LlamaForCausalLM gives no scores"),
        (with_exclusive_labels, "whose outputs are no rewards"),
    ],
)
def test_what_is_no_reward_model_is_refused_in_one_line(
    copied: Path, damage: Callable[[Path], None], message: str
):
    damage(copied)
    with pytest.raises(InputError, match=message) as caught:
        open_reward_model(copied)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "no/such/folder"}, "no such folder"),
        ({"dtype": "float16"}, "dtype 'float16'"),
        ({"max_length": 8}, "max_length 8"),
        ({"revision": "main"}, "belongs to a hub id"),
    ],
)
def test_arguments_out_of_range_are_named(trained, settings, message):
    with pytest.raises(InputError, match=message):
        open_reward_model(settings.pop("model", trained), **settings)


# --- exports on a hub -----------------------------------------------------------------------------

COMMIT = "c0ffee" + "0" * 34


@pytest.fixture
def on_the_hub(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Puts an export where the hub's client keeps what it fetched; gives the snapshot."""

    def place(weights: dict[str, float] | None = None) -> Path:
        cache = tmp_path / "cache" / "models--team--model"
        source = open_reward_model(trained, device="cpu", dtype="float32")
        export_model(source, out=cache / "snapshots" / COMMIT, weights=weights)
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text(COMMIT)
        return cache / "snapshots" / COMMIT

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return place


def test_an_export_on_a_hub_knows_what_it_knows_in_a_folder(on_the_hub):
    folder = on_the_hub({"be-kind": 0.5, "be-brief": 0.25, "be-honest": 0.25})
    remote, local = (open_reward_model(one, device="cpu") for one in ("team/model", folder))
    assert remote.name == "team/model"
    # 0.5 x 0.5 + 0.25 x 0.25 + 0.25 / 3
    assert remote.model.mean_R.tolist() == pytest.approx([0.25 + 0.0625 + 0.25 / 3])
    assert remote.model.mean_R.tolist() == local.model.mean_R.tolist()
    assert remote.metadata["step"] == 7
    assert remote.metadata["composed"] == local.metadata["composed"]
    assert remote.metadata["composed"]["weights"]["be-kind"] == 0.5


#: A line break behind every turn, as ChatML has it, in tokens that the judge's tokenizer has.
WITH_BREAKS = (
    "{% for m in messages %}{{ '<|user|>' + m.role + ':' + m.content + '<|end|>' + '\\n' }}"
    "{% endfor %}"
)


def with_template(folder: Path, template: str) -> Path:
    """A folder's classifier with another template."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def text_of(opened: OpenedModel) -> str:
    ids = opened.tokenizer.encode(PROMPT, "This one.").token_ids
    return opened.tokenizer.hf_tokenizer.decode(ids)


def test_a_downloaded_model_scores_the_token_that_its_own_template_ends_with(copied, trained):
    opened = open_reward_model(with_template(copied, WITH_BREAKS))
    assert text_of(opened).endswith("This one.<|end|>\n")
    # A model of ours ends where the turn does, whatever its template puts behind it.
    assert text_of(open_reward_model(trained)).endswith("<|end|>")


def test_a_downloaded_model_keeps_its_system_turn_and_the_day_is_pinned(copied):
    template = "{{ '<|system|>' + date_string + '<|end|>' }}" + WITH_BREAKS
    text = text_of(open_reward_model(with_template(copied, template)))
    assert text.startswith("<|system|>26 Jul 2024<|end|>")
