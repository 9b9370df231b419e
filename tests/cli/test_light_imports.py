"""Commands are light to import: `encore --help` lists them and loads no engine."""

from __future__ import annotations

import subprocess
import sys


def test_the_list_of_commands_loads_neither_torch_nor_transformers_nor_duckdb() -> None:
    code = (
        "import sys; from encore.cli.app import build_app; build_app();"
        "heavy = {'torch', 'transformers', 'vllm', 'duckdb', 'scipy', 'sklearn', 'matplotlib'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
