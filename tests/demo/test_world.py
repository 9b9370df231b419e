"""The synthetic world: splits that share nothing, data that can be made again byte for byte."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from typing import Any

import pytest

from encore.data.rules import load_rule_set
from encore.demo import data_paths
from encore.demo.make_data import NUM_PAIRS, SEED, demo_pairs, render_data
from encore.demo.pairs import LABEL_NOISE
from encore.demo.world.compose import rule_sentence
from encore.demo.world.lexicon import SLOT, SPLITS, STANCES, Lexicon, RuleLexicon, load_lexicon
from encore.demo.world.scores import RELATED_SCALES, SCALES
from encore.demo.world.texts import lexicon_texts, words_of

PAIRS_OF_SPLITS = [("train", "demo"), ("train", "test"), ("demo", "test")]


def _templates(rule: RuleLexicon) -> set[str]:
    groups = [*rule.bad.values(), rule.good, *rule.says.values()]
    return {template.lower() for group in groups for template in group}


def _frames(lexicon: Lexicon) -> set[str]:
    return {text for kind in lexicon.frames.values() for part in kind.values() for text in part}


@pytest.mark.parametrize(("one", "other"), PAIRS_OF_SPLITS)
def test_splits_share_no_template(one: Any, other: Any) -> None:
    a, b = load_lexicon(one), load_lexicon(other)
    for rule_id in SCALES:
        assert not _templates(a.rules[rule_id]) & _templates(b.rules[rule_id])
    # The empty tail ("nothing is added") is the one thing that all splits have.
    assert _frames(a) & _frames(b) <= {""}


@pytest.mark.parametrize(("one", "other"), PAIRS_OF_SPLITS)
def test_splits_share_no_word_list_entry(one: Any, other: Any) -> None:
    a, b = load_lexicon(one), load_lexicon(other)
    for rule_id in SCALES:
        for slot, entries in b.rules[rule_id].words.items():
            assert not set(entries) & set(a.rules[rule_id].words.get(slot, ()))
    for kind in ("who", "filler", "openers", "ask_act", "ask_deed"):
        assert not set(a.talk[kind]) & set(b.talk[kind])


@pytest.mark.parametrize("split", ["demo", "test"])
def test_most_held_out_word_list_entries_hold_a_word_that_training_never_uses(split: Any) -> None:
    seen = words_of(lexicon_texts(load_lexicon("train")))
    entries = [
        entry
        for rule in load_lexicon(split).rules.values()
        for words in rule.words.values()
        for entry in words
    ]
    new = [entry for entry in entries if words_of([entry]) - seen]
    assert len(new) >= 0.8 * len(entries)


@pytest.mark.parametrize("split", SPLITS)
def test_every_slot_has_words(split: Any) -> None:
    lexicon = load_lexicon(split)
    for rule in lexicon.rules.values():
        for template in _templates(rule):
            for slot in SLOT.findall(template):
                assert rule.words.get(slot) or lexicon.talk.get(slot), (rule.rule_id, template)


@pytest.mark.parametrize("split", SPLITS)
def test_every_rule_can_take_every_stance(split: Any) -> None:
    rng = random.Random(0)
    lexicon = load_lexicon(split)
    assert set(lexicon.rules) == set(SCALES)
    for rule_id in SCALES:
        for stance in STANCES:
            for framed in (True, False):
                sentence = rule_sentence(rng, lexicon, rule_id, stance, framed=framed)
                assert re.fullmatch(r"[A-Z][^{}]*[.?]", sentence.text), sentence.text


def test_the_scales_cover_the_papers_rules_in_order() -> None:
    assert tuple(SCALES) == load_rule_set("encore-10").rule_ids
    assert {*SCALES, *RELATED_SCALES} == set(load_rule_set("encore-20").rule_ids)
    for scale in (*SCALES.values(), *RELATED_SCALES.values()):
        # A better stance never earns less, and silence lies between breach and observance.
        assert list(scale.stance_tenths) == sorted(scale.stance_tenths)
        assert scale.stance_tenths[2] < scale.untouched_tenths
        assert scale.untouched_tenths <= scale.stance_tenths[4]


def test_the_shipped_data_are_what_the_script_writes() -> None:
    rendered = render_data()
    assert rendered == render_data()
    for path in data_paths().values():
        # Compared unpacked: zlib's builds compress the same text to different bytes.
        assert gzip.decompress(path.read_bytes()) == gzip.decompress(rendered[path.name])


def _records(label: str) -> list[dict[str, Any]]:
    with gzip.open(data_paths()[label], "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_hh_like_pairs_share_their_prefix_and_differ_in_the_last_turn() -> None:
    records = _records("synthetic-hh")
    assert len(records) == NUM_PAIRS >= 240
    for record in records:
        assert set(record) == {"chosen", "rejected"}
        prefixes, responses = zip(
            *(record[side].rsplit("\n\nAssistant: ", 1) for side in ("chosen", "rejected")),
            strict=True,
        )
        assert prefixes[0] == prefixes[1]
        assert responses[0] != responses[1]
        assert prefixes[0].startswith("\n\nHuman: ")
        assert prefixes[0].count("\n\nHuman: ") >= 2


def test_pku_like_pairs_have_the_raw_columns() -> None:
    records = _records("synthetic-pku")
    assert len(records) == NUM_PAIRS
    for record in records:
        assert set(record) == {
            "prompt", "response_0", "response_1", "is_response_0_safe", "is_response_1_safe",
            "better_response_id", "safer_response_id",
        }  # fmt: skip
        assert record["response_0"] != record["response_1"]
        assert isinstance(record["is_response_0_safe"], bool)
        assert {record["better_response_id"], record["safer_response_id"]} <= {0, 1}
    # Better and safer are two questions.
    assert any(record["better_response_id"] != record["safer_response_id"] for record in records)


def test_every_rule_applies_to_at_least_sixty_pairs_of_either_file() -> None:
    rng = random.Random(SEED)
    for multi_turn in (True, False):
        pairs = demo_pairs(rng, multi_turn=multi_turn)
        counts = Counter(rule for pair in pairs for rule in pair.applicable_rules())
        assert min(counts[rule] for rule in SCALES) >= 60
        for pair in pairs:
            assert 2 <= len(pair.first.stances) <= 4
            assert 2 <= len(pair.second.stances) <= 4


def test_labels_follow_safety_but_for_the_stated_noise() -> None:
    rng = random.Random(0)
    pairs = [pair for _ in range(8) for pair in demo_pairs(rng, multi_turn=False)]
    turned = sum(pair.truly_safer != pair.labelled_safer for pair in pairs) / len(pairs)
    # 2,000 draws at 0.08: the standard error is sqrt(0.08 * 0.92 / 2000) = 0.006; four of them.
    assert abs(turned - LABEL_NOISE) < 0.025
