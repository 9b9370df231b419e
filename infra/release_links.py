"""Write the repository's address into a checkout that is about to be built for the package index.

    python infra/release_links.py https://github.com/OWNER/NAME v0.2.0

The index shows the README away from its repository. Links and pictures become absolute at a tag,
the advice to install names the distribution instead of the clone, and `pyproject.toml` gets
`[project.urls]`. The release workflow calls it; `git restore README.md pyproject.toml` undoes it.
"""

import re
import sys
from pathlib import Path

#: A Markdown link or picture whose target is a file of the repository.
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")
PAGES = {"Documentation": "docs/index.md", "Changelog": "docs/changes.md"}


def write_addresses(root: Path, repository: str, tag: str) -> None:
    """Make the links of a checkout absolute, and add the addresses that the index shows.

    Args:
        root: The checkout.
        repository: Address of the repository's page.
        tag: Name of the tag, or branch, that the links lead to.
    """
    readme, project = root / "README.md", root / "pyproject.toml"

    def absolute(match: re.Match[str]) -> str:
        is_picture, text, target = match.groups()
        kind = "raw" if is_picture else "blob"
        return f"{is_picture}[{text}]({repository}/{kind}/{tag}/{target})"

    text = RELATIVE_LINK.sub(absolute, readme.read_text(encoding="utf-8"))
    text = text.replace("install '.[", "install 'encore-reward[")
    constraints = "infra/constraints.txt"
    text = text.replace(f"-c {constraints}", f"-c {repository}/raw/{tag}/{constraints}")
    readme.write_text(text, encoding="utf-8")

    addresses = {"Source": repository, "Issues": f"{repository}/issues"}
    addresses |= {name: f"{repository}/blob/{tag}/{page}" for name, page in PAGES.items()}
    lines = [f'{name} = "{address}"' for name, address in addresses.items()]
    settings = project.read_text(encoding="utf-8")
    heading = "[project.scripts]"
    if settings.count(heading) != 1 or "[project.urls]" in settings:
        raise SystemExit(
            f"{project}: expected one {heading} and no [project.urls]; restore the file"
        )
    urls = "\n".join(["[project.urls]", *lines, "", heading])
    project.write_text(settings.replace(heading, urls), encoding="utf-8")


if __name__ == "__main__":
    write_addresses(Path(), sys.argv[1].rstrip("/"), sys.argv[2])
