"""Prepare pages for the documentation's site, and write their index for language models.

``python infra/mkdocs_hooks.py`` writes ``docs/llms.txt``, the index beside the pages.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

#: A link to a file outside docs/: its text and its target.
_LINK_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
#: The target of a tutorial's link to a page.
_PAGE_OF_LINK = re.compile(r'(href="\.\./[\w-]+)\.md(?=["#])')
#: A page in the navigation of the site: its address below docs/.
_PAGE_OF_NAVIGATION = re.compile(r"[\w/-]+\.(?:md|py)$", re.MULTILINE)
#: The question that a page begins with, else its first sentence.
_FIRST_SENTENCE = re.compile(r".+?[.?](?= |$)")
_DOCS = Path(__file__).resolve().parents[1] / "docs"
_INDEX_HEAD = """# ENCORE

> Which of your safety rules does a judge apply as people do? ENCORE audits rules by their ratings,
> weighs them, and trains and serves reward models with a score per rule.

Use it as a command or from Python: `encore ingest study pairs.jsonl`,
`encore rate study --judge MODEL`, `encore analyze study`, `encore weights study`. Every command has
`--help` and `--json`, and the same command continues after a crash. In Python
`encore.analyze("ratings.csv")` takes ratings from anywhere. `encore demo` makes a study of
synthetic data without network or GPU.

Each page answers this question:

"""
#: A table of a page, as HTML, and the fewest columns that a phone has no room for.
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_MANY_COLUMNS = 6
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
    """Link pictures to their files and tutorials to the site's pages; label cells of wide tables.

    A picture of a screen is small on a page. mkdocs-jupyter leaves links as they are.
    """
    if page.file.src_uri.endswith(".md"):
        return _PICTURE.sub(r'<a href="\1">\g<0></a>', _TABLE.sub(_label_cells, html))
    return _PAGE_OF_LINK.sub(r"\1.html", html)


def _label_cells(table: re.Match[str]) -> str:
    """Give each cell of a wide table the head of its column, which site.css shows on phones."""
    heads = re.findall(r"<th\b[^>]*>(.*?)</th>", table[0])
    if len(heads) < _MANY_COLUMNS:
        return table[0]
    texts = itertools.cycle(re.sub(r"<[^>]+>", "", head).replace('"', "") for head in heads)
    return re.sub(r"<td\b", lambda _: f'<td data-head="{next(texts)}"', table[0])


def index_of_pages() -> str:
    """Return the index for language models: how to begin, and each page with its question."""
    navigation = (_DOCS.parent / "infra" / "mkdocs.yml").read_text(encoding="utf-8")
    lines = []
    for name in _PAGE_OF_NAVIGATION.findall(navigation.partition("\nnav:\n")[2]):
        text = (_DOCS / name).read_text(encoding="utf-8")
        if name.endswith(".py"):
            text = re.sub(r"(?m)^# ?(?:%%.*\n)?", "", text)
        title, _, body = text.strip().partition("\n")
        paragraph = " ".join(body.strip().split("\n\n")[0].split())
        sentence = _FIRST_SENTENCE.match(paragraph)
        lines.append(f"- [{title.lstrip('# ')}]({name}): {sentence[0] if sentence else paragraph}")
    return _INDEX_HEAD + "\n".join(lines) + "\n"


def on_post_build(*, config: Any) -> None:
    """Write the index for language models with the addresses of the site's pages."""
    text = re.sub(r"\]\(([\w/-]+)\.(?:md|py)\)", r"](\1.html)", index_of_pages())
    Path(config.site_dir, "llms.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    (_DOCS / "llms.txt").write_text(index_of_pages(), encoding="utf-8")
