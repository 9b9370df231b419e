"""Cards as the Hugging Face hub reads them: metadata, then the text of a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import CardData


def hub_card(template: Path, metadata: CardData, **values: Any) -> str:
    """Return the content of a ``README.md`` for the hub.

    Args:
        template: Path of a Markdown template in Jinja; ``cell`` is a filter for texts in tables.
        metadata: Metadata that the hub reads from the top of the file.
        values: Values of the template's variables, by name.
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
    text = environment.get_template(template.name).render(**values)
    return f"---\n{metadata.to_yaml()}\n---\n\n{text}"


def _cell(text: object) -> str:
    """Return a text escaped for a cell of a Markdown table."""
    escaped = str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
