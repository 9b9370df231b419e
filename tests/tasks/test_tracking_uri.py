"""Where a study is shown, and that no password of it is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.errors import InputError
from tasks.tracking_uri import VARIABLE, choose_tracking_uri, hide_secrets, page_of


def test_given_goes_before_the_environment_before_a_file_in_the_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    place = tmp_path.resolve()
    assert choose_tracking_uri(Path("study")) == f"sqlite:///{place}/study/mlflow.db"
    monkeypatch.setenv(VARIABLE, "http://b:5000")
    assert choose_tracking_uri(tmp_path) == "http://b:5000"
    assert choose_tracking_uri(tmp_path, given="http://a:5000") == "http://a:5000"
    assert choose_tracking_uri(tmp_path, given="sqlite:///r.db") == f"sqlite:///{place}/r.db"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://me:hunter2@host:5000", "http://me:***@host:5000"),
        ("https://dapi0123@host/path", "https://***@host/path"),
        ("postgresql+psycopg2://me:p%40ss@host/db", "postgresql+psycopg2://me:***@host/db"),
        ("postgresql://me:a@b@host/db", "postgresql://me:***@host/db"),
        ("mysql://host/db?user=me&password=hunter2", "mysql://host/db?user=me&password=***"),
        ("http://host:5000/?access_token=abc&x=1", "http://host:5000/?access_token=***&x=1"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        ("http://host:5000", "http://host:5000"),
    ],
)
def test_a_shown_uri_has_no_secret_and_a_given_one_must_have_none(uri, expected, tmp_path):
    assert hide_secrets(uri, uri=uri) == expected
    if uri == expected:
        assert choose_tracking_uri(tmp_path, given=uri) == uri
    else:
        with pytest.raises(InputError) as refused:
            choose_tracking_uri(tmp_path, given=uri)
        assert expected in str(refused.value)


def test_a_message_is_cleaned_of_the_password_in_either_spelling():
    uri = "postgresql://me:p%40ss@host/db"
    message = "could not connect as me with p@ss to postgresql://me:p%40ss@host/db"
    cleaned = "could not connect as me with *** to postgresql://me:***@host/db"
    assert hide_secrets(message, uri=uri) == cleaned


def test_a_server_has_a_page_for_a_run_without_the_password_and_a_file_has_none():
    page = page_of("http://me:hunter2@host:5000/", experiment_id="1", run_id="ab")
    assert page == "http://host:5000/#/experiments/1/runs/ab"
    assert page_of("sqlite:////data/mlflow.db", experiment_id="1", run_id="ab") is None
