"""What the training throughput comparison is made of does what it says."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from encore.training.examples import TokenTable
from tests.perf.training.data import Pairs, sample_of_grouped_batches, synthesise
from tests.perf.training.rounds import ROOT, Round
from tests.perf.training.table import Arithmetic, table

GIB = 2**30


def test_synthetic_pairs_are_as_long_as_hh_rlhfs_and_share_as_much():
    pairs = synthesise(num_pairs=4_000, vocabulary=1000)
    assert pairs.length_N.mean() == pytest.approx(300, rel=0.05)
    assert pairs.num_shared / pairs.length_N.sum() == pytest.approx(0.365, abs=0.02)
    assert pairs.length_N.max() <= 1024


def test_a_sample_of_grouped_batches_is_grouped_as_the_whole_is():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 1000, size=(1600, 2))
    tables = [TokenTable.of(np.zeros(n, dtype=np.int32) for n in side) for side in lengths.T]
    pairs = Pairs(chosen=tables[0], rejected=tables[1])
    sample = sample_of_grouped_batches(pairs, num_pairs=64, batch_pairs=8)
    assert len(sample.chosen) == 64
    longest = np.maximum(sample.chosen.lengths, sample.rejected.lengths).reshape(8, 8)
    # 1,600 pairs make windows of 50 batches: the eight of a batch are neighbours among 400 pairs
    # whose longer responses span 1,000 tokens, thinly at the short end. Without grouping the eight
    # span several hundred.
    assert np.median(np.ptp(longest, axis=1)) < 50
    # Taken evenly: the mean of the longer of two uniform lengths is two thirds of 1,000.
    assert longest.mean() == pytest.approx(667, rel=0.05)


def test_the_table_counts_real_tokens_and_no_padding_as_work():
    def round_(seconds: float, *, padding: int) -> Round:
        return Round(
            seconds=seconds,
            num_tokens=1000,
            num_computed=1000 + padding,
            num_padding=padding,
            peak_memory_bytes=3 * GIB,
        )

    rounds = {
        "ours": [round_(1.0, padding=0), round_(2.0, padding=0), round_(4.0, padding=0)],
        "TRL": [round_(5.0, padding=1000)],
    }
    # 500 tokens a second at 7 operations each, of 10,000 a second; TRL 200.
    arithmetic = Arithmetic(flops_per_token=7.0, peak_flops=10_000.0)
    _, ours, trl = table(rounds, arithmetic=arithmetic, baseline="TRL")
    assert " ".join(ours.split()) == "ours 500 (250-1,000) 2.50 35.0 % 0.0 % 100.0 % 3.00"
    assert " ".join(trl.split()) == "TRL 200 (200-200) 1.00 14.0 % 50.0 % 200.0 % 3.00"


BARE = """
import importlib.abc, importlib.util, sys
absent = {absent}
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
found = importlib.util.find_spec
def find(name, *more):
    return None if name.partition(".")[0] in absent else found(name, *more)
importlib.util.find_spec = find
from tests.perf.training.bare_pydantic import install_if_missing
install_if_missing()
import torch
from transformers import AutoModel, LlamaConfig
from encore.model.attention import register_segment_attention
from encore.model.reward_model import MultiHeadRewardModel
from encore.training.config import TrainingConfig
from encore.training.optimizers import make_optimizer
import encore.training.backbone_shape, tests.perf.training.on_gpu
from tests.perf.training.data import synthesise
from tests.perf.training.ours import train_round
shape = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
shape |= dict(num_attention_heads=4, num_key_value_heads=2)
trunk = AutoModel.from_config(
    LlamaConfig(**shape), dtype=torch.bfloat16, attn_implementation=register_segment_attention()
)
model = MultiHeadRewardModel(trunk, head_ids=["reward"], pooling="last", is_causal=True)
model.enable_gradient_checkpointing()
pairs = synthesise(num_pairs=4, vocabulary=50)
for layout in ("packed", "prefix-shared"):
    config = TrainingConfig(objective="bradley-terry", layout=layout, batch_pairs=2)
    optimizer = make_optimizer(model, config)
    done = train_round(model, pairs, config, optimizer=optimizer, pad_token_id=0, num_steps=2)
    assert done.num_padding == 0 and done.num_tokens == pairs.length_N.sum(), done
print("done")
"""


@pytest.mark.full
def test_a_step_on_the_gpus_path_needs_only_what_a_bare_machine_has():
    absent = {"pydantic", "pydantic_core", "pydantic_settings", "duckdb", "typer", "rich", "scipy"}
    absent |= {"sklearn", "pandas", "datasets", "mlflow", "prefect"}
    finished = subprocess.run(
        [sys.executable, "-c", BARE.format(absent=absent)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert finished.stdout.splitlines()[-1:] == ["done"], finished.stderr
