"""One small study that all golden tests share, made by commands alone."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.golden.command_line import encore
from tests.golden.fixed_ratings import write_fixed_ratings
from tests.golden.same import RECORD_VARIABLE, WRITTEN
from tests.golden.tiny_llama import write_tiny_llama

PRODUCT = Path(__file__).resolve().parents[2] / "encore"
NUM_PAIRS = 10  # of each of the two sources
TRAINING = (
    *("--max-length", 512, "--batch-pairs", 4, "--epochs", 10, "--max-steps", 20),
    *("--learning-rate", 1e-3, "--warmup-steps", 2, "--evaluation-share", 0.2),
    *("--evaluate-every", 10, "--checkpoint-every", 10),
)


def shipped(name: str) -> Path:
    """A data file of the product, wherever it lies."""
    found = sorted(PRODUCT.rglob(name))
    assert found, f"no {name} in {PRODUCT}"
    return found[0]


@pytest.fixture(autouse=True)
def a_recording_does_not_pass() -> Iterator[None]:
    """Fail the test if it wrote golden values instead of comparing with them."""
    yield
    written = ", ".join(WRITTEN)
    WRITTEN.clear()
    if written:
        pytest.fail(f"recorded {written}; run again without {RECORD_VARIABLE}")


@dataclass
class GoldenStudy:
    """A study's folder and what the commands that made it printed as JSON."""

    folder: Path
    judge: Path
    backbone: Path
    ingested: Any
    rated: Any

    def train(self, *options: object) -> Any:
        """`encore train` on the tiny backbone, settings fixed."""
        return encore(
            *("train", self.folder, "--backbone", self.backbone, *TRAINING, *options, "--json")
        ).json

    @cached_property
    def probe(self) -> Any:
        """A model whose heads are solved on the frozen backbone: no training noise in it."""
        return self.train("--method", "probe")

    @cached_property
    def probe_run(self) -> Path:
        return Path(self.probe["out"])

    @cached_property
    def scored(self) -> Any:
        """`encore score` with that model."""
        return encore("score", self.folder, "--model", self.probe_run, "--json").json


def few_lines(name: str, folder: Path) -> Path:
    """The first lines of a shipped gzip file."""
    lines = gzip.decompress(shipped(name).read_bytes()).splitlines(keepends=True)
    path = folder / name
    path.write_bytes(gzip.compress(b"".join(lines[:NUM_PAIRS]), mtime=0))
    return path


@pytest.fixture(scope="session")
def golden_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped judge in a folder of our own, whose name is part of the run's key."""
    folder = tmp_path_factory.mktemp("golden-judge") / "shipped-judge"
    shutil.copytree(shipped("model.safetensors").parent, folder)
    return folder


@pytest.fixture(scope="session")
def golden_study(tmp_path_factory: pytest.TempPathFactory, golden_judge: Path) -> GoldenStudy:
    """Twenty of the demo's pairs, rated by the shipped judge."""
    folder = tmp_path_factory.mktemp("golden")
    study = folder / "study"
    sources = [
        f"hh={few_lines('hh-like.jsonl.gz', folder)}",
        f"pku={few_lines('pku-like.jsonl.gz', folder)}",
    ]
    ingested = encore("ingest", *sources, "--out", study, "--json").json
    rated = encore(
        *("rate", study, "--judge", golden_judge, "--backend", "transformers"),
        *("--shard-size", 12, "--json"),
    ).json
    return GoldenStudy(
        folder=study,
        judge=golden_judge,
        backbone=write_tiny_llama(folder / "tiny-llama"),
        ingested=ingested,
        rated=rated,
    )


@pytest.fixture(scope="session")
def fixed_ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file of ratings from a seeded generator."""
    return write_fixed_ratings(tmp_path_factory.mktemp("fixed") / "ratings.parquet")
