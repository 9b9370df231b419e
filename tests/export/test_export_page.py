"""The lines by which docs/export.md loads an export are those of its card."""

from __future__ import annotations

import re
from pathlib import Path

from encore.export import export_model
from tests.export.opened import WEIGHTS, opened_model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"


def test_the_page_loads_an_export_as_the_exports_card_does(tmp_path):
    result = export_model(opened_model(), out=tmp_path / "my-model", weights=WEIGHTS)
    card = (result.folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert 'from_pretrained("my-model")' in code
    assert code in PAGE.read_text(encoding="utf-8")
