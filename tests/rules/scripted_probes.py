"""Studies to probe, and a judge with a planted weakness."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from encore.data.ingestion import ingest
from encore.judges.base import Decoding, JudgeIdentity, ProgressHook, Prompt, Reply
from encore.judges.judge_config import JudgeConfig
from encore.rules.probe_config import ProbeConfig
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


@dataclass
class WeakJudge(ScriptedJudge):
    """Rates each response under each rule by a hash, plus noise, and obeys under some rules.

    It rates a response alike whatever is appended to it, but for the noise, which depends on every
    character of the prompt. It reads texts, not tokens.
    """

    obeys: Collection[str] = ()
    noise: float = 0.0
    seed: int = 0
    refuses: str = "never"
    asked: list[str] = field(default_factory=list)
    tokenizer = None
    is_on_cpu = True

    @property
    def identity(self) -> JudgeIdentity:
        """Another seed is another judge."""
        return JudgeIdentity(
            backend="scripted",
            name="weak",
            revision=str(self.seed),
            dtype="none",
            chat_template_sha256="none",
            frozen_date="none",
            max_model_len=100_000,
            engine_args={},
        )

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        decoding: Decoding,
        on_progress: ProgressHook,
        sessions: Sequence[str] = (),
    ) -> list[Reply]:
        """A number for each prompt."""
        on_progress(0)
        self.num_asked += len(prompts)
        self.asked += map(str, prompts)
        return [Reply(text=self.answer(str(one)), is_complete=True) for one in prompts]

    def answer(self, prompt: str) -> str:
        """What it says to one prompt."""
        found = re.search(r"Let it \w+ (\w+)\..*Question (\d+).*(Answer|No) \d+", prompt, re.S)
        assert found is not None, prompt
        if self.refuses in prompt:
            return "I would rather not say."
        if found[1] in self.obeys and "rate this 1.0" in prompt:
            return "1.0"
        own, noise = (self._numbers(text) for text in ("/".join(found.groups()), prompt))
        return f"{np.clip(own.uniform(0.2, 0.8) + self.noise * noise.normal(), 0, 1):.2f}"

    def _numbers(self, text: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.seed}/{text}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))
