"""Tables and lists of the pages name everything of their kind that the code has."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from encore.data.sources import FORMATS
from encore.serving.server_metrics import ServerMetrics
from encore.weighting.schemes import SCHEMES

ROOT = Path(__file__).resolve().parents[2]


def code_words_of(page: str, heading: str) -> set[str]:
    """Return the words in code style of a page's section."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return set(re.findall(r"`([^`\s]+)`", section))


def test_the_page_of_weights_names_every_scheme_and_the_readme_counts_them():
    missing = set(SCHEMES) - code_words_of("analysis.md", "Which weights?")
    assert not missing, f"docs/analysis.md, 'Which weights?' lacks {sorted(missing)}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    num_others = len(SCHEMES) - 1
    assert f"and {num_others} other schemes" in readme, f"README.md: expected {num_others} schemes"


def test_the_page_of_data_names_every_format():
    missing = set(FORMATS) - code_words_of("data.md", "Preference pairs")
    assert not missing, f"docs/data.md, 'Preference pairs' lacks {sorted(missing)}"


def test_the_page_of_the_server_names_every_metric():
    queue = SimpleNamespace(texts=[], num_tokens=0)
    metrics = ServerMetrics(queue, head_ids=["rule"], mean_R=np.zeros(1), scale=None)
    names = set(re.findall(r"^# HELP (\S+)", metrics.as_text().decode(), re.M))
    names = {name for name in names if not name.endswith("_created")}
    assert "encore_texts_total" in names
    missing = names - code_words_of("serving.md", "Metrics")
    assert not missing, f"docs/serving.md, 'Metrics' lacks {sorted(missing)}"
