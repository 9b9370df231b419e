"""Tokens of a study: tokenised where that is cheap, else from characters, and never silently."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.data.ingestion import ingest
from encore.data.study import create_study
from encore.demo import judge_path
from encore.errors import InputError
from encore.training.plan import lengths as module
from encore.training.plan.lengths import Lengths, lengths_from_average, lengths_of_study

# One prompt of 40 characters; responses of 20 and 60.
PAIR = {"prompt": "p" * 39 + "?", "chosen": "c" * 20, "rejected": "r" * 60}


def make_study(tmp_path, *, num_pairs: int = 3):
    records = [
        {**PAIR, "prompt": f"{number:02d}" + PAIR["prompt"][2:]} for number in range(num_pairs)
    ]
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    ingest([f"mine={source}"], out=tmp_path / "study")
    return tmp_path / "study"


def test_without_a_tokenizer_four_characters_are_a_token_and_the_reader_is_told(tmp_path):
    """(40 + 20) / 4 = 15 and (40 + 60) / 4 = 25 tokens, of which 40 / 4 = 10 are shared."""
    lengths = lengths_of_study(make_study(tmp_path), model="llama-3.1-8b", max_length=1024)
    assert lengths.num_tokens == 3 * (15 + 25)
    assert lengths.computed_tokens("prefix-shared") == 3 * (15 + 25 - 10)
    assert lengths.origin == (
        "3 pairs at 4 characters a token, not tokenised (llama-3.1-8b is no folder)"
    )


def test_what_is_longer_than_the_maximum_is_cut_and_then_shares_nothing(tmp_path):
    """At 20 tokens the second of 25 is cut from the left, so the two begin differently."""
    lengths = lengths_of_study(make_study(tmp_path), model="llama-3.1-8b", max_length=20)
    assert lengths.length_N.tolist() == [15, 20] * 3
    assert lengths.shared_P.tolist() == [0, 0, 0]


def test_with_a_folder_the_lengths_are_those_that_training_has_without_its_weights(tmp_path):
    from encore.data.pairs import iter_pairs
    from encore.data.study import open_study
    from encore.model.config import BackboneConfig
    from encore.model.loading import load_tokenizer

    study, folder = make_study(tmp_path), tmp_path / "weightless"
    folder.mkdir()
    for file in judge_path().glob("*.json"):
        shutil.copy(file, folder)
    lengths = lengths_of_study(study, model=str(folder), max_length=1024)
    tokenizer = load_tokenizer(BackboneConfig(model=str(judge_path())))
    for index, pair in enumerate(iter_pairs(open_study(study))):
        for offset, text in enumerate((pair.chosen, pair.rejected)):
            expected = len(tokenizer.encode(pair.prompt, text).token_ids)
            assert lengths.length_N[2 * index + offset] == expected
    assert (lengths.shared_P >= 10).all()
    assert lengths.origin == "3 pairs tokenised as training does"


def test_a_folder_without_a_tokenizer_falls_back_with_the_reason(tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    shutil.copy(judge_path() / "config.json", folder)
    lengths = lengths_of_study(make_study(tmp_path), model=str(folder), max_length=1024)
    assert "4 characters a token, not tokenised (backbone 'bare': its tokenizer" in lengths.origin


def test_a_large_study_is_measured_on_a_sample_and_counted_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_MEASURED_PAIRS", 4)
    lengths = lengths_of_study(make_study(tmp_path, num_pairs=10), model="x", max_length=1024)
    assert len(lengths.shared_P) == 4  # 10 pairs, every third
    assert lengths.num_pairs == 10
    assert lengths.num_tokens == 10 * (15 + 25)
    assert lengths.origin.startswith("4 of 10 pairs")


def test_a_study_without_pairs_is_refused(tmp_path):
    create_study(tmp_path / "empty")
    with pytest.raises(InputError, match="no pairs; run `encore ingest"):
        lengths_of_study(tmp_path / "empty", model="x", max_length=1024)


def test_an_average_beyond_the_maximum_is_refused():
    with pytest.raises(InputError, match="tokens per response 2000: more than the maximum"):
        lengths_from_average(10, tokens_per_response=2000, max_length=1024)


def test_layouts_compute_what_the_notes_say_of_hh():
    """Shared prompts are 36.5 % of tokens: 1 / (1 - 0.365) = 1.57 times fewer."""
    lengths = lengths_from_average(70_000, tokens_per_response=300, max_length=1024)
    packed = lengths.computed_tokens("packed")
    assert packed == lengths.computed_tokens("single") == 140_000 * 300
    assert packed / lengths.computed_tokens("prefix-shared") == pytest.approx(1.575, abs=0.001)
    assert lengths.computed_tokens("padded") == 140_000 * 1024
    assert packed / lengths.computed_tokens("sorted") == pytest.approx(0.98)


def test_a_fullest_step_is_four_deviations_above_the_mean_and_never_impossible():
    """Pairs of 200 and 600 tokens: mean 400, deviation 200; 16 of them: 6,400 + 4 x 200 x 4."""
    lengths = Lengths(
        num_pairs=100,
        length_N=np.array([100.0, 100.0, 300.0, 300.0]),
        shared_P=np.array([50.0, 50.0]),
        max_length=1024,
        origin="",
    )
    assert lengths.largest_step(16, layout="packed") == 6_400 + 3_200
    assert lengths.largest_step(16, layout="prefix-shared") == 16 * 350 + 3_200
    # The spread of an average alone is taken to be as large: 600 + 4 x 600 for one pair, at most
    # two sequences of 1,024.
    average = lengths_from_average(100, tokens_per_response=300, max_length=1024)
    assert average.largest_step(1, layout="packed") == 2 * 1024
    assert average.largest_step(64, layout="packed") == 64 * 600 + 4 * 600 * 8


@given(st.integers(1, 10**6), st.floats(1, 1024))
def test_sharing_never_computes_more_and_padding_never_less(num_pairs, tokens):
    lengths = lengths_from_average(num_pairs, tokens_per_response=tokens, max_length=1024)
    shared, packed, rows, padded = (
        lengths.computed_tokens(layout)
        for layout in ("prefix-shared", "packed", "sorted", "padded")
    )
    assert shared <= packed <= rows
    assert packed <= padded
