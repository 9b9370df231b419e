"""Where a training is logged, and that no password of it is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.tracking_uri import (
    choose_tracking_uri,
    has_secret,
    hide_secrets,
    how_to_look,
    run_page,
    shown,
)


def test_the_default_is_an_absolute_file_in_the_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uri = choose_tracking_uri(Path("study"), environ={})
    assert uri == f"sqlite:///{tmp_path.resolve()}/study/mlflow.db"


def test_what_is_named_goes_before_the_environment_before_the_default(tmp_path):
    environ = {"MLFLOW_TRACKING_URI": "http://b:5000"}
    assert choose_tracking_uri(tmp_path, given="http://a:5000", environ=environ) == "http://a:5000"
    assert choose_tracking_uri(tmp_path, environ=environ) == "http://b:5000"


def test_a_relative_sqlite_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uri = choose_tracking_uri(Path("study"), given="sqlite:///runs.db", environ={})
    assert uri == f"sqlite:///{tmp_path.resolve()}/runs.db"


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
def test_a_shown_uri_has_no_secret(uri, expected):
    assert shown(uri) == expected
    assert has_secret(uri) == (uri != expected)


def test_a_message_is_cleaned_of_the_password_in_either_spelling():
    uri = "postgresql://me:p%40ss@host/db"
    message = "could not connect as me with p@ss to postgresql://me:p%40ss@host/db"
    assert hide_secrets(message, uri=uri) == (
        "could not connect as me with *** to postgresql://me:***@host/db"
    )


def test_a_server_has_a_page_for_a_run_and_its_address_no_password():
    page = run_page("http://me:hunter2@host:5000/", experiment_id="1", run_id="ab")
    assert page == "http://host:5000/#/experiments/1/runs/ab"


def test_a_file_has_no_page_but_a_command_that_serves_it_on_loopback():
    uri = "sqlite:////data/mlflow.db"
    assert run_page(uri, experiment_id="1", run_id="ab") is None
    command, page = how_to_look(uri, experiment_id="1", run_id="ab")
    assert command.endswith(
        "--backend-store-uri 'sqlite:////data/mlflow.db' --host 127.0.0.1 --port 5000"
    )
    assert page == "http://127.0.0.1:5000/#/experiments/1/runs/ab"
