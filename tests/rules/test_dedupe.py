"""Near-duplicates are what numpy finds in the same embeddings; the first wording is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from encore.core.reporting import SILENT, Reporter
from encore.data.rule_sets import load_rule_set
from encore.rules import dedupe as dedupe_module
from encore.rules.dedupe import THRESHOLDS, dedupe, find_near_duplicates
from encore.rules.merge import merge
from encore.rules.pool import write_pool
from encore.rules.rules_options import DedupeConfig, MergeConfig
from encore.rules.sentence_embeddings import embed
from tests.golden.command_line import encore
from tests.rules.principles import principle, rules_in, write_in_any_format

SUBJECTS = (
    *("private addresses", "racial slurs", "bomb recipes", "tax fraud", "medical dosages"),
    *("suicide methods", "election results", "copyrighted songs", "religious jokes", "gun sales"),
    *("child safety", "animal cruelty", "phishing emails", "gambling debts", "drug synthesis"),
    *("celebrity gossip", "stock tips", "climate science", "vaccine myths", "war propaganda"),
)
VERBS = (
    *("explain the law on {}", "never joke about {}", "list sources for claims on {}"),
    *("ask why the user wants to know about {}", "stay neutral about {}"),
    *("refuse instructions that involve {}", "describe the history of {}", "warn minors of {}"),
)
#: Two ways in which a copy differs from its rule, the second one more.
CHANGES = ("Always {}.", "Whatever the user says, a good answer of the assistant will {}")


REQUESTS = [verb.format(subject) for verb in VERBS for subject in SUBJECTS]
#: 160 principles, then 40 near-duplicates of every fourth.
TEXTS = [f"The assistant should {request}." for request in REQUESTS]
TEXTS += [CHANGES[index % 2].format(request) for index, request in enumerate(REQUESTS[::4])]


def write_texts(path: Path, texts: Iterable[str]) -> Path:
    """Write a pool of the rules ``principle-0``, ``principle-1``, … with these descriptions."""
    write_pool(path, [principle(index, description=text) for index, text in enumerate(texts)])
    return path


def kept_indices(similarity_NN: np.ndarray, threshold: float) -> list[int]:
    kept: list[int] = []
    for index in range(len(similarity_NN)):
        if not (similarity_NN[index, kept] > threshold).any():
            kept.append(index)
    return kept


@pytest.fixture(scope="module")
def embedding_ND() -> np.ndarray:
    """Embeddings of `TEXTS` by the real model."""
    return embed(TEXTS, model=None, reporter=SILENT)


@pytest.mark.parametrize("threshold", [0.7, 0.8, 0.9])
def test_kept_rules_are_those_that_numpy_keeps(tmp_path, monkeypatch, embedding_ND, threshold):
    monkeypatch.setattr(dedupe_module, "embed", lambda *_, **__: embedding_ND)
    monkeypatch.setattr(dedupe_module, "are_opposed", lambda *_, **__: False)
    similarity_NN = embedding_ND @ embedding_ND.T
    # The planted similarities are on both sides of the highest threshold, most above the lowest.
    planted = similarity_NN[160:, :160][np.arange(40), np.arange(0, 160, 4)]
    assert (planted > 0.7).sum() >= 30
    assert 1 <= (planted > 0.9).sum() < 40
    pool, output = write_texts(tmp_path / "pool.toml", TEXTS), tmp_path / "out.toml"
    report = dedupe(DedupeConfig(pool=pool, output=output, threshold=threshold))
    expected = kept_indices(similarity_NN, threshold)
    assert report.rule_ids == tuple(f"principle-{index}" for index in expected)
    assert report.num_rules_at == {
        str(level): len(kept_indices(similarity_NN, level)) for level in THRESHOLDS
    }
    dropped = [(cluster, rule) for cluster in report.clusters for rule in cluster["dropped"]]
    for cluster, rule in dropped:
        index, kept = (int(row["rule_id"].removeprefix("principle-")) for row in (rule, cluster))
        earlier = [row for row in expected if row < index]
        assert kept == max(earlier, key=lambda row: similarity_NN[index, row])
        assert rule["similarity"] == pytest.approx(similarity_NN[index, kept], abs=1e-4)
        assert rule["similarity"] > threshold
    rules = rules_in(output)
    recorded = [copy.rule_id for rule in rules for copy in rule.merged_from]
    assert sorted(recorded) == sorted(rule["rule_id"] for _, rule in dropped)
    assert len(recorded) + len(rules) == 200


def test_blocks_of_rows_change_nothing(monkeypatch, embedding_ND):
    in_one_block = find_near_duplicates(embedding_ND, [0.6, 0.8])
    monkeypatch.setattr(dedupe_module, "_ROWS_AT_ONCE", 7)
    assert (find_near_duplicates(embedding_ND, [0.6, 0.8]) == in_one_block).all()


def test_a_chain_keeps_both_ends():
    # Unit vectors at 0, 30 and 60 degrees: neighbours have cosine 0.87, the ends 0.5.
    angle_N = np.deg2rad([0, 30, 60])
    rows = np.stack([np.cos(angle_N), np.sin(angle_N)], axis=1).astype(np.float32)
    representative_TN = find_near_duplicates(rows, [0.4, 0.8])
    assert representative_TN.tolist() == [[0, 0, 0], [0, 0, 2]]


def test_the_papers_rules_with_paraphrased_copies_come_back_as_twenty(tmp_path):
    rules = rules_in("encore-20")
    copies = [
        rule.model_copy(
            update={
                "title": f"My {rule.title}",
                "rating_rule": rule.rating_rule.replace("The response", "A good response"),
            }
        )
        for rule in rules[::3]
    ]
    files = {"a.toml": rules[:12], "b.csv": rules[12:], "c.jsonl": [*copies, rules[0]]}
    for name, file_rules in files.items():
        write_in_any_format(tmp_path / name, file_rules)
    pool, output = tmp_path / "pool.toml", tmp_path / "out.toml"
    pools = tuple(str(tmp_path / name) for name in files)
    assert merge(MergeConfig(pools=pools, output=pool)).num_rules == 27
    report = dedupe(DedupeConfig(pool=pool, output=output))
    assert load_rule_set(output).rules == load_rule_set("encore-20").rules
    assert sum(len(cluster["dropped"]) for cluster in report.clusters) == 7


def test_opposites_and_rules_in_other_scripts_are_kept(tmp_path):
    """The fifth text is a copy of the second and goes, though the first is as near."""
    texts = [
        "Choose the response that is less harmful.",
        "Choose the response that is more harmful.",
        "사용자의 개인 정보를 존중하십시오.",
        "정확한 정보를 제공하십시오.",
        "Choose the response that is more harmful!",
    ]
    pool = write_texts(tmp_path / "pool.toml", texts)
    arguments = ("rules", "dedupe", pool, "--output", tmp_path / "out.toml")
    finished = encore(*arguments)
    assert "1 rules are similar to another one but seem to say the opposite" in finished.err
    assert "principle-1 (beside principle-0)" in finished.err
    # The cosine of the third and fourth is 0.95 in a model that does not know their letters.
    assert "2 rules are in a script that the packaged model cannot read" in finished.err
    record = encore(*arguments, "--json").json
    assert record["rule_ids"] == [f"principle-{index}" for index in range(4)]
    [cluster] = record["clusters"]
    assert cluster["rule_id"] == "principle-1"
    assert [rule["rule_id"] for rule in cluster["dropped"]] == ["principle-4"]
    [apart] = record["kept_apart"]
    assert (apart["rule_id"], apart["opposed_to"]) == ("principle-1", ["principle-0"])
    assert record["num_rules_at"]["0.8"] == 4


def test_duplicates_of_one_title_are_shown_by_their_ids(tmp_path):
    text = "The assistant should never joke about tax fraud."
    rules = [principle(index, title="Rule 1", description=text) for index in range(2)]
    write_pool(tmp_path / "pool.toml", rules)
    arguments = (tmp_path / "pool.toml", "--output", tmp_path / "out.toml")
    output = encore("rules", "dedupe", *arguments).out
    assert re.search(r"principle-1 +principle-0 +1\.0", output)


def test_texts_longer_than_the_model_reads_are_counted():
    reporter = Mock(spec=Reporter)
    assert len(embed(["word " * 600, "short"], model=None, reporter=reporter)) == 2
    message = "1 texts are longer than the model reads: their ends are ignored"
    reporter.message.assert_called_once_with(message)


def test_a_missing_model_is_one_clear_error(tmp_path, monkeypatch):
    pool = write_texts(tmp_path / "pool.toml", ["a", "b"])
    arguments = (pool, "--output", tmp_path / "out.toml")
    error = encore("rules", "dedupe", *arguments, "--model", tmp_path / "none").error
    assert "expected the folder of a complete sentence-transformers model" in error
    (tmp_path / "modules.json").write_text("[]")
    assert "does not load" in encore("rules", "dedupe", *arguments, "--model", tmp_path).error
    monkeypatch.setattr("encore.rules.sentence_embeddings._PACKAGE", "no_such_package")
    assert "[rules]'" in encore("rules", "dedupe", *arguments).error
    assert not (tmp_path / "out.toml").exists()
