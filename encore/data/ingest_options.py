"""Configuration of `encore ingest`."""

from __future__ import annotations

from encore.core.config import StageConfig, option
from encore.data.pairs_manifest import MAX_SET_ASIDE_SHARE
from encore.data.sources.pku import Prefer
from encore.data.study_options import StudyFolder


class IngestConfig(StageConfig):
    """Options of `encore ingest`."""

    out: StudyFolder = option(positional=True, name="study")
    """The study directory; created if missing."""
    sources: tuple[str, ...] = option(positional=True, metavar="SOURCE...", min_length=1)
    """What to read, each as [LABEL=][FORMAT:]WHERE. WHERE is hh, hh/harmless-base, pku or hh-pku
    (the paper's data, from the Hugging Face hub at a pinned commit), a hub id OWNER/NAME or
    OWNER/NAME@REVISION, or a local file of JSON (.jsonl, .ndjson, .json), CSV (.csv, .tsv), Parquet
    or Arrow (.arrow, .feather), text also compressed (.gz, .zst, .xz, .bz2, .lz4), a folder of such
    files, or one that save_to_disk of datasets wrote. FORMAT is hh, pku, rlhflow or pairs;
    without it, it is detected from the first record. LABEL becomes the `source` column."""
    prefer: Prefer | None = option(None)
    """Label of raw PKU-SafeRLHF that says which response is chosen: safer (harmlessness, the
    default) or better (helpfulness)."""
    split: str | None = option(None, examples=["train", "test", "train+test"])
    """Split of the hub sources: train (the default), test or train+test."""
    keep: str | None = option(None, metavar="NAME,NAME,...")
    """Further columns of the records to keep beside the pairs, e.g. language,category, for
    `encore analyze --by`."""
    replace: bool = option(False)
    """Replace the pairs of a label if they differ."""
    max_set_aside_share: float = option(MAX_SET_ASIDE_SHARE, ge=0, le=1, metavar="SHARE")
    """Share of a source's records that may be set aside. Above it the command ends with exit code
    3, after the study is written."""
