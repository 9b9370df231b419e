"""Addresses of buckets, and the errors of stores: each names the address and the next step."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from encore.buckets import bucket_store
from encore.buckets.bucket_store import BucketStore, bucket_url
from encore.core import extras
from encore.core.errors import EncoreError, InputError
from tests.worlds.buckets import new_bucket, refusing_server, s3_server, set_s3_environment

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.mark.parametrize(
    ("study", "url"),
    [
        ("s3://bucket/study", "s3://bucket/study"),
        ("S3://bucket//a/b/", "s3://bucket/a/b"),
        ("gs://bucket/study", "gs://bucket/study"),
        ("az://container/study", "az://container/study"),
        ("file:///data/study", "file:///data/study"),
        (Path("s3://bucket/study"), "s3://bucket/study"),  # a path has one slash
        (Path("file:///data/study"), "file:///data/study"),
        ("study", None),
        ("/data/s3/study", None),
        ("./s3:/study", None),
        ("s3:study", None),
    ],
)
def test_an_address_has_one_form_and_a_path_is_none(study: str | Path, url: str | None) -> None:
    assert bucket_url(study) == url


@pytest.mark.parametrize(
    ("study", "reason"),
    [
        ("s4://bucket/study", "begins with one of s3://, gs://, az://, file://, not s4://"),
        ("http://bucket/study", "not http://"),
        ("s3://bucket", "expected a bucket and a folder in it, e.g. s3://bucket/my-study"),
        ("s3://bucket/a/../b", "expected a bucket and a folder in it"),
        ("s3://AKIATHEKEY:thesecret@bucket/study", "leave keys out of it"),
        ("az://container/study?sig=thesecret", "leave keys out of it"),
        ("s5://AKIATHEKEY:thesecret@bucket/study", "leave keys out of it"),
    ],
)
def test_a_wrong_address_is_refused_without_its_keys(study: str, reason: str) -> None:
    for address in (study, Path(study)):
        with pytest.raises(InputError) as refusal:
            bucket_url(address)
        assert reason in str(refusal.value)
        assert "thesecret" not in str(refusal.value)


def test_objects_are_written_once_replaced_by_tag_and_removed(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_s3_environment(monkeypatch, server)
    store = BucketStore(f"{new_bucket(server)}/my study")
    first = store.put("rätings/a%b.txt", b"1", only_new=True)
    with pytest.raises(FileExistsError):
        store.put("rätings/a%b.txt", b"2", only_new=True)
    second = store.put("rätings/a%b.txt", b"22", replaces=first)
    with pytest.raises(FileExistsError):  # the content has changed since
        store.put("rätings/a%b.txt", b"3", replaces=first)
    [(name, stored)] = store.objects().items()
    assert (name, stored["size"], stored["e_tag"]) == ("rätings/a%b.txt", 2, second["e_tag"])
    store.download(name, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == store.read(name) == b"22"
    store.remove(name)
    store.remove(name)
    assert store.head(name) is None
    with pytest.raises(FileNotFoundError):
        store.read(name)


def test_a_list_in_parts_is_the_whole_list(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_s3_environment(monkeypatch, server)
    store = BucketStore(f"{new_bucket(server)}/study")
    names = [f"ratings/{letter}" for letter in "abcdefg"]
    for name in names:
        store.put(name, b"1")
    monkeypatch.setattr(bucket_store, "_PAGE_SIZE", 2)
    for known_names in ([], names, names[::-1], ["ratings/b", "ratings/dd", "x", "y"], ["a"] * 9):
        assert sorted(store.objects(known_names)) == names


def test_a_bucket_that_does_not_exist_is_named(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_s3_environment(monkeypatch, server)
    store = BucketStore("s3://no-such-bucket/study")
    for call in (store.objects, lambda: store.put("name", b"1")):
        with pytest.raises(InputError, match="s3://no-such-bucket/study: there is no such bucket"):
            call()


@pytest.mark.parametrize(
    ("url", "variables", "hint"),
    [
        ("gs://b/study", {"GOOGLE_SERVICE_ACCOUNT": "nowhere.json"}, "GOOGLE_SERVICE_ACCOUNT or"),
        ("gs://b/study", {"GOOGLE_SERVICE_ACCOUNT": "{folder}/empty.json"}, "GOOGLE_SERVICE_ACC"),
        ("gs://b/study", {"GOOGLE_APPLICATION_CREDENTIALS": "nowhere.json"}, "GOOGLE_SERVICE_ACC"),
        ("az://b/study", {}, "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
        (
            "az://b/study",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "thesecret!"},
            "AZURE_STORAGE_ACCOUNT_NAME",
        ),
    ],
)
def test_without_a_key_its_variables_are_named(
    url: str, variables: dict[str, str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.json").write_text("{}", encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(folder=tmp_path))
    reason = f"^{url}: no key for the bucket was found; set {hint}"
    with pytest.raises(InputError, match=reason) as refusal:
        BucketStore(url).objects()
    assert "thesecret" not in str(refusal.value)


@pytest.mark.parametrize("scheme", ["gs", "az"])
@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (404, "NoSuchBucket", "there is no such bucket"),
        (404, "ContainerNotFound", "there is no such bucket"),
        (403, "AuthenticationFailed", r"the store refuses the key \(AuthenticationFailed\)"),
    ],
)
def test_other_stores_refuse_in_the_same_words(
    scheme: str,
    status: int,
    code: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with refusing_server(status, code) as server_url:
        account = {"gcs_base_url": server_url, "disable_oauth": True, "client_email": "a"}
        account |= {"private_key": "", "private_key_id": ""}
        (tmp_path / "account.json").write_text(json.dumps(account), encoding="utf-8")
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server_url)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "a")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "dGhlc2VjcmV0")
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        store = BucketStore(f"{scheme}://bucket/study")
        for call in (store.objects, lambda: store.put("name", b"1")):
            with pytest.raises(InputError, match=f"^{scheme}://bucket/study: .*{reason}"):
                call()


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (400, "ExpiredToken", "the key has expired; set a new one"),
        (403, "AccessDenied", r"the store refuses the key \(AccessDenied\)"),
        (403, "InvalidAccessKeyId", r"the store refuses the key \(InvalidAccessKeyId\)"),
        (403, "RequestTimeTooSkewed", "refuses this machine's clock; set the time right"),
        (403, "", r"the store refuses the key"),
        (400, "KeyTooLongError", r"cannot write name \(KeyTooLongError\)"),
    ],
)
def test_a_refusal_names_its_reason_and_shows_no_key(
    status: int, code: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing_server(status, code) as url:
        set_s3_environment(monkeypatch, url)
        with pytest.raises(EncoreError, match=f"^s3://bucket/study: .*{reason}") as refusal:
            BucketStore("s3://bucket/study").put("name", b"1")
    assert "thesecret" not in str(refusal.value)
    assert "AKIATHEKEY" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_store_that_does_not_answer_is_worth_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        set_s3_environment(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}")
    monkeypatch.setitem(bucket_store._RETRIES, "max_retries", 0)
    with pytest.raises(EncoreError, match="the store does not answer") as refusal:
        BucketStore("s3://bucket/study").objects()
    assert isinstance(refusal.value.__cause__, ConnectionError)


def test_an_endpoint_without_encryption_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_s3_environment(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(InputError, match="AWS_ALLOW_HTTP=true"):
        BucketStore("s3://bucket/study").objects()


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(EncoreError, match=r"pip install .*\[bucket\]"):
        BucketStore("s3://bucket/study")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    store = BucketStore(f"file://{tmp_path}/file/study")
    with pytest.raises(EncoreError, match="the folder cannot be made"):
        store.objects()
