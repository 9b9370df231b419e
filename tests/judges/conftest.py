"""A tiny judge's folder, an engine on it, and waits that are short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encore.judges import open_judge
from encore.judges.base import Judge
from encore.judges.judge_options import JudgeConfig
from tests.worlds.tiny_judge import make_tiny_judge


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a client wait hundredths of a second before it asks again."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.02)
    monkeypatch.setattr("encore.judges.http_judge._REPEAT_SECONDS", 0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_judge(tmp_path_factory.mktemp("judges") / "tiny", max_model_len=2048)


@pytest.fixture(scope="module")
def vllm_judge(folder: Path) -> Iterator[Judge]:
    judge = open_judge(JudgeConfig(model=str(folder)))
    yield judge
    judge.close()
