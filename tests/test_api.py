"""`import encore` offers the stages as functions and loads a module when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import encore


def test_every_public_name_can_be_loaded_and_has_a_docstring():
    for name in encore.__all__:
        assert getattr(encore, name).__doc__
    with pytest.raises(AttributeError, match="no_such_thing"):
        encore.no_such_thing  # noqa: B018 - the access is what is tested


def test_import_encore_loads_no_heavy_package():
    code = (
        "import sys, encore; "
        "print([name for name in ('pyarrow', 'numpy', 'duckdb', 'torch') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
