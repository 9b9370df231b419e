"""Kernels are compiled only where a C compiler is found."""

from __future__ import annotations

from encore.model.compiling import has_compiler


def test_a_compiler_named_by_the_environment_or_on_the_path_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_compiler({})
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    assert has_compiler({})
    assert has_compiler({"CC": str(compiler)})
