"""What a recipe's stages follow from, as JSON: settings, and what lies at the places they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encore.data.sources.local import data_suffix
from encore.data.sources.locate import locate
from encore.files import file_sha256
from encore.model.config import BackboneConfig
from encore.model_files import folder_digest
from encore.recipes.recipe import Recipe, RowModel, TablePlan
from encore.training.config import TrainingConfig


def ingest_inputs(recipe: Recipe) -> dict[str, Any]:
    """Sources, and the digests of those that are local files.

    A pinned hub source is its revision; one that names none is what it was when it was read.

    Raises:
        InputError: An unknown source.
    """
    located = [one for source in recipe.sources for one in locate(source)]
    return {
        "sources": [
            {
                "label": one.label,
                "format": one.format,
                "name": one.repo_id or (one.path.name if one.path else None),
                "revision": one.revision,
                "subset": one.subset,
                "content": None if one.path is None else data_digests(one.path),
            }
            for one in located
        ],
        "prefer": recipe.prefer,
    }


def weighing_inputs(recipe: Recipe, *, ratings: str) -> dict[str, Any]:
    """The scheme, and the ratings that it weighs.

    Args:
        recipe: Says which scheme.
        ratings: Digest of the rating run's files.
    """
    return {"weighing": recipe.weighing.model_dump(mode="json"), "ratings": ratings}


def training_inputs(
    backbone: BackboneConfig,
    training: TrainingConfig,
    *,
    limit: int | None,
    learnt_from: str,
) -> dict[str, Any]:
    """Settings, backbone and data of a training.

    Args:
        backbone: What it starts from.
        training: How.
        limit: Pairs that it is restricted to.
        learnt_from: Stands for the ratings or the pairs.
    """
    return {
        "backbone": backbone_inputs(backbone),
        "training": training.model_dump(mode="json"),
        "limit": limit,
        "learnt_from": learnt_from,
    }


def backbone_inputs(backbone: BackboneConfig) -> dict[str, Any]:
    """A hub model is its id and revision, a folder its content."""
    settings = backbone.model_dump(mode="json")
    folder = Path(backbone.model).expanduser()
    if folder.is_dir():
        settings["model"] = f"sha256:{folder_digest(folder)}"
    template = backbone.chat_template
    if template is not None and Path(template).is_file():
        settings["chat_template"] = f"sha256:{file_sha256(Path(template))}"
    return settings


def table_inputs(table: TablePlan) -> dict[str, Any]:
    """Benchmark and rows; files of one's own are known by their content."""
    settings = table.model_dump(mode="json", exclude={"data", "benchmark"})
    definition = Path(table.benchmark)
    is_file = definition.is_file()
    return {
        **settings,
        "benchmark": f"sha256:{file_sha256(definition)}" if is_file else table.benchmark,
        "data": None if table.data is None else data_digests(table.data),
    }


def untouched_row_inputs(row: RowModel) -> dict[str, Any]:
    """A downloaded reward model that is a row as it is."""
    return {"row": row.name, "backbone": backbone_inputs(row.backbone)}


def data_digests(path: Path) -> dict[str, str]:
    """SHA-256 of a data file, or of each below a folder, by name; empty for what is not there."""
    if not path.is_dir():
        return {path.name: file_sha256(path)} if path.is_file() else {}
    files = sorted(file for file in path.rglob("*") if file.is_file() and data_suffix(file))
    return {file.relative_to(path).as_posix(): file_sha256(file) for file in files}
