"""A small real model trains: its gradients and scores are those of plain transformers and peft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, LoraModel
from safetensors import safe_open
from transformers import AutoModel

from encore.data.study import open_study
from encore.exports.write_export import export_model
from encore.model.backbone_options import BackboneConfig
from encore.model.load_backbone import load_reward_model, load_tokenizer
from encore.model.saved_model import load_model
from encore.model.score_sequences import score_sequences
from encore.training import train as stage
from encore.training.lora import add_adapters
from encore.training.run_folder import read_log
from encore.training.training_examples import TrainingExamples, centre, read_examples
from encore.training.training_options import TrainingConfig, TrainingRunConfig
from tests.exports.test_write_export import plain_scores
from tests.training.test_loop import train
from tests.worlds.real_model import model_folder
from tests.worlds.trainings import make_study, write_ratings

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

NUM_PAIRS, RANK, ALPHA, MAX_LENGTH = 6, 4, 8, 96
EMBEDDINGS = "embed_tokens.weight"


def backbone(dtype: str = "float32") -> BackboneConfig:
    return BackboneConfig(model=str(model_folder()), dtype=dtype, max_length=MAX_LENGTH)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    write_ratings(folder / "study", folder / "ratings.parquet", missing_share=0.1)
    return folder


@pytest.fixture(scope="module")
def examples(world: Path) -> TrainingExamples:
    examples = read_examples(
        open_study(world / "study"),
        tokenizer=load_tokenizer(backbone()),
        objective="multi-head",
        ratings=world / "ratings.parquet",
    )
    return centre(examples, train_rows=np.arange(examples.num_pairs))


def plain_loss_and_gradients(
    examples: TrainingExamples, weights: dict[str, torch.Tensor]
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the mean over responses of the mean squared error over rated heads, and gradients.

    Args:
        examples: Pairs, scored one response after another.
        weights: Adapters by their name in the trunk, and ``heads.weight``.
    """
    trunk = AutoModel.from_pretrained(model_folder(), dtype=torch.float32).requires_grad_(False)
    LoraModel(trunk, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"), "default")
    heads_RD = weights["heads.weight"].clone().requires_grad_()
    adapters = {name: p for name, p in trunk.named_parameters() if "lora" in name}
    assert {f"trunk.{name}" for name in adapters} == weights.keys() - {"heads.weight"}
    losses = []
    with torch.no_grad():
        for name, parameter in adapters.items():
            parameter.copy_(weights[f"trunk.{name}"])
    for side, sequences in enumerate((examples.chosen, examples.rejected)):
        for pair, tokens in enumerate(sequences):
            ids = torch.tensor(np.asarray(tokens, dtype=np.int64))[None]
            score_R = heads_RD @ trunk(ids).last_hidden_state[0, -1]
            target_R = torch.tensor(examples.target_PSR[pair, side])
            if not target_R.isnan().all():
                losses.append((score_R - target_R)[~target_R.isnan()].square().mean())
    loss = torch.stack(losses).mean()
    loss.backward()
    gradients = {f"trunk.{name}": parameter.grad for name, parameter in adapters.items()}
    return loss.item(), gradients | {"heads.weight": heads_RD.grad}


def test_the_first_step_has_the_loss_and_gradients_of_plain_transformers_and_peft(examples):
    model = load_reward_model(backbone(), head_ids=examples.head_ids)
    add_adapters(model, rank=RANK, alpha=ALPHA, seed=0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trained.values():
            parameter.normal_(std=0.02, generator=generator)
    weights = {name: parameter.detach().clone() for name, parameter in trained.items()}
    config = TrainingConfig(batch_pairs=NUM_PAIRS, tokens_per_microbatch=200)
    (record,), optimizer = train(model, examples, config)
    loss, gradients = plain_loss_and_gradients(examples, weights)
    assert record.loss == pytest.approx(loss, rel=1e-5)
    scale = max(gradient.abs().max() for gradient in gradients.values())
    assert optimizer.gradients[0].keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (optimizer.gradients[0][name] - gradient).abs().max() <= 1e-4 * scale, name


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_train_and_the_export_scores_as_plain_transformers(
    world, examples, tmp_path, dtype
):
    config = TrainingRunConfig(
        backbone=backbone(dtype),
        ratings=world / "ratings.parquet",
        method="lora",
        lora_rank=RANK,
        lora_alpha=ALPHA,
        learning_rate=2e-4,
        warmup_steps=0,
        batch_pairs=NUM_PAIRS,
        evaluation_share=0,
        epochs=4,
        out=tmp_path / "run",
    )
    result = stage.train(open_study(world / "study"), config)
    losses = [record["loss"] for record in read_log(result.out / "log.jsonl")]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]
    export_model(result.model_dir, out=tmp_path / "export")
    with safe_open(model_folder() / "model.safetensors", "pt") as file:
        before = file.get_tensor(f"model.{EMBEDDINGS}")
    with safe_open(tmp_path / "export" / "model.safetensors", "pt") as file:
        assert not [name for name in file.keys() if "lm_head" in name or "lora" in name]  # noqa: SIM118 - no dict
        after = file.get_tensor(f"model.{EMBEDDINGS}")
    assert after.shape == (49_152, 576)
    torch.testing.assert_close(after, before.to(getattr(torch, dtype)).float(), rtol=0, atol=0)
    model = load_model(result.model_dir, dtype="float32")[0]
    sequences = [*examples.chosen, *examples.rejected]
    expected_NR = score_sequences(model, sequences, pad_token_id=0)
    assert expected_NR.std() > 0.01  # equal scores would not tell models apart
    np.testing.assert_allclose(plain_scores(tmp_path / "export", sequences), expected_NR, atol=1e-4)
