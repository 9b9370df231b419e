"""Give a reward model away as a plain transformers folder: folded, verified, with a card."""

from __future__ import annotations

from encore.export.records import Composition, ExportAbout, ExportResult
from encore.export.write_export import export_model

__all__ = ["Composition", "ExportAbout", "ExportResult", "export_model"]
