"""A publication is written completely or not at all, and replaces only another publication."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.core.errors import InputError
from encore.tables.publish import publish
from tests.tables.sql.studies import digest_of_tree

RENAME = Path.rename


def fail(*_: object, **__: object) -> None:
    raise OSError("disk full")


def fail_to_publish(self: Path, target: Path) -> Path:
    return fail() if ".tmp-" in self.name else RENAME(self, target)


#: Functions that fail, by whether a data set is published.
FAILURES = {
    False: {"encore.tables.publish_database._create_views": fail},
    True: {
        "encore.tables.publish_dataset.data_set_card": fail,
        "pathlib.Path.rename": fail_to_publish,
    },
}


@pytest.mark.services
@pytest.mark.parametrize("is_dataset", FAILURES)
def test_a_failed_write_changes_nothing_and_other_content_is_never_replaced(
    one_run, tmp_path, monkeypatch, is_dataset
):
    study_digest, out = digest_of_tree(one_run), tmp_path / "study.duckdb"
    if is_dataset:
        out.mkdir()  # an empty folder is replaced
    publish(one_run, out, is_dataset=is_dataset)
    assert [*tmp_path.iterdir()] == [out]
    digest, files = digest_of_tree(tmp_path), {*tmp_path.rglob("*")}
    with pytest.raises(InputError, match="--force"):
        publish(one_run, out, is_dataset=is_dataset)
    for name, failure in FAILURES[is_dataset].items():
        with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
            patch.setattr(name, failure)
            publish(one_run, out, is_dataset=is_dataset, force=True)
        assert digest_of_tree(tmp_path) == digest
    publish(one_run, out, is_dataset=is_dataset, force=True)
    assert {*tmp_path.rglob("*")} == files
    assert [*tmp_path.iterdir()] == [out]
    assert digest_of_tree(tmp_path) == digest or not is_dataset
    folder = out if is_dataset else tmp_path
    (folder / "notes.txt").write_text("mine")
    for path in (folder, folder / "notes.txt", one_run):
        with pytest.raises(InputError, match="has other content"):
            publish(one_run, path, is_dataset=is_dataset, force=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert digest_of_tree(one_run) == study_digest
