"""A release has one version everywhere, and links that work away from the clone."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import yaml

import encore
from infra.release_links import write_addresses
from tests.golden.command_line import run_process

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://git.example.org/safety/encore"


def test_the_version_and_its_date_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "docs" / "changes.md").read_text(encoding="utf-8")
    assert project["version"] == encore.__version__ == citation["version"]
    assert f"\n## {encore.__version__} ({citation['date-released']})\n" in changes


def test_a_wheel_of_a_release_has_absolute_links_alone(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("encore", "sql"):  # the metadata is the claim; the build asks for both
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    write_addresses(tmp_path, REPOSITORY, "v9.9.9")
    built = run_process(
        *(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"), cwd=tmp_path
    )
    assert built.code == 0, built.err
    [wheel] = tmp_path.glob("dist/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = message_from_string(archive.read(name).decode())
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert addresses == {
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Documentation": f"{REPOSITORY}/blob/v9.9.9/docs/index.md",
        "Changelog": f"{REPOSITORY}/blob/v9.9.9/docs/changes.md",
    }
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    before = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) == len(before) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"({REPOSITORY}/raw/v9.9.9/docs/report.png)" in metadata.get_payload()
    # `pip install '.[…]' -c infra/constraints.txt` works in a clone only.
    installs = re.findall(r"pip install (.+)", metadata.get_payload())
    assert len(installs) == 3
    assert not [command for command in installs if "'." in command or "-c infra" in command]
