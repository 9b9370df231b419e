"""`import encore` offers the stages as functions, and loads nothing until one is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import encore


def test_every_name_that_is_offered_is_there():
    for name in encore.__all__:
        assert getattr(encore, name).__doc__
    with pytest.raises(AttributeError, match="no_such_thing"):
        encore.no_such_thing  # noqa: B018 - the access is what is tested


def test_importing_it_loads_no_package_but_itself():
    code = (
        "import sys, encore; "
        "print([name for name in ('pyarrow', 'numpy', 'duckdb', 'torch') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
