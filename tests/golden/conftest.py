"""The small study that all golden tests share, made by commands alone."""

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
from tests.golden.same import RECORD_VARIABLE, RECORDED_NAMES
from tests.golden.tiny_llama import write_tiny_llama

PRODUCT = Path(__file__).resolve().parents[2] / "encore"
NUM_PAIRS = 10  # from each of the two sources
TRAINING = (
    *("--max-length", 512, "--batch-pairs", 4, "--epochs", 10, "--max-steps", 20),
    *("--learning-rate", 1e-3, "--warmup-steps", 2, "--evaluation-share", 0.2),
    *("--evaluate-every", 10, "--checkpoint-every", 10),
)


def find_product_file(name: str) -> Path:
    """Return the path of a data file that the product ships, in whatever folder it lies."""
    paths = sorted(PRODUCT.rglob(name))
    assert paths, f"no {name} in {PRODUCT}"
    return paths[0]


@pytest.fixture(autouse=True)
def fail_while_recording() -> Iterator[None]:
    """Fail the test if it wrote golden values instead of comparing with them."""
    yield
    names = ", ".join(RECORDED_NAMES)
    RECORDED_NAMES.clear()
    if names:
        pytest.fail(f"recorded {names}; run again without {RECORD_VARIABLE}")


@dataclass
class GoldenStudy:
    """A study's folder, and the JSON that the commands printed which made it."""

    folder: Path
    judge: Path
    backbone: Path
    ingested: Any
    rated: Any

    @property
    def judge_options(self) -> tuple[object, ...]:
        """Return the options that name the judge."""
        return ("--judge", self.judge, "--backend", "transformers")

    def copy(self, folder: Path) -> Path:
        """Return a copy of the study that a test may change."""
        return Path(shutil.copytree(self.folder, folder / "study"))

    def train(self, *options: object) -> Any:
        """Run `encore train` on the tiny backbone with fixed settings; return its JSON."""
        return encore(
            *("train", self.folder, "--backbone", self.backbone, *TRAINING, *options, "--json")
        ).json

    @cached_property
    def probe(self) -> Any:
        """Train heads by ridge regression on the frozen backbone, so without training noise."""
        return self.train("--method", "probe")

    @cached_property
    def probe_run(self) -> Path:
        """Return the folder of the trained probe."""
        return Path(self.probe["out"])

    @cached_property
    def scored(self) -> Any:
        """Score the study's pairs with the probe; return the JSON of `encore score`."""
        return encore("score", self.folder, "--model", self.probe_run, "--json").json


def write_first_lines(name: str, folder: Path) -> Path:
    """Copy the first `NUM_PAIRS` lines of a shipped gzip file to ``folder``; return the copy."""
    lines = gzip.decompress(find_product_file(name).read_bytes()).splitlines(keepends=True)
    path = folder / name
    path.write_bytes(gzip.compress(b"".join(lines[:NUM_PAIRS]), mtime=0))
    return path


@pytest.fixture(scope="session")
def golden_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the shipped judge to a folder with a fixed name, which is part of the run's key."""
    folder = tmp_path_factory.mktemp("golden-judge") / "shipped-judge"
    shutil.copytree(find_product_file("model.safetensors").parent, folder)
    return folder


@pytest.fixture(scope="session")
def golden_study(tmp_path_factory: pytest.TempPathFactory, golden_judge: Path) -> GoldenStudy:
    """Ingest twenty of the demo's pairs and rate them with the shipped judge."""
    folder = tmp_path_factory.mktemp("golden")
    study = folder / "study"
    sources = [
        f"hh={write_first_lines('hh-like.jsonl.gz', folder)}",
        f"pku={write_first_lines('pku-like.jsonl.gz', folder)}",
    ]
    ingested = encore("ingest", study, *sources, "--json").json
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
    """Write a Parquet file of ratings from a seeded generator."""
    return write_fixed_ratings(tmp_path_factory.mktemp("fixed") / "ratings.parquet")
