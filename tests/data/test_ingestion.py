"""Ingest keeps, merges or sets aside every record. After an error the study is as before."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encore.core.errors import InputError
from encore.data.ingestion import IngestReport, ingest
from encore.data.pairs import iter_pairs, read_pairs
from encore.data.pairs_manifest import PairsManifest
from encore.data.schemas import SET_ASIDE_FIELDS
from encore.data.study import open_study
from tests.golden.command_line import encore, run_process
from tests.worlds.refusals import assert_refused
from tests.worlds.studies import file_contents, flip_bit, write_lines

GOLDEN = Path(__file__).parents[1] / "golden"


def pair(number: int, **changes: object) -> dict[str, object]:
    return {
        "prompt": f"Question {number}?",
        "chosen": f"Good {number}.",
        "rejected": f"Bad {number}.",
        **changes,
    }


def write_pairs(path: Path, *records: object) -> str:
    return str(write_lines(path, records))


def only_manifest(report: IngestReport) -> PairsManifest:
    [source] = report.sources
    return source.manifest


def set_aside(study: Path, label: str) -> list[dict[str, Any]]:
    path = study / "pairs" / f"{label}.set-aside.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- records --------------------------------------------------------------------------------


def test_every_malformed_record_is_counted_with_its_line_and_reason(tmp_path):
    study = tmp_path / "study"
    manifest = only_manifest(ingest([str(GOLDEN / "ingest-oddities.jsonl")], out=study))
    # Lines 1 (kept), 2 (its duplicate), 3 (the contradiction, kept), 16 (kept); line 5 is blank.
    assert (manifest.num_read, manifest.num_kept, manifest.num_duplicates) == (15, 3, 1)
    assert manifest.num_contradicting == 1
    malformed = [(line["record"], line["reason"]) for line in set_aside(study, "hh")]
    assert [number for number, _ in malformed] == [4, *range(6, 16)]
    assert [reason for _, reason in malformed] == [
        *("identical-responses", "prefix-mismatch", "empty-response", "no-final-response"),
        *("not-a-transcript", "not-json", "missing-column", "not-an-object", "wrong-type"),
        *("unstorable-text", "unstorable-text"),
    ]
    assert manifest.set_aside_by_reason == dict(Counter(reason for _, reason in malformed))
    assert manifest.num_set_aside == len(malformed)
    line = set_aside(study, "hh")[8]
    assert tuple(line) == SET_ASIDE_FIELDS
    assert (line["source"], line["file"]) == ("hh", "ingest-oddities.jsonl")
    assert line["excerpt"]


records = st.one_of(
    st.builds(pair, st.integers(0, 5)),
    st.builds(lambda n: pair(n, chosen=f"Bad {n}.", rejected=f"Good {n}."), st.integers(0, 5)),
    st.sampled_from([None, [], {}, {"prompt": "1"}, pair(1, chosen="")]),
)


@settings(max_examples=25)
@given(st.lists(records, max_size=25))
def test_every_record_is_kept_merged_or_set_aside_in_any_order(tmp_path_factory, random_records):
    folder = tmp_path_factory.mktemp("records")
    rows = [pair(99), *random_records]
    first, reversed_order = (
        only_manifest(
            ingest([f"pairs:{write_pairs(folder / 'a.jsonl', *order)}"], out=folder / name)
        )
        for name, order in (("1", rows), ("2", rows[::-1]))
    )
    assert first.num_read == len(rows)
    assert first.num_read == first.num_kept + first.num_duplicates + first.num_set_aside
    assert len(set_aside(folder / "1", "a")) == first.num_set_aside
    pair_ids = read_pairs(open_study(folder / "1")).column("pair_id").to_pylist()
    assert len(pair_ids) == len(set(pair_ids)) == first.num_kept
    # The order of the records changes neither the pairs nor any count.
    assert reversed_order.model_copy(update={"parquet_sha256": first.parquet_sha256}) == first


def test_sources_of_a_label_are_joined_and_equal_pairs_are_kept_once(tmp_path):
    folder = tmp_path / "prefs"
    folder.mkdir()
    write_pairs(folder / "a.jsonl", pair(1), pair(2), pair(1, id="again"))
    pq.write_table(pa.Table.from_pylist([pair(2), pair(3)]), folder / "b.parquet")
    more = write_pairs(tmp_path / "more.jsonl", pair(2))
    alone_path = write_pairs(tmp_path / "alone.jsonl", pair(2))
    report = ingest([f"mine={folder}", f"mine={more}", alone_path], out=tmp_path / "study")
    alone, joined = (source.manifest for source in report.sources)
    origins = [(origin.name, origin.num_read) for origin in joined.origins]
    assert origins == [("a.jsonl", 3), ("b.parquet", 2), ("more.jsonl", 1)]
    assert (joined.label, joined.num_kept, joined.num_duplicates) == ("mine", 3, 3)
    assert (alone.label, alone.num_kept, alone.num_duplicates) == ("alone", 1, 0)
    study = open_study(tmp_path / "study")
    assert [kept_pair.chosen for kept_pair in iter_pairs(study)][1:] == [
        "Good 1.",
        "Good 2.",
        "Good 3.",
    ]
    assert str(tmp_path) not in (study.path / "pairs" / "mine.manifest.json").read_text()


@pytest.mark.parametrize(("prefer", "chosen"), [(None, "b"), ("better", "a")])
def test_option_prefer_selects_the_chosen_response_and_is_recorded(tmp_path, prefer, chosen):
    labels = {"better_response_id": 0, "safer_response_id": 1}
    record = {"prompt": "Q", "response_0": "a", "response_1": "b", **labels}
    study = tmp_path / "study"
    source = write_pairs(tmp_path / "x.jsonl", record)
    manifest = only_manifest(ingest([source], out=study, prefer=prefer))
    assert (manifest.label, manifest.origins[0].prefer) == ("pku", prefer or "safer")
    assert next(iter_pairs(open_study(study))).chosen == chosen


# --- what was read from another form, and what was set aside -----------------------------------


def test_records_of_another_form_are_counted_by_form(tmp_path):
    turn = [{"role": "human", "content": "Q"}]
    records = [pair(1), pair(2, prompt=turn, system="S"), pair(3, system="S"), pair(4, tools=[1])]
    study = tmp_path / "study"
    manifest = only_manifest(ingest([write_pairs(tmp_path / "x.jsonl", *records)], out=study))
    # The fourth record is set aside, and what was read of it does not count.
    assert manifest.read_by_form == {"role-names": 1, "system-column": 2}
    assert manifest.set_aside_by_reason == {"tool-calls": 1}
    [origin] = manifest.origins
    assert (origin.num_read, origin.num_set_aside) == (4, 1)


def test_columns_of_the_conversation_are_read_from_parquet_too(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([pair(1, system="S", score=1.0)]), path)
    study = tmp_path / "study"
    ingest([f"pairs:{path}"], out=study)
    assert [turn.role for turn in next(iter_pairs(open_study(study))).prompt] == ["system", "user"]


@pytest.mark.parametrize(("num_bad", "share", "code"), [(1, None, 0), (2, None, 3), (2, "0.2", 0)])
def test_a_source_of_which_more_than_a_share_is_set_aside_ends_with_exit_3(
    tmp_path, num_bad, share, code
):
    # 1 of 10 is the share of 0.1 itself, 2 of 10 are more.
    records = [*map(pair, range(10 - num_bad)), *({"prompt": n} for n in range(num_bad))]
    bad = write_pairs(tmp_path / "bad.jsonl", *records)
    good = write_pairs(tmp_path / "good.jsonl", *map(pair, range(100, 200)))
    option = () if share is None else ("--max-set-aside-share", share)
    for _ in range(2):  # a repeated call says the same, though nothing is new
        result = encore("ingest", str(tmp_path / "study"), f"mine={bad}", f"mine={good}", *option)
        assert result.code == code, result.err
        assert (f"bad.jsonl: {num_bad} of 10 records were set aside" in result.err) == bool(code)
        assert open_study(tmp_path / "study").sources[0].num_kept == 110 - num_bad


@pytest.mark.services
def test_a_row_group_of_long_texts_is_small(tmp_path):
    # 40 responses of 2 MiB characters: the 16 first ones, with 2 MiB each, reach 32 MiB.
    long = "x" * (2 << 20)
    records = [pair(number, chosen=f"{number}{long}") for number in range(40)]
    study = tmp_path / "study"
    ingest(records, out=study)
    file = pq.ParquetFile(study / "pairs" / "table.parquet")
    rows = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert rows == [16, 16, 8]


# --- files ----------------------------------------------------------------------------------


def test_a_changed_pairs_file_or_manifest_is_refused(tmp_path):
    study = tmp_path / "study"
    source = write_pairs(tmp_path / "mine.jsonl", pair(1))
    ingest([source], out=study)
    flip_bit(study / "pairs" / "mine.parquet")
    for read in (read_pairs, lambda study: list(iter_pairs(study))):
        assert_refused(r"mine\.parquet: changed since it was ingested", read, open_study(study))
    assert_refused("ingest again with --replace", ingest, [source], out=study)
    assert ingest([source], out=study, replace=True).sources[0].status == "replaced"
    assert read_pairs(open_study(study)).num_rows == 1
    (study / "pairs" / "mine.manifest.json").write_text("{}")
    assert_refused(r"mine\.manifest\.json: damaged manifest, label", read_pairs, open_study(study))


def test_a_second_label_is_added_and_pairs_without_a_manifest_are_ignored(tmp_path):
    study = tmp_path / "study"
    ingest([write_pairs(tmp_path / "a.jsonl", pair(1))], out=study)
    before = file_contents(study)
    source = write_pairs(tmp_path / "b.jsonl", pair(1))
    ingest([source], out=study)
    assert before.items() <= file_contents(study).items()
    opened = open_study(study)
    assert [source.label for source in opened.sources] == ["a", "b"]
    # A process that is killed between moving two files leaves pairs without a manifest.
    (study / "pairs" / "b.manifest.json").unlink()
    assert [source.label for source in opened.sources] == ["a", "b"]  # read once
    assert [source.label for source in open_study(study).sources] == ["a"]
    assert ingest([source], out=study).sources[0].status == "new"


def test_equal_pairs_change_nothing_and_different_pairs_need_option_replace(tmp_path):
    study = tmp_path / "study"
    source = write_pairs(tmp_path / "mine.jsonl", pair(1), pair(2), pair(2), {})
    ingest([f"pairs:{source}"], out=study)
    before = file_contents(study)
    for replace in (False, True):
        report = ingest([f"pairs:{source}"], out=study, replace=replace)
        assert [source.status for source in report.sources] == ["unchanged"]
        assert file_contents(study) == before
    write_pairs(tmp_path / "mine.jsonl", pair(1))
    assert_refused(r"labelled 'mine' already \(2, now 1\).*--replace", ingest, [source], out=study)
    assert file_contents(study) == before
    assert ingest([source], out=study, replace=True).sources[0].status == "replaced"
    assert read_pairs(open_study(study)).num_rows == 1


# --- bad input ------------------------------------------------------------------------------


def bad_sources(folder: Path) -> list[tuple[Any, dict[str, Any], str]]:
    """Return arguments, options, and a pattern of the error message."""
    good = write_pairs(folder / "good.jsonl", pair(1))
    link = folder / "link.jsonl"
    link.symlink_to(good)
    empty, text = (str(folder / f"{name}.jsonl") for name in ("empty", "text"))
    Path(empty).write_bytes(b"\n\n  \n")
    Path(text).write_text("this is\nno JSON\n")
    short = {"prompt": "Q", "chosen": "y"}
    no_column = write_pairs(folder / "short.jsonl", short, short)
    parquet = folder / "short.parquet"
    pq.write_table(pa.Table.from_pylist([short]), parquet)
    unlike = write_pairs(folder / "unlike.jsonl", {"chosen": "y", "rejected": "n"})
    capital = "GOOD=" + write_pairs(folder / "other.jsonl", pair(1))
    splits = folder / "splits"
    (splits / "train").mkdir(parents=True)
    (splits / "dataset_dict.json").write_text("{}")
    no_pair = "not one of its 2 records is a preference pair"
    missing = r"'rejected' is missing \(found: prompt, chosen\)"
    return [
        ([], {}, "no source given"),
        ([empty], {}, "empty, it has no records"),
        ([text], {}, rf"{no_pair} \(not-json ×2\); record 1: line 1"),
        ([unlike], {}, "the types of their values: hh has chosen, rejected"),
        ([f"pairs:{no_column}"], {}, rf"{no_pair} \(missing-column ×2\).*{missing}"),
        ([f"pairs:{parquet}"], {}, missing),
        ([good, str(link)], {}, "given twice"),
        ([good, capital], {}, "differ only in case"),
        ([good, f"pairs:{no_column}"], {}, "missing-column"),
        ([good], {"prefer": "safer"}, "no source has format pku"),
        ([good], {"split": "train"}, "no source is on the hub"),
        (str(folder / "nosuch.jsonl"), {}, "nosuch.jsonl: no such file"),
        (folder / "nosuch", {}, "nosuch: no such file or folder"),
        (splits, {}, r"several splits; name one of its folders: .*splits/train$"),
        (pd.DataFrame([short]), {}, "cannot tell the format from the columns"),
    ]


def test_bad_input_is_refused_in_one_line_and_changes_nothing(tmp_path):
    existing = tmp_path / "out" / "existing"
    ingest([write_pairs(tmp_path / "before.jsonl", pair(1))], out=existing)
    before = file_contents(tmp_path / "out")
    for arguments, options, message in bad_sources(tmp_path):
        for study in (existing, tmp_path / "out" / "new"):
            with pytest.raises(InputError, match=message) as caught:
                ingest(arguments, out=study, **options)
            assert "\n" not in str(caught.value)
            assert file_contents(tmp_path / "out") == before, message
            assert list(existing.parent.iterdir()) == [existing]


@pytest.mark.services
def test_a_full_disk_changes_nothing(tmp_path):
    # A limit on the size of written files ends writing half-way, as a full disk does.
    rng = random.Random(0)
    long_pairs = (pair(number, chosen=rng.randbytes(500).hex()) for number in range(6000))
    source = write_pairs(tmp_path / "big.jsonl", *long_pairs)
    study = tmp_path / "out" / "study"
    ingest([write_pairs(tmp_path / "small.jsonl", pair(1))], out=study)
    before = file_contents(tmp_path / "out")
    ingesting = [sys.executable, "-m", "encore.cli", "ingest", str(study), source]
    finished = run_process("bash", "-c", 'ulimit -f 488; exec "$@"', "-", *ingesting)
    assert finished.code == 1
    assert "writing failed" in finished.error
    assert file_contents(tmp_path / "out") == before


# --- real data --------------------------------------------------------------------------------


def test_real_transcripts_are_all_counted_and_lose_no_text(shared_data, tmp_path):
    study = tmp_path / "study"
    file = shared_data / "hh-harmless-dev.jsonl.gz"
    manifest = only_manifest(ingest([str(file)], out=study))
    # Checked by eye: four chosen transcripts end with an empty "Assistant:", and in record 1255
    # the conversations differ before the last turn.
    reason_by_record = {line["record"]: line["reason"] for line in set_aside(study, "hh")}
    assert reason_by_record.pop(1255) == "prefix-mismatch"
    assert reason_by_record == dict.fromkeys((87, 517, 926, 1104), "empty-response")
    assert (manifest.num_read, manifest.num_kept, manifest.num_duplicates) == (1500, 1495, 0)
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        originals = {"".join(json.loads(line)["chosen"].split()) for line in stream}
    speakers = {"user": "Human:", "assistant": "Assistant:"}
    for real_pair in iter_pairs(open_study(study)):
        turns = [(turn.role, turn.content) for turn in real_pair.prompt]
        turns.append(("assistant", real_pair.chosen))
        transcript = "".join(f"{speakers[role]}{content}" for role, content in turns)
        assert "".join(transcript.split()) in originals


def test_the_command_shows_counts_and_the_file_of_malformed_records(tmp_path):
    source = write_pairs(tmp_path / "mine.jsonl", *(pair(n) for n in range(1200)), {})
    result = encore("ingest", str(tmp_path / "study"), source)
    assert result.code == 0, result.err
    for expected in ("mine", "1,201", "1,200", "new"):
        assert expected in result.out
    assert "format pairs, detected from its columns" in result.err
    assert "set aside missing-column 1; see" in result.err
