"""Check the layout, the imports at start, and that no file can run foreign code."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from encore.cli.app import build_app

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {
    *("encore", "tasks", "flows", "sql", "tests", "infra", "docs", "examples", ".ci", ".github"),
    *("pyproject.toml", "README.md", "CONTRIBUTING.md", "LICENSE", "Makefile"),
    *("AGENTS.md", "CITATION.cff"),
    *(".gitignore", ".dockerignore", ".devcontainer"),
}
HEAVY = {
    *("accelerate", "datasets", "duckdb", "jinja2", "matplotlib", "mlflow", "numpy", "pandas"),
    *("peft", "prefect", "prometheus_client", "pyarrow", "safetensors", "scipy", "sklearn"),
    *("starlette", "torch", "transformers", "uvicorn", "vllm"),
    "encore.cli.train",  # brings the options of many stages
}
#: Imports of the process that runs an SQL query.
ONE_QUERY = (
    "import sys; from encore.tables import sql_worker; "
    "sys.meta_path.insert(0, sql_worker._NoPandas); import encore.tables.study_database"
)
UNSAFE_LOADERS = {"cloudpickle", "dill", "joblib", "pickle", "shelve"}


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [file for file in files if file.is_file()]


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported_packages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_the_top_level_holds_only_what_the_architecture_names():
    assert {file.relative_to(ROOT).parts[0] for file in tracked_files()} <= TOP_LEVEL


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import encore", set()),
        ("from encore.cli.app import build_app; build_app(is_list=True)", set()),
        ("from encore.cli.app import build_app; build_app()", {"encore.cli.train"}),
        ("import encore.tables.sql_worker", set()),
        (ONE_QUERY, {"duckdb", "numpy", "pyarrow"}),
    ],
)
def test_programs_that_must_start_fast_import_nothing_heavy(code, allowed):
    code += "; import json, sys; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert HEAVY & set(json.loads(output)) <= allowed


def test_the_list_that_imports_no_command_is_that_of_the_whole_parser(capsys):
    lists = []
    for is_list in (True, False):
        build_app(is_list=is_list)(["--help"])
        lists.append(capsys.readouterr().out)
    assert lists[0] == lists[1]


def test_no_file_names_a_path_on_somebodys_machine():
    # Put together here so that this file is not its own counter-example.
    prefixes = [f"/{folder}/".encode() for folder in ("work", "root")]
    files_with_paths = [
        file.relative_to(ROOT).as_posix()
        for file in tracked_files()
        if any(prefix in file.read_bytes() for prefix in prefixes)
    ]
    assert files_with_paths == []


def test_nothing_runs_code_that_came_with_data_or_models():
    unsafe = [
        f"{path.relative_to(ROOT).as_posix()}: {problem}"
        for path in modules("encore", "tasks", "flows")
        for problem in unsafe_loads(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert unsafe == []


def test_one_function_makes_the_identities_of_sharded_runs():
    makers = {
        path.relative_to(ROOT).as_posix()
        for path in modules("encore", "tasks")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Dict)
        and {"num_pairs", "shard_size"} <= {getattr(key, "value", None) for key in node.keys}
    }
    assert makers == {"encore/runs/identity.py"}


def unsafe_loads(tree: ast.AST) -> Iterator[str]:
    """Yield imports that unpickle, and arguments that let a loaded file run code."""
    yield from (name for name in imported_packages(tree) if name.split(".")[0] in UNSAFE_LOADERS)
    for node in ast.walk(tree):
        for name, value in arguments_in(node):
            is_false = isinstance(value, ast.Constant) and value.value is False
            if name == "trust_remote_code" and not is_false:
                yield name
            if name == "weights_only" and ast.unparse(value) != "True":
                yield name
        if asks_about_remote_code(node):
            yield "from_pretrained"


def arguments_in(node: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """Yield a keyword, or the entries of a dict, which may become keywords."""
    if isinstance(node, ast.keyword):
        yield node.arg, node.value
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def asks_about_remote_code(node: ast.AST) -> bool:
    """Return True for an `AutoX.from_pretrained` that would ask on the terminal to run code."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    name = ast.unparse(node.func)
    is_auto = re.fullmatch(r"(Auto|auto_)\w+\.from_pretrained", name) is not None
    # A keyword without a name is a dict that is unpacked.
    return is_auto and not {"trust_remote_code", None} & {keyword.arg for keyword in node.keywords}
