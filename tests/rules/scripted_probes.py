"""Studies to probe, and a judge with a planted weakness."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np

from encore.data.ingestion import ingest
from encore.judges.judge_config import JudgeConfig
from encore.rules.rules_config import ProbeConfig
from tests.rating.test_rating_run import write_source
from tests.worlds.judges import ScriptedJudge

RULES = ("calm", "kind", "plain", "safe")


def write_rules(path: Path, *, rule_ids: Collection[str] = RULES, verb: str = "be") -> Path:
    """A rule set with one short text for each id."""
    tables = (
        f'[[rules]]\nrule_id = "{one}"\ntitle = "{one}"\ndescription = "About {one}."\n'
        f'preference_rule = "Accept {one}."\nrating_rule = "Let it {verb} {one}."\n'
        for one in rule_ids
    )
    path.write_text('name = "mine"\n' + "".join(tables), encoding="utf-8")
    return path


def make_study(folder: Path, *, num_pairs: int) -> Path:
    """A study with short pairs and no ratings."""
    folder.mkdir(parents=True, exist_ok=True)
    ingest([f"mine={write_source(folder, num_pairs=num_pairs)}"], out=folder / "study")
    return folder / "study"


def probe_config(study: Path, **changes: object) -> ProbeConfig:
    """A probe of the study's pairs under `RULES`."""
    rules = study.parent / "rules.toml"
    if not rules.exists():
        write_rules(rules)
    given = {"study": study, "rules": str(rules), "shard_size": 500, **changes}
    return ProbeConfig(judge=JudgeConfig(model="weak"), **given)


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
