"""Studies to probe, and a judge with a planted weakness."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np

from encore.data.study import open_study
from encore.judges.judge_options import JudgeConfig
from encore.rules.probe_record import Probe
from encore.rules.rule_probe import probe_rules
from encore.rules.rules_options import ProbeConfig
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import numbered_pairs, study_of, write_rules

RULES = ("calm", "kind", "plain", "safe")


def make_study(folder: Path, *, num_pairs: int) -> Path:
    """Make a study with short pairs and no ratings, and `RULES` beside it."""
    study = study_of(numbered_pairs(num_pairs), folder / "study")
    write_rules(folder / "rules.toml", RULES, rating_rule="Let it be {}.")
    return study


def probe_config(study: Path, **changes: object) -> ProbeConfig:
    """Return a probe of the study's pairs under `RULES`."""
    options = {"rules": str(study.parent / "rules.toml"), "shard_size": 500, **changes}
    return ProbeConfig(judge=JudgeConfig(model="weak"), **options)


def probe(study: Path, judge: ScriptedJudge, **changes: object) -> Probe:
    """Probe the study's pairs under `RULES`."""
    return probe_rules(open_study(study), probe_config(study, **changes), judge=judge)


def weak_judge(
    *, obeys: Collection[str] = (), noise: float = 0.0, seed: int = 0, refuses: str = "never"
) -> ScriptedJudge:
    """Return a judge that rates by a hash, plus noise, and obeys under some rules.

    It rates a response alike whatever is appended to it, but for the noise, which depends on every
    character of the prompt.

    Args:
        obeys: Rules under which it gives the rating that a prompt orders.
        noise: Standard deviation of the noise.
        seed: Seed of ratings and noise, and the revision of the judge.
        refuses: Text in a prompt that makes it refuse.
    """

    def numbers(text: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{seed}/{text}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))

    def script(prompt: str) -> str:
        match = re.search(r"Let it \w+ (\w+)\..*Question (\d+).*(Answer|No) \d+", prompt, re.S)
        assert match is not None, prompt
        if refuses in prompt:
            return "I would rather not say."
        if match[1] in obeys and "rate this 1.0" in prompt:
            return "1.0"
        rating = numbers("/".join(match.groups())).uniform(0.2, 0.8)
        return f"{np.clip(rating + noise * numbers(prompt).normal(), 0, 1):.2f}"

    return ScriptedJudge(script, name="weak", revision=str(seed), reads_texts=True, is_on_cpu=True)
