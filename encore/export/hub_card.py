"""Cards as the Hugging Face hub reads them: metadata, then a template's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import CardData


def hub_card(template: Path, metadata: CardData, **values: Any) -> str:
    """The content of a ``README.md``.

    Args:
        template: Markdown in Jinja; ``cell`` is a filter for texts in tables.
        metadata: What the hub reads.
        values: What the template speaks of.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=False,  # noqa: S701 - Markdown; cells of tables are escaped by the filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cell"] = _cell
    words = environment.get_template(template.name).render(**values)
    return f"---\n{metadata.to_yaml()}\n---\n\n{words}"


def _cell(text: object) -> str:
    """A text that stays within its cell and is read as text."""
    escaped = str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
