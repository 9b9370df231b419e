"""SOURCE arguments: what each names, and what is said about those that name nothing."""

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


def test_a_label_takes_the_place_of_those_of_a_data_set_or_combination() -> None:
    (found,) = locate("mine=hh/harmless-base")
    assert (found.label, found.subset) == ("mine", "harmless-base")
    assert locate("hh-pku") == hub_sources()["hh-pku"]
    assert [one.label for one in locate("mine=hh-pku")] == ["mine", "mine"]


HH, PKU_30K = hub_sources()["hh"][0].revision, hub_sources()["hh-pku"][1].revision


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("my data.jsonl.gz", (None, None, None, "my-data")),
        ("mine=hh:my data.jsonl.gz", ("mine", "hh", None, "my-data")),
        # Files may be called anything; what exists is meant.
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
def test_an_argument_names_label_format_and_revision(
    argument: str, named: tuple[str | None, ...]
) -> None:
    (found,) = locate(argument)
    assert (found.label, found.format, found.revision, found.default_label) == named


def test_what_names_nothing_is_answered_with_what_would() -> None:
    for argument, said in (
        ("hh-pk", "did you mean hh-pku"),
        ("hh/harmles-base", "did you mean hh/harmless-base"),
        ("pku/x", "unknown source 'pku/x'"),
        ("my dta.jsonl.gz", r"a file that exists .* did you mean my data\.jsonl\.gz"),
        ("pair:my data.jsonl.gz", "unknown format 'pair'.*did you mean pairs"),
        ("pairs", "each also as FORMAT:SOURCE"),
        ("", "unknown source ''"),
        (".x=hh", "label '.x'"),
        ("all=hh", "label 'all'"),
    ):
        with pytest.raises(InputError, match=said):
            locate(argument)


def test_what_exists_is_meant_also_if_a_data_set_is_called_so(folder: Path) -> None:
    assert locate("hh")[0].path is None
    (folder / "hh").mkdir()
    assert locate("hh")[0].path == Path("hh")
