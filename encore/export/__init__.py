"""Give a reward model away as a plain transformers folder: folded, verified, with a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encore.export.write_export import export_model

__all__ = ["export_model"]


def __getattr__(name: str) -> Any:
    """Import `export_model` late: it loads transformers, and `encore --help` must not."""
    if name != "export_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from encore.export.write_export import export_model

    return export_model
