"""An advice to install an extra names the clone that this installation is from, or the index."""

from __future__ import annotations

import json

import pytest

from encore.core.extras import pip_source


@pytest.mark.parametrize(
    ("is_editable", "option"), [(True, "-e "), (False, "")], ids=["editable", "copied"]
)
def test_an_installation_from_a_clone_is_told_to_install_from_it(is_editable, option, tmp_path):
    clone = tmp_path / "a clone"
    clone.mkdir()
    record = json.dumps({"url": clone.as_uri(), "dir_info": {"editable": is_editable}})
    assert pip_source("train", direct_url=record) == f"{option}'{clone}[train]'"
    assert pip_source(direct_url=record) == f"{option}'{clone}'"


def test_in_the_clone_its_path_is_a_dot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert pip_source("train,serve", direct_url=record) == "-e '.[train,serve]'"


def test_an_installation_from_the_index_a_file_or_a_clone_that_is_gone_names_the_index(tmp_path):
    gone = {"url": (tmp_path / "gone").as_uri(), "dir_info": {"editable": True}}
    archive = {"url": (tmp_path / "encore.whl").as_uri(), "archive_info": {}}
    for record in ({}, gone, archive):
        assert pip_source("train", direct_url=json.dumps(record)) == "'encore-reward[train]'"
