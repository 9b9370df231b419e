"""Ingest: every record is kept, merged or set aside, and an error changes nothing."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from encore.cli.ingest import ingest as ingest_command
from encore.data.ingestion import (
    IngestReport,
    Progress,
    data_digest,
    ingest,
    iter_pairs,
    read_pairs,
)
from encore.data.pairs import PairsManifest, labels_of, read_manifest
from encore.data.sources.identity import pair_id_of
from encore.data.study import open_study
from encore.errors import EncoreError, InputError
from encore.schemas import PAIRS, SET_ASIDE_FIELDS
from tests.cli.invoking import Command
from tests.test_study import everything

GOLDEN = Path(__file__).parent / "golden"


def pair(number: int, **changes: object) -> dict[str, object]:
    return {
        "prompt": f"Question {number}?",
        "chosen": f"Good {number}.",
        "rejected": f"Bad {number}.",
        **changes,
    }


def write_lines(path: Path, *records: object) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def only(report: IngestReport) -> PairsManifest:
    (source,) = report.sources
    return source.manifest


def set_aside(study: Path, label: str) -> list[dict[str, Any]]:
    path = study / "pairs" / f"{label}.set-aside.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- what becomes of each record --------------------------------------------------------------


def test_every_oddity_is_accounted_for_with_its_line_and_reason(tmp_path: Path) -> None:
    study = tmp_path / "study"
    manifest = only(ingest([str(GOLDEN / "ingest-oddities.jsonl")], out=study))
    # Lines 1 (kept), 2 (its duplicate), 3 (the contradiction, kept), 16 (kept); line 5 is blank.
    assert (manifest.num_read, manifest.num_kept, manifest.num_duplicates) == (15, 3, 1)
    assert manifest.num_contradicting == 1
    found = [(line["record"], line["reason"]) for line in set_aside(study, "hh")]
    assert found == [
        (4, "identical-responses"),
        (6, "prefix-mismatch"),
        (7, "empty-response"),
        (8, "no-final-response"),
        (9, "not-a-transcript"),
        (10, "not-json"),
        (11, "missing-column"),
        (12, "not-an-object"),
        (13, "wrong-type"),
        (14, "unstorable-text"),
        (15, "unstorable-text"),
    ]
    assert manifest.set_aside_by_reason == dict(Counter(reason for _, reason in found))
    assert manifest.num_set_aside == len(found)


def test_a_set_aside_record_names_file_place_reason_and_text(tmp_path: Path) -> None:
    study = tmp_path / "study"
    source = write_lines(tmp_path / "mine.jsonl", pair(1), pair(2, chosen=None))
    ingest([source], out=study)
    (line,) = set_aside(study, "mine")
    assert tuple(line) == SET_ASIDE_FIELDS
    assert line["source"] == "mine"
    assert line["file"] == "mine.jsonl"
    assert line["record"] == 2
    assert line["reason"] == "wrong-type"
    assert line["detail"] == "chosen is null, expected text"
    assert line["excerpt"] == json.dumps(pair(2, chosen=None))


records = st.one_of(
    st.builds(pair, st.integers(0, 5)),
    st.builds(lambda n: pair(n, chosen=f"Bad {n}.", rejected=f"Good {n}."), st.integers(0, 5)),
    st.builds(lambda n: pair(n, chosen="x", rejected="x"), st.integers(0, 5)),
    st.builds(lambda n: pair(n, chosen=""), st.integers(0, 5)),
    st.builds(lambda n: {"prompt": f"{n}"}, st.integers(0, 5)),
    st.sampled_from([None, 3, [], "text", {}]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records, max_size=25), st.randoms(use_true_random=False))
def test_read_is_kept_plus_merged_plus_set_aside_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, some: list[object], chance: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("records")
    some = [pair(99), *some]
    shuffled = chance.sample(some, len(some))
    first = only(ingest([f"pairs:{write_lines(folder / 'a.jsonl', *some)}"], out=folder / "1"))
    other = only(ingest([f"pairs:{write_lines(folder / 'a.jsonl', *shuffled)}"], out=folder / "2"))
    assert first.num_read == len(some)
    assert first.num_read == first.num_kept + first.num_duplicates + first.num_set_aside
    assert len(set_aside(folder / "1", "a")) == first.num_set_aside
    kept = read_pairs(open_study(folder / "1")).column("pair_id").to_pylist()
    assert len(kept) == len(set(kept)) == first.num_kept
    # The order of the records changes neither the pairs nor any count.
    assert first.model_copy(update={"parquet_sha256": other.parquet_sha256}) == other


def test_of_equal_pairs_the_first_is_kept_and_within_a_label_only(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.jsonl", pair(1), pair(2), pair(1, id="again"))
    two = write_lines(tmp_path / "two.jsonl", pair(2))
    report = ingest([one, two], out=tmp_path / "study")
    counts = {
        s.manifest.label: (s.manifest.num_kept, s.manifest.num_duplicates) for s in report.sources
    }
    assert counts == {"one": (2, 1), "two": (1, 0)}


def test_sources_with_one_label_become_one(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.jsonl", pair(1), pair(2))
    two = write_lines(tmp_path / "two.jsonl", pair(2), pair(3))
    manifest = only(ingest([f"mine={one}", f"mine={two}"], out=tmp_path / "study"))
    assert [(origin.name, origin.num_read) for origin in manifest.origins] == [
        ("one.jsonl", 2),
        ("two.jsonl", 2),
    ]
    assert (manifest.num_kept, manifest.num_duplicates) == (3, 1)


def test_a_folder_is_one_label_of_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "prefs"
    folder.mkdir()
    write_lines(folder / "a.jsonl", pair(1))
    pq.write_table(pa.Table.from_pylist([pair(2), pair(3)]), folder / "b.parquet")
    manifest = only(ingest([f"mine={folder}"], out=tmp_path / "study"))
    assert [(origin.name, origin.num_read) for origin in manifest.origins] == [
        ("a.jsonl", 1),
        ("b.parquet", 2),
    ]


@pytest.mark.parametrize(("prefer", "chosen"), [(None, "b"), ("safer", "b"), ("better", "a")])
def test_prefer_decides_and_is_recorded(tmp_path: Path, prefer: Any, chosen: str) -> None:
    record = {
        "prompt": "Q",
        "response_0": "a",
        "response_1": "b",
        "better_response_id": 0,
        "safer_response_id": 1,
    }
    study = tmp_path / "study"
    source = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([record]), source)
    manifest = only(ingest([str(source)], out=study, prefer=prefer))
    assert (manifest.label, manifest.origins[0].prefer) == ("pku", prefer or "safer")
    assert next(iter_pairs(open_study(study))).chosen == chosen


# --- what is written and read back ------------------------------------------------------------


def test_what_is_read_back_is_what_went_in(tmp_path: Path) -> None:
    study = tmp_path / "study"
    source = write_lines(tmp_path / "mine.jsonl", *(pair(number) for number in range(3)))
    report = ingest([source], out=study)
    table = read_pairs(open_study(study))
    assert table.schema.equals(PAIRS)
    back = list(iter_pairs(open_study(study)))
    assert [one.chosen for one in back] == ["Good 0.", "Good 1.", "Good 2."]
    assert {one.source for one in back} == {"mine"}
    assert [one.pair_id for one in back] == table.column("pair_id").to_pylist()
    assert back[0].pair_id == pair_id_of(back[0].prompt, chosen="Good 0.", rejected="Bad 0.")
    assert report.data_digest == data_digest(open_study(study))


def test_the_digest_of_a_label_is_that_of_its_sorted_ids(tmp_path: Path) -> None:
    study = tmp_path / "study"
    ingest([write_lines(tmp_path / "mine.jsonl", pair(2), pair(1))], out=study)
    ids = sorted(read_pairs(open_study(study)).column("pair_id").to_pylist())
    expected = hashlib.sha256("".join(f"{one}\n" for one in ids).encode()).hexdigest()
    assert read_manifest(open_study(study), "mine").data_digest == expected


def test_the_digest_of_a_study_depends_on_pairs_and_labels_alone(tmp_path: Path) -> None:
    a = write_lines(tmp_path / "a.jsonl", pair(1), pair(2))
    b = write_lines(tmp_path / "b.jsonl", pair(2), pair(1), pair(1))
    digests = [
        ingest([f"{label}={source}"], out=tmp_path / str(number)).data_digest
        for number, (label, source) in enumerate([("x", a), ("x", b), ("y", a)])
    ]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_labels_can_be_read_one_at_a_time(tmp_path: Path) -> None:
    study = tmp_path / "study"
    sources = [write_lines(tmp_path / f"{name}.jsonl", pair(1)) for name in "ba"]
    ingest(sources, out=study)
    assert labels_of(open_study(study)) == ("a", "b")
    assert read_pairs(open_study(study)).column("source").to_pylist() == ["a", "b"]
    assert read_pairs(open_study(study), labels=["b"]).column("source").to_pylist() == ["b"]
    with pytest.raises(InputError, match=r"no pairs labelled 'c' \(labels: a, b\)"):
        read_pairs(open_study(study), labels=["c"])


def test_the_manifest_names_no_place_on_this_machine(tmp_path: Path) -> None:
    ingest([write_lines(tmp_path / "mine.jsonl", pair(1))], out=tmp_path / "study")
    manifest = (tmp_path / "study" / "pairs" / "mine.manifest.json").read_text()
    assert str(tmp_path) not in manifest
    assert '"name": "mine.jsonl"' in manifest


@pytest.mark.parametrize("offset", range(4, 400, 44))
def test_a_changed_pairs_file_is_refused(tmp_path: Path, offset: int) -> None:
    study = tmp_path / "study"
    ingest([write_lines(tmp_path / "mine.jsonl", pair(1))], out=study)
    path = study / "pairs" / "mine.parquet"
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    for read in (read_pairs, lambda study: list(iter_pairs(study))):
        with pytest.raises(InputError, match=r"mine\.parquet: changed since it was ingested"):
            read(open_study(study))


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    study = tmp_path / "study"
    ingest([write_lines(tmp_path / "mine.jsonl", pair(1))], out=study)
    (study / "pairs" / "mine.manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"mine\.manifest\.json: damaged manifest, label"):
        read_pairs(open_study(study))


# --- a study that is there already ------------------------------------------------------------


def test_another_label_joins_a_study(tmp_path: Path) -> None:
    study = tmp_path / "study"
    ingest([write_lines(tmp_path / "a.jsonl", pair(1))], out=study)
    before = everything(study)
    ingest([write_lines(tmp_path / "b.jsonl", pair(1))], out=study)
    after = everything(study)
    assert {name: after[name] for name in before} == before
    assert labels_of(open_study(study)) == ("a", "b")


def test_the_same_content_again_changes_nothing_and_says_so(tmp_path: Path) -> None:
    study = tmp_path / "study"
    source = write_lines(tmp_path / "mine.jsonl", pair(1), pair(2), pair(2), {})
    ingest([f"pairs:{source}"], out=study)
    before = everything(study)
    for replace in (False, True):
        report = ingest([f"pairs:{source}"], out=study, replace=replace)
        assert [one.status for one in report.sources] == ["unchanged"]
        assert everything(study) == before


def test_other_content_needs_replace(tmp_path: Path) -> None:
    study = tmp_path / "study"
    ingest([write_lines(tmp_path / "mine.jsonl", pair(1), pair(2))], out=study)
    before = everything(study)
    source = write_lines(tmp_path / "mine.jsonl", pair(1))
    with pytest.raises(
        InputError, match=r"other pairs labelled 'mine' already \(2, now 1\).*--replace"
    ):
        ingest([source], out=study)
    assert everything(study) == before
    report = ingest([source], out=study, replace=True)
    assert [one.status for one in report.sources] == ["replaced"]
    assert read_pairs(open_study(study)).num_rows == 1


def test_replace_repairs_a_damaged_label(tmp_path: Path) -> None:
    study = tmp_path / "study"
    source = write_lines(tmp_path / "mine.jsonl", pair(1))
    ingest([source], out=study)
    (study / "pairs" / "mine.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="ingest again with --replace"):
        ingest([source], out=study)
    assert ingest([source], out=study, replace=True).sources[0].status == "replaced"
    assert read_pairs(open_study(study)).num_rows == 1


def test_pairs_without_a_manifest_are_not_there(tmp_path: Path) -> None:
    # What a process leaves that was killed between putting two files in place.
    study = tmp_path / "study"
    source = write_lines(tmp_path / "mine.jsonl", pair(1))
    ingest([write_lines(tmp_path / "other.jsonl", pair(1)), source], out=study)
    (study / "pairs" / "mine.manifest.json").unlink()
    assert labels_of(open_study(study)) == ("other",)
    assert ingest([source], out=study).sources[0].status == "new"


# --- bad input: one clear line, and nothing is changed ----------------------------------------


def cut_gzip(path: Path) -> str:
    content = gzip.compress(b"".join(json.dumps(pair(n)).encode() + b"\n" for n in range(5000)))
    path.write_bytes(content[: len(content) // 2])
    return str(path)


def bad_sources(folder: Path) -> dict[str, tuple[list[str], dict[str, Any], str]]:
    """Arguments, options, and what the error must say."""
    good = write_lines(folder / "good.jsonl", pair(1))
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "blank.jsonl").write_bytes(b"\n\n  \n")
    (folder / "text.jsonl").write_text("this is\nno JSON\n")
    (folder / "dir").mkdir()
    (folder / "link.jsonl").symlink_to(good)
    short = {"prompt": "Q", "chosen": "y"}
    no_column = write_lines(folder / "short.jsonl", short, short)
    same = write_lines(folder / "same.jsonl", pair(1, chosen="x", rejected="x"))
    capital = "GOOD=" + write_lines(folder / "other.jsonl", pair(1))
    parquet = folder / "short.parquet"
    pq.write_table(pa.Table.from_pylist([short]), parquet)
    return {
        "unknown source": (["pkuu"], {}, "unknown source 'pkuu'.*did you mean.*pku"),
        "no source": ([], {}, "no source given"),
        "empty file": ([str(folder / "empty.jsonl")], {}, "empty, it has no records"),
        "empty file, format given": (
            [f"pairs:{folder / 'empty.jsonl'}"],
            {},
            "empty, it has no records",
        ),
        "blank lines only": ([str(folder / "blank.jsonl")], {}, "empty, it has no records"),
        "no JSON at all": ([str(folder / "text.jsonl")], {}, "record 1: not-json: line 1"),
        "no JSON at all, format given": (
            [f"pairs:{folder / 'text.jsonl'}"],
            {},
            r"not one of its 2 records is a preference pair \(not-json ×2\); record 1",
        ),
        "missing column": ([no_column], {}, "missing column 'rejected'"),
        "missing column, format given": (
            [f"pairs:{no_column}"],
            {},
            r"\(missing-column ×2\).*'rejected' is missing \(found: prompt, chosen\)",
        ),
        "missing Parquet column": (
            [f"pairs:{parquet}"],
            {},
            r"'rejected' is missing \(found: prompt, chosen\)",
        ),
        "only identical responses": ([same], {}, "identical-responses ×1"),
        "gzip that breaks off": (
            [f"pairs:{cut_gzip(folder / 'cut.jsonl.gz')}"],
            {},
            r"cut\.jsonl\.gz: the gzip data break off",
        ),
        "folder with nothing": ([str(folder / "dir")], {}, "no data file in this folder"),
        "a file twice": ([good, good], {}, "given twice"),
        "a file twice through a link": ([good, str(folder / "link.jsonl")], {}, "given twice"),
        "labels that differ in case": ([good, capital], {}, "differ only in case"),
        "prefer without pku": ([good], {"prefer": "safer"}, "no source has format pku"),
        "split without a hub source": ([good], {"split": "test"}, "no source is on the hub"),
        "revision without a hub source": ([good], {"revision": "main"}, "0 sources are on the hub"),
        "revision of two hub sources": (["hh-pku"], {"revision": "main"}, "2 sources are on the"),
        "the second of two sources": ([good, f"pairs:{no_column}"], {}, "missing-column"),
    }


CASES = (
    "unknown source",
    "no source",
    "empty file",
    "empty file, format given",
    "blank lines only",
    "no JSON at all",
    "no JSON at all, format given",
    "missing column",
    "missing column, format given",
    "missing Parquet column",
    "only identical responses",
    "gzip that breaks off",
    "folder with nothing",
    "a file twice",
    "a file twice through a link",
    "labels that differ in case",
    "prefer without pku",
    "split without a hub source",
    "revision without a hub source",
    "revision of two hub sources",
    "the second of two sources",
)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_there", [False, True], ids=["new study", "study that is there"])
def test_bad_input_is_one_error_and_changes_nothing(
    tmp_path: Path, case: str, is_there: bool
) -> None:
    cases = bad_sources(tmp_path)
    assert tuple(cases) == CASES
    arguments, options, said = cases[case]
    study = tmp_path / "out" / "study"
    if is_there:
        ingest([write_lines(tmp_path / "before.jsonl", pair(1))], out=study)
    else:
        (tmp_path / "out").mkdir()
    before = everything(tmp_path / "out")
    with pytest.raises(InputError, match=said) as caught:
        ingest(arguments, out=study, **options)
    assert "\n" not in str(caught.value)
    assert everything(tmp_path / "out") == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["study"] * is_there


def test_ctrl_c_changes_nothing(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    source = write_lines(tmp_path / "mine.jsonl", *(pair(number) for number in range(2000)))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KeyboardInterrupt):
        ingest([source], out=out / "study", on_progress=interrupt)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_changes_nothing(tmp_path: Path, is_there: bool) -> None:
    # A limit on the size of written files ends writing half-way, as a full disk does.
    noise = random.Random(0)
    big = (pair(number, chosen=noise.randbytes(500).hex()) for number in range(6000))
    source = write_lines(tmp_path / "big.jsonl", *big)
    study = tmp_path / "out" / "study"
    study.parent.mkdir()
    if is_there:
        ingest([write_lines(tmp_path / "small.jsonl", pair(1))], out=study)
    before = everything(tmp_path / "out")
    code = """
        import resource, sys
        from pathlib import Path
        from encore.errors import EncoreError
        from encore.data.ingestion import ingest
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        try:
            ingest([sys.argv[1]], out=Path(sys.argv[2]))
        except EncoreError as error:
            sys.exit(str(error))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), source, str(study)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "writing failed" in done.stderr
    assert "the study is as it was before" in done.stderr
    assert "Traceback" not in done.stderr
    assert everything(tmp_path / "out") == before


def test_a_place_where_nothing_can_be_written_is_an_error(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "mine.jsonl", pair(1))
    with pytest.raises(EncoreError, match=r"study /proc/nothing/study: writing failed"):
        ingest([source], out=Path("/proc/nothing/study"))


def test_a_study_is_not_written_over_other_things(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "mine.jsonl", pair(1))
    with pytest.raises(InputError, match="a directory with other things in it"):
        ingest([source], out=tmp_path)


# --- real data --------------------------------------------------------------------------------


def test_real_transcripts_are_all_accounted_for(shared_data: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    manifest = only(ingest([str(shared_data / "hh-harmless-dev.jsonl.gz")], out=study))
    assert (manifest.label, manifest.origins[0].format) == ("hh", "hh")
    # Looked at by eye: four chosen transcripts end with an empty "Assistant:", and in record
    # 1255 the conversations had parted before the last turn.
    assert [(line["record"], line["reason"]) for line in set_aside(study, "hh")] == [
        (87, "empty-response"),
        (517, "empty-response"),
        (926, "empty-response"),
        (1104, "empty-response"),
        (1255, "prefix-mismatch"),
    ]
    assert (manifest.num_read, manifest.num_kept, manifest.num_duplicates) == (1500, 1495, 0)


def test_real_transcripts_lose_no_text(shared_data: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    ingest([str(shared_data / "hh-harmless-dev.jsonl.gz")], out=study)
    originals = set()
    with gzip.open(shared_data / "hh-harmless-dev.jsonl.gz", "rt", encoding="utf-8") as stream:
        for line in stream:
            originals.add("".join(json.loads(line)["chosen"].split()))
    speakers = {"user": "Human:", "assistant": "Assistant:"}
    for one in iter_pairs(open_study(study)):
        turns = [*((turn.role, turn.content) for turn in one.prompt), ("assistant", one.chosen)]
        again = "".join(f"{speakers[role]}{content}" for role, content in turns)
        assert "".join(again.split()) in originals


def test_real_pairs_with_more_columns_are_all_kept(shared_data: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    source = str(shared_data / "xstest-dev.jsonl")
    manifest = only(ingest([source], out=tmp_path / "study", on_note=notes.append))
    assert (manifest.num_read, manifest.num_kept, manifest.num_set_aside) == (140, 140, 0)
    assert manifest.label == "xstest-dev"
    assert "format pairs" in notes[0]


# --- the command ------------------------------------------------------------------------------


def run_command(*arguments: str) -> Any:
    return Command(ingest_command)(*arguments)


def test_the_command_prints_the_report_as_json(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "mine.jsonl", pair(1), pair(1), pair(2, chosen=""))
    done = run_command(source, "--out", str(tmp_path / "study"), "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (found,) = report["sources"]
    assert report["data_digest"] == data_digest(open_study(tmp_path / "study"))
    assert {key: found[key] for key in ("status", "label", "num_read", "num_kept")} == {
        "status": "new",
        "label": "mine",
        "num_read": 3,
        "num_kept": 1,
    }
    assert found["set_aside_by_reason"] == {"empty-response": 1}
    assert "format pairs, told from its columns" in done.stderr


def test_the_command_shows_counts_and_where_the_rest_is(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "mine.jsonl", *(pair(n) for n in range(1200)), {})
    done = run_command(f"pairs:{source}", "--out", str(tmp_path / "study"))
    assert done.exit_code == 0, done.output
    for expected in ("mine", "1,201", "1,200", "new"):
        assert expected in done.stdout
    assert "set aside missing-column 1; see" in done.stderr


def test_an_error_of_the_command_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "encore.cli", "ingest", "hhh", "--out", str(tmp_path / "study")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: unknown source 'hhh'")
    assert done.stderr.count("\n") == 1
