"""The manifest beside the pairs of a label: origins, counts and digests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from encore.core.errors import InputError, first_problem

#: A source whose label begins like this is synthetic, whoever made it.
SYNTHETIC_LABEL = "synthetic"
#: Share of a source's records that may be set aside before the study counts as incomplete.
MAX_SET_ASIDE_SHARE = 0.1
_MANIFEST_SUFFIX = ".manifest.json"
_DEMO_DATA = Path(__file__).parents[1] / "demo" / "data"


class Origin(BaseModel):
    """Source of some records: a file's name or a hub id, never a path on somebody's machine.

    Attributes:
        kind: ``local`` for a file, ``hub`` for a repository on the Hugging Face hub.
        name: Name of the file, or id of the repository.
        format: Name of the parser that read the records (`encore.data.sources`).
        revision: Commit of the repository; None for a file.
        split: Split of the repository's data, e.g. ``train``.
        subset: Subset of the repository's data, where it has several.
        prefer: Label of raw PKU-SafeRLHF that says which response is chosen.
        num_read: Number of records read, malformed ones included.
        num_set_aside: Number of records that are not a pair.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["local", "hub"]
    name: str
    format: str
    revision: str | None = None
    split: str | None = None
    subset: str | None = None
    prefer: str | None = None
    num_read: int
    num_set_aside: int = 0


class PairsManifest(BaseModel):
    """Record of one ingested label: ``num_read = num_kept + num_duplicates + num_set_aside``.

    Attributes:
        label: Name of the source in the study.
        origins: Files and repositories that were read.
        num_read: Number of records read.
        num_kept: Number of distinct pairs, the rows of the Parquet file.
        num_duplicates: Records that equal an earlier pair of the label.
        num_set_aside: Records that are not a pair.
        set_aside_by_reason: Number of the records set aside, by reason.
        read_by_form: Number of the records read from another form than the one that is stored, by
            that form (`encore.data.sources.messages.Reading`).
        num_contradicting: Pairs whose responses also occur with chosen and rejected swapped.
        data_digest: SHA-256 over the sorted pair ids.
        parquet_sha256: SHA-256 of the Parquet file.
        encore_version: Version of encore that wrote the files.
        synthetic: True if no figure computed from these pairs is evidence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    origins: tuple[Origin, ...]
    num_read: int
    num_kept: int
    num_duplicates: int
    num_set_aside: int
    set_aside_by_reason: dict[str, int]
    read_by_form: dict[str, int] = {}
    num_contradicting: int
    data_digest: str
    parquet_sha256: str
    encore_version: str
    synthetic: bool = False

    @model_validator(mode="after")
    def _mark_synthetic_pairs(self) -> Self:
        """Mark pairs by their label, or as the demo's files, also where the file has no mark."""
        demo_files = {path.name for path in _DEMO_DATA.glob("*.jsonl.gz")}
        is_from_demo = any(
            origin.kind == "local" and origin.name in demo_files for origin in self.origins
        )
        if is_from_demo or self.label.casefold().startswith(SYNTHETIC_LABEL):
            object.__setattr__(self, "synthetic", True)
        return self


class PairFiles(NamedTuple):
    """Paths of one label's files, relative to the study."""

    set_aside: str
    pairs: str
    manifest: str


def pair_files(label: str) -> PairFiles:
    """Return the paths of a label's files, relative to the study."""
    return PairFiles(
        set_aside=f"pairs/{label}.set-aside.jsonl",
        pairs=f"pairs/{label}.parquet",
        manifest=f"pairs/{label}{_MANIFEST_SUFFIX}",
    )


def kept_columns_file(label: str) -> str:
    """Return the path of a label's further columns (`encore ingest --keep`), likewise."""
    return f"pairs/kept/{label}.parquet"


def ingested_labels(pairs_dir: Path) -> tuple[str, ...]:
    """Return the labels that have a manifest in a study's folder of pairs, sorted."""
    names = (path.name for path in pairs_dir.glob(f"[!.]*{_MANIFEST_SUFFIX}"))
    return tuple(sorted(name.removesuffix(_MANIFEST_SUFFIX) for name in names))


def read_pairs_manifest(pairs_dir: Path, label: str) -> PairsManifest:
    """Read the manifest of a label from a study's folder of pairs.

    Raises:
        InputError: The file is not a manifest.
    """
    path = pairs_dir / f"{label}{_MANIFEST_SUFFIX}"
    try:
        return PairsManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = first_problem(error)
        raise InputError(
            f"{path}: damaged manifest, {problem.path or 'file'}: {problem.message}; ingest again "
            "with --replace"
        ) from error
