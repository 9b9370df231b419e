"""SOURCE arguments name sources; an unknown source is refused with suggestions."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.core.errors import InputError
from encore.data.sources.locate import hub_sources, locate


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("my data.jsonl.gz", "a=b.jsonl", "pairs:x.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "prefs").mkdir()
    return tmp_path


def test_a_label_replaces_the_labels_of_a_named_data_set():
    (source,) = locate("mine=hh/harmless-base")
    assert (source.label, source.subset) == ("mine", "harmless-base")
    assert locate("hh-pku") == hub_sources()["hh-pku"]
    assert [source.label for source in locate("mine=hh-pku")] == ["mine", "mine"]


HH, PKU_30K = hub_sources()["hh"][0].revision, hub_sources()["hh-pku"][1].revision


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("my data.jsonl.gz", (None, None, None, "my-data")),
        ("mine=hh:my data.jsonl.gz", ("mine", "hh", None, "my-data")),
        # An existing file is meant, whatever its name.
        ("a=b.jsonl", (None, None, None, "a-b")),
        ("pairs:x.jsonl", (None, None, None, "pairs-x")),
        ("prefs/", (None, None, None, "prefs")),
        # A hub id has the given revision or the pinned one.
        ("owner/name@v1.0", (None, None, "v1.0", "name")),
        ("Anthropic/hh-rlhf", ("hh", "hh", HH, "hh-rlhf")),
        ("mine=Anthropic/hh-rlhf@main", ("mine", "hh", "main", "hh-rlhf")),
        (
            "pairs:RLHFlow/PKU-SafeRLHF-30K-standard",
            ("pku", "pairs", PKU_30K, "PKU-SafeRLHF-30K-standard"),
        ),
    ],
)
def test_an_argument_names_label_format_and_revision(argument, expected):
    (source,) = locate(argument)
    fields = (source.label, source.format, source.revision, source.default_label)
    assert fields == expected


def test_unknown_sources_are_refused_with_suggestions():
    for argument, message in (
        ("hh-pk", "did you mean hh-pku"),
        ("hh/harmles-base", "did you mean hh/harmless-base"),
        ("pku/x", "unknown source 'pku/x'"),
        (
            "my dta.jsonl.gz",
            r"my dta.jsonl.gz: no such file or folder; did you mean my data\.jsonl\.gz",
        ),
        *((path, f"{path}: no such file or folder") for path in ("./nosuch", "a/b/c", "prefs/x")),
        ("pair:my data.jsonl.gz", "unknown format 'pair'.*did you mean pairs"),
        ("pairs", "each also as FORMAT:SOURCE"),
        ("", "unknown source ''"),
        (".x=hh", "label '.x'"),
        ("all=hh", "label 'all'"),
    ):
        with pytest.raises(InputError, match=message):
            locate(argument)


def test_an_existing_folder_takes_precedence_over_a_data_set_name(folder):
    assert locate("hh")[0].path is None
    (folder / "hh").mkdir()
    assert locate("hh")[0].path == Path("hh")
