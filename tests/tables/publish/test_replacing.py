"""A publication is written completely or not at all, and replaces only another publication."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.core.errors import InputError
from encore.tables.publish_database import publish_database
from encore.tables.publish_dataset import publish_dataset
from tests.tables.sql.studies import digest_of_tree

RENAME = Path.rename


def fail(*_: object, **__: object) -> None:
    raise OSError("disk full")


def fail_to_publish(self: Path, target: Path) -> Path:
    return fail() if ".tmp-" in self.name else RENAME(self, target)


#: Functions that fail, by what is published.
FAILURES = {
    publish_database: {"encore.tables.publish_database._create_views": fail},
    publish_dataset: {
        "encore.tables.publish_dataset.data_set_card": fail,
        "pathlib.Path.rename": fail_to_publish,
    },
}


@pytest.mark.parametrize("publish", FAILURES)
def test_a_failed_write_changes_nothing_and_other_content_is_never_replaced(
    one_run, tmp_path, monkeypatch, publish
):
    study_digest, out = digest_of_tree(one_run), tmp_path / "study.duckdb"
    is_folder = publish is publish_dataset
    if is_folder:
        out.mkdir()  # an empty folder is replaced
    publish(one_run, out=out)
    assert [*tmp_path.iterdir()] == [out]
    digest, files = digest_of_tree(tmp_path), {*tmp_path.rglob("*")}
    with pytest.raises(InputError, match="--force"):
        publish(one_run, out=out)
    for name, failure in FAILURES[publish].items():
        with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
            patch.setattr(name, failure)
            publish(one_run, out=out, force=True)
        assert digest_of_tree(tmp_path) == digest
    publish(one_run, out=out, force=True)
    assert {*tmp_path.rglob("*")} == files
    assert [*tmp_path.iterdir()] == [out]
    assert digest_of_tree(tmp_path) == digest or not is_folder
    folder = out if is_folder else tmp_path
    (folder / "notes.txt").write_text("mine")
    for path in (folder, folder / "notes.txt", one_run):
        with pytest.raises(InputError, match="has other content"):
            publish(one_run, out=path, force=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert digest_of_tree(one_run) == study_digest
