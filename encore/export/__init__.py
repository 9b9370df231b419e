"""Export a reward model as a plain transformers folder: folded, verified, with a card.

The package is called like its function `encore.export.write_export.export_model`:
``encore.export("study/training/KEY", out="folder", weights=weights)``.
"""

from encore.core.callable_package import make_callable

make_callable(__name__, function="encore.export.write_export.export_model")
