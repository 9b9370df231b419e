"""Cards as the Hugging Face hub reads them: metadata, then the text of a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import CardData

from encore.core.markdown_text import code_span, inert


def hub_card(template: Path, metadata: CardData, **values: Any) -> str:
    """Return the content of a ``README.md`` for the hub.

    Args:
        template: Path of a Markdown template in Jinja. Its filters ``inert`` and ``code`` are for
            texts from outside (`encore.core.markdown_text`).
        metadata: Metadata that the hub reads from the top of the file.
        values: Values of the template's variables, by name.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=False,  # noqa: S701 - Markdown; the filters escape texts from outside
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"inert": inert, "code": code_span}
    text = environment.get_template(template.name).render(**values)
    return f"---\n{metadata.to_yaml()}\n---\n\n{text}"
