"""Which MLflow store shows a study, and that no message has a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.core.errors import InputError
from tasks.tracking.store_uri import TRACKING_URI_VARIABLE, choose_tracking_uri, hide_secrets

pytestmark = pytest.mark.services


def test_a_given_uri_precedes_the_environment_and_the_file_in_the_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TRACKING_URI_VARIABLE, raising=False)
    folder = tmp_path.resolve()
    assert choose_tracking_uri(Path("study")) == f"sqlite:///{folder}/study/mlflow.db"
    monkeypatch.setenv(TRACKING_URI_VARIABLE, "http://b:5000")
    assert choose_tracking_uri(tmp_path) == "http://b:5000"
    assert choose_tracking_uri(tmp_path, given_uri="http://a:5000") == "http://a:5000"
    relative = choose_tracking_uri(tmp_path, given_uri="sqlite:///r.db")
    assert relative == f"sqlite:///{folder}/r.db"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://dapi0123@host/path", "https://***@host/path"),
        ("postgresql://me:a@b@host/db", "postgresql://me:***@host/db"),
        ("mysql://host/db?user=me&password=hunter2", "mysql://host/db?user=me&password=***"),
        ("http://host:5000/?access_token=abc&x=1", "http://host:5000/?access_token=***&x=1"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
    ],
)
def test_a_printed_uri_has_no_secret_and_a_given_one_must_have_none(uri, expected, tmp_path):
    assert hide_secrets(uri, uri=uri) == expected
    if uri == expected:
        assert choose_tracking_uri(tmp_path, given_uri=uri) == uri
    else:
        with pytest.raises(InputError) as refused:
            choose_tracking_uri(tmp_path, given_uri=uri)
        assert expected in str(refused.value)


def test_a_message_has_the_password_in_neither_spelling():
    uri = "postgresql://me:p%40ss@host/db"
    assert hide_secrets(f"no p@ss to {uri}", uri=uri) == "no *** to postgresql://me:***@host/db"
