"""A tiny judge's folder, and an engine on it; no test changes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encore.judges import open_judge
from encore.judges.base import Judge
from encore.judges.judge_options import JudgeConfig
from tests.worlds.tiny_judge import make_tiny_judge


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_judge(tmp_path_factory.mktemp("judges") / "tiny", max_model_len=2048)


@pytest.fixture(scope="module")
def vllm_judge(folder: Path) -> Iterator[Judge]:
    judge = open_judge(JudgeConfig(model=str(folder)))
    yield judge
    judge.close()
