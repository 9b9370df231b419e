"""Pair by pair, `encore benchmark` says what the `rewardbench` command from PyPI says.

On real pairs in RewardBench's columns: the command in an environment of its own, float32, nothing
quantized, the same maximum length, one pair at a time (it pads on the left, which moves an
encoder's positions).

Legend: P pairs, 2 responses (chosen, rejected).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from encore.benchmarks.benchmark_config import BenchmarkConfig, PairsConfig
from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import read_benchmark_pairs
from encore.benchmarks.results import read_pair_results
from encore.benchmarks.run import run_benchmark
from encore.data.ingestion import ingest
from encore.data.records import Message
from encore.data.study import open_study
from encore.demo import judge_path
from encore.export import export_model
from encore.model.config import EXPORT_FILE, BackboneConfig
from encore.model.opening import open_reward_model
from encore.training.config import TrainConfig, TrainingConfig
from encore.training.train import train
from tests.benchmarks.plain_bert import write_plain_bert
from tests.export.readers.environments import reader_python
from tests.perf.readers_rewardbench import run_rewardbench
from tests.training.minilm import minilm_folder

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

TOLERANCE = 1e-5
#: Longer than any conversation of these, and as long as the encoder reads.
MAX_LENGTH = 512


@pytest.fixture(scope="module")
def study(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "study"
    ingest([str(shared_data / "hh-harmless-dev.jsonl.gz")], out=folder)
    return folder


def trained_run(study: Path, backbone: BackboneConfig) -> Path:
    """A Bradley–Terry head on real preferences; the backbone stays as it is."""
    config = TrainingConfig(objective="bradley-terry", method="probe")
    full = TrainConfig.of(study, backbone=backbone, training=config, limit=300)
    return train(open_study(study), full).out


def llama(study: Path, folder: Path) -> tuple[Path, Path]:
    """A tiny Llama: its run, and its export."""
    run = trained_run(study, BackboneConfig(model=str(judge_path()), max_length=MAX_LENGTH))
    opened = open_reward_model(run, device="cpu", dtype="float32")
    return run, export_model(opened, out=folder / "llama", weights={"reward": 1.0}).folder


def llama_with_line_breaks(study: Path, folder: Path) -> tuple[Path, Path]:
    """The same with a line break behind every conversation, as ChatML has it: the token scored."""
    _, plain = llama(study, folder)
    (plain / EXPORT_FILE).unlink()  # from here on it is somebody else's model
    template = (plain / "chat_template.jinja").read_text() + "{{- '\\n' -}}"
    (plain / "chat_template.jinja").write_text(template)
    settings = json.loads((plain / "tokenizer_config.json").read_text())
    settings["chat_template"] = template
    (plain / "tokenizer_config.json").write_text(json.dumps(settings))
    opened = open_reward_model(plain, device="cpu")
    prompt = [Message(role="user", content="Hi.")]
    assert opened.tokenizer.render(prompt, "Hello.").endswith("\n")
    return plain, plain


def minilm(study: Path, folder: Path) -> tuple[Path, Path]:
    """MiniLM at its class token: its run, and the same as transformers' own classifier."""
    model = str(minilm_folder(folder))
    backbone = BackboneConfig(model=model, max_length=MAX_LENGTH, pooling="class-token")
    run = trained_run(study, backbone)
    opened = open_reward_model(run, device="cpu", dtype="float32")
    return run, write_plain_bert(opened, folder / "minilm")


@pytest.mark.parametrize("make", [llama, llama_with_line_breaks, minilm])
def test_every_pair_is_judged_as_by_the_rewardbench_command(
    make: Callable[[Path, Path], tuple[Path, Path]],
    study: Path,
    shared_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
):
    run, plain = make(study, tmp_path)
    data = shared_data / "xstest-dev.jsonl"
    # The plain folder is a reward model for us too: a downloaded one.
    config = BenchmarkConfig(
        reward_models=(f"ours={run}", f"plain={plain}"),
        pairs=PairsConfig(benchmark="generic", data=data),
        out=tmp_path / "out",
    )
    done = run_benchmark(open_study(study), config)
    pairs = read_benchmark_pairs(load_benchmark("generic"), data=data).pairs
    theirs = run_rewardbench(
        plain,
        pairs,
        max_length=MAX_LENGTH,
        batch_size=1,
        python=reader_python("rewardbench"),
    )
    for row in read_pair_results(done.results_path).rows:
        reward_P2, credit_P = row.reward_P2, row.credit_P
        assert reward_P2 is not None
        difference = np.abs(reward_P2 - theirs.score_P2).max()
        with capsys.disabled():
            pytestconfig.get_terminal_writer().line(
                f"\n  {make.__name__}, {row.name}: {len(credit_P)} pairs, largest "
                f"difference {difference:.1e}, right {credit_P.mean():.4f}, rewardbench "
                f"{theirs.accuracy:.4f}"
            )
        assert difference < TOLERANCE
        np.testing.assert_array_equal(credit_P, theirs.score_P2[:, 0] > theirs.score_P2[:, 1])
        assert credit_P.mean() == pytest.approx(theirs.accuracy, abs=1e-12)
    assert np.ptp(theirs.score_P2) > 1000 * TOLERANCE  # else a wrong reader would agree too
