"""Shards of two rules, so that a run has several."""

from __future__ import annotations

import pytest

from encore.rules import rule_questions


@pytest.fixture(autouse=True)
def shards_of_two(monkeypatch):
    """Runs of a few rules have several shards."""
    monkeypatch.setattr(rule_questions, "_SHARD_SIZE", 2)
