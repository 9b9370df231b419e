"""Each engine has GPUs, or a share of the cores, of its own."""

from __future__ import annotations

import os

import pytest

from encore.core.errors import InputError
from encore.judges.gpu_groups import GPU_VARIABLE, engine_environments


@pytest.mark.parametrize(
    ("engines", "gpus_per_engine", "groups"),
    [(2, 1, ["4", "5"]), (2, 2, ["4,5", "6,7"]), ("auto", 1, ["4", "5", "6", "7"])],
)
def test_each_engine_has_gpus_of_its_own(monkeypatch, engines, gpus_per_engine, groups):
    monkeypatch.setenv(GPU_VARIABLE, "4,5,6,7")
    environments = engine_environments(engines, gpus_per_engine)
    assert environments == [{GPU_VARIABLE: group} for group in groups]


@pytest.mark.parametrize(
    ("engines", "gpus_per_engine", "message"),
    [
        (2, 3, r"4 GPUs \(4,5,6,7\): an engine takes 3 .* does not divide 4"),
        ("auto", 8, r"an engine takes 8 .* does not divide 4"),
        (5, 1, r"--engines 5: 4 GPUs are enough for 4 engines of 1 GPUs; give at most 4"),
        (3, 2, r"--engines 3: 4 GPUs are enough for 2 engines of 2 GPUs; give at most 2"),
    ],
)
def test_too_few_gpus_are_refused_by_number(monkeypatch, engines, gpus_per_engine, message):
    monkeypatch.setenv(GPU_VARIABLE, "4,5,6,7")
    with pytest.raises(InputError, match=message):
        engine_environments(engines, gpus_per_engine)


def test_without_gpus_engines_share_the_cores(monkeypatch):
    monkeypatch.setenv(GPU_VARIABLE, "")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert engine_environments(3, 1) == [{"OMP_NUM_THREADS": "2"}] * 3
    assert engine_environments(20, 1) == [{"OMP_NUM_THREADS": "1"}] * 20
    assert len(engine_environments("auto", 1)) == 1
