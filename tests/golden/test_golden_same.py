"""The comparison with golden values reports each kind of difference."""

from __future__ import annotations

import math

import pytest

from tests.golden import same
from tests.golden.same import ANY, assert_same, compact_json, mask_keys_and_paths

GOLDEN = {"name": "a", "count": 3, "share": 0.5, "rows": [{"loss": 2.0}, {"loss": None}]}


@pytest.mark.parametrize(
    ("changed", "tolerances"),
    [
        ({"name": "b"}, {}),
        ({"count": 4}, {}),
        ({"count": 3.0}, {}),
        ({"share": 0.5 + 2e-9}, {}),
        ({"share": math.nan}, {"*": 1.0}),
        ({"new": 1}, {}),
        ({"rows": [{"loss": 2.0}]}, {}),
        ({"rows": [{"loss": 2.0 + 3e-5}, {"loss": None}]}, {"rows.*.loss": 1e-5}),
        ({"rows": [{"loss": 2.0}, {"loss": 0.0}]}, {"rows.*.loss": 1e-5}),
    ],
)
def test_a_difference_is_seen(changed, tolerances):
    with pytest.raises(AssertionError, match=next(iter(changed))):
        assert_same({**GOLDEN, **changed}, GOLDEN, tolerances)


def test_a_key_that_is_gone_is_seen():
    with pytest.raises(AssertionError, match="lost"):
        assert_same({"name": "a"}, {"name": "a", "count": 3}, {"*": 1.0})


def test_a_difference_within_its_tolerance_is_accepted():
    close = {**GOLDEN, "share": 0.5 + 5e-10, "rows": [{"loss": 2.0 + 1e-5}, {"loss": None}]}
    assert_same(close, GOLDEN, {"rows.*.loss": 1e-5})
    assert_same({**GOLDEN, "name": 7}, GOLDEN, {"name": ANY})


def test_keys_and_temporary_paths_are_masked():
    seen = {"run": "run 0123456789abcdef of /x", "at": "/tmp/pytest-of-me/pytest-1/s"}  # noqa: S108
    assert mask_keys_and_paths([seen]) == [{"run": "run KEY of /x", "at": "PATH"}]


def test_a_recording_writes_nothing_but_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(same, "RECORDED", tmp_path)
    path, tolerances = tmp_path / "small.json", {"rows.*.loss": 1e-5, "version": ANY}
    path.write_text(compact_json({**GOLDEN, "version": "0.1"}), encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    monkeypatch.setenv(same.RECORD_VARIABLE, "1")
    rows = [{"loss": 2.0 + 1e-6}, {"loss": None}]
    changed = {**GOLDEN, "version": "0.2", "share": 0.5 + 1e-12, "rows": [*rows, {"loss": 3.0}]}
    same.check_golden("small", changed, tolerances)
    same.RECORDED_NAMES.clear()
    after = path.read_text(encoding="utf-8")
    assert after != before
    assert after.replace(',\n{"loss":3.0}', "") == before
