"""Prepare pages for the documentation's site, and write `llms.txt` for language models."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

#: A link to a file outside docs/: its text and its target.
_LINK_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
#: The target of a tutorial's link to a page.
_PAGE_OF_LINK = re.compile(r'(href="\.\./[\w-]+)\.md(?=["#])')
#: A picture of a page, as HTML.
_PICTURE = re.compile(r'<img [^>]*?src="([^"]+)"[^>]*>')


def on_pre_build(**_: Any) -> None:
    """Keep a warning about progress bars, with a path of this machine, out of the tutorials."""
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"


def on_page_markdown(markdown: str, *, config: Any, page: Any, **_: Any) -> str:
    """Turn links to files outside docs/ into links to the repository, or into their text."""
    if "/" in page.file.src_uri:  # from a folder of docs/ they lead to another page
        return markdown
    repository = config.repo_url

    def replacement(match: re.Match[str]) -> str:
        text, target = match.groups()
        return f"[{text}]({repository}/blob/main/{target})" if repository else text

    return _LINK_OUTSIDE.sub(replacement, markdown)


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Link each picture of a page to its file, and a tutorial's links to the pages of the site.

    A picture of a screen is small on a page. mkdocs-jupyter leaves links as they are.
    """
    if page.file.src_uri.endswith(".md"):
        return _PICTURE.sub(r'<a href="\1">\g<0></a>', html)
    return _PAGE_OF_LINK.sub(r"\1.html", html)


def on_post_build(*, config: Any) -> None:
    """Write `llms.txt`: a line for each page with its title and its first paragraph."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for path in sorted(Path(config.docs_dir).rglob("*.md")):
        title, _, text = path.read_text(encoding="utf-8").partition("\n")
        first_paragraph = " ".join(text.strip().split("\n\n")[0].split())
        name = path.relative_to(config.docs_dir).as_posix()
        lines.append(f"- [{title.lstrip('# ')}]({name}): {first_paragraph}")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
