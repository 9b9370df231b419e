"""Export a reward model as a plain transformers folder: folded, verified, with a card.

`encore.export(…)` calls `encore.export.write_export.export_model`.
"""

from encore.core.callable_package import make_callable

make_callable(__name__, function="encore.export.write_export.export_model")
