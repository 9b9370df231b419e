"""What a terminal and a notebook show of a result: each field, in a few words."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterator
from pathlib import Path

from encore.core.record_table import html_table

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 3
_SHORT.maxstring = _SHORT.maxother = 60


class ShownRecord:
    """Base of dataclasses with ``repr=False`` whose fields hold whole tables and manifests.

    Long values are cut in their middle; the record's attributes have them whole.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={text}" for name, text in self._shown())
        return f"{type(self).__name__}({fields})"

    def _repr_html_(self) -> str:
        """Return the fields as a table for a notebook."""
        return html_table(("field", "value"), self._shown())

    def _shown(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each field and its value as a short text."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            if field.repr:
                value = getattr(self, field.name)
                text = repr(str(value)) if isinstance(value, Path) else _SHORT.repr(value)
                yield field.name, " ".join(text.split())
