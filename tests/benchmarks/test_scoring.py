"""Head scores of a benchmark: computed once, kept with their subset, damaged ones again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from encore.benchmarks.scoring import ScoredBenchmark, aligned_scores, score_benchmark

from encore.benchmarks.pairs import BenchmarkPairs
from encore.errors import EncoreError, InputError
from encore.files import file_sha256
from encore.model.opening import OpenedModel, open_reward_model
from encore.reporting import SilentReporter
from encore.runs import shard_path
from encore.scoring.head_scores import read_head_scores
from encore.scoring.scoring_run import HowToCompute, OutOfDeviceMemoryError
from tests.benchmarks.table_world import benchmark_pairs
from tests.model.test_opening import make_classifier
from tests.scoring.models import make_model, score_pairs
from tests.training.studies import RULES

SHARD_SIZE = 4
SUBSETS = {"refuse": 6, "respond": 4}


@pytest.fixture(scope="module")
def pairs() -> BenchmarkPairs:
    return benchmark_pairs(SUBSETS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def opened(model: Path) -> OpenedModel:
    return open_reward_model(model, device="cpu")


def score(pairs: BenchmarkPairs, opened: OpenedModel, root: Path, **more: Any) -> ScoredBenchmark:
    return score_benchmark(pairs, opened=opened, root=root, **{"shard_size": SHARD_SIZE, **more})


def test_every_pair_has_the_scores_that_it_has_alone(pairs, opened, tmp_path):
    scored = score(pairs, opened, tmp_path)
    for place, pair in enumerate(pairs.pairs):
        [alone_2R] = score_pairs(opened, [pair], layout="single")
        np.testing.assert_allclose(scored.scores.score_P2R[place], alone_2R, atol=1e-5)
    assert scored.scores.pair_id_P.tolist() == [pair.pair_id for pair in pairs.pairs]
    assert scored.scores.head_ids == RULES
    np.testing.assert_allclose(scored.scores.mean_R, [0.5, 0.25, 0.125])


def test_the_files_are_head_scores_with_the_subset_of_each_pair(pairs, opened, tmp_path):
    scored = score(pairs, opened, tmp_path)
    tables = [pq.read_table(shard_path(scored.folder, index)) for index in range(3)]
    rows = [row for table in tables for row in table.to_pylist()]
    subset_of = dict(zip([p.pair_id for p in pairs.pairs], pairs.subset_P, strict=True))
    assert len(rows) == 2 * pairs.num_pairs
    assert all(row["subset"] == subset_of[row["pair_id"]] for row in rows)
    # Whoever reads head scores reads these.
    found = read_head_scores(scored.folder)
    assert sorted(found.subset_P.tolist()) == sorted(pairs.subset_P)


def test_a_second_call_computes_nothing(pairs, opened, tmp_path, monkeypatch):
    first = score(pairs, opened, tmp_path)
    monkeypatch.setattr("encore.scoring.scoring_run.score_encoded", None)  # would fail if called
    second = score(pairs, opened, tmp_path)
    assert (first.num_computed, second.num_computed) == (pairs.num_pairs, 0)
    assert second.folder == first.folder
    np.testing.assert_array_equal(second.scores.score_P2R, first.scores.score_P2R)


def test_a_damaged_or_missing_shard_is_computed_alone(pairs, opened, tmp_path):
    first = score(pairs, opened, tmp_path)
    whole = {index: file_sha256(shard_path(first.folder, index)) for index in range(3)}
    shard_path(first.folder, 1).write_bytes(b"damaged")
    shard_path(first.folder, 2).unlink()
    again = score(pairs, opened, tmp_path)
    assert again.num_computed == 4 + 2  # of 4 + 4 + 2
    assert {index: file_sha256(shard_path(first.folder, index)) for index in range(3)} == whole


def test_an_interruption_keeps_finished_shards(pairs, opened, tmp_path):
    class Stopping(SilentReporter):
        num_done = 0

        def advanced(self, count: int = 1, *, note: str = "") -> None:
            self.num_done += count
            if self.num_done > 2 * SHARD_SIZE:  # responses
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(pairs, opened, tmp_path, reporter=Stopping())
    assert score(pairs, opened, tmp_path).num_computed == pairs.num_pairs - SHARD_SIZE


def test_the_order_of_the_data_changes_no_file(pairs, opened, tmp_path):
    turned = dataclasses.replace(
        pairs,
        pairs=pairs.pairs[::-1],
        subset_P=pairs.subset_P[::-1],
        row_id_P=pairs.row_id_P[::-1],
    )
    first = score(pairs, opened, tmp_path)
    second = score(turned, opened, tmp_path)
    assert (second.folder, second.num_computed) == (first.folder, 0)
    np.testing.assert_array_equal(second.scores.score_P2R, first.scores.score_P2R[::-1])
    assert second.scores.subset_P.tolist() == list(turned.subset_P)


def test_another_model_has_a_folder_of_its_own(pairs, opened, tmp_path):
    other = open_reward_model(make_model(tmp_path / "other", seed=5), device="cpu")
    assert score(pairs, other, tmp_path).folder != score(pairs, opened, tmp_path).folder


def test_over_long_pairs_are_counted_also_when_they_were_scored_before(model, pairs, tmp_path):
    short = open_reward_model(model, device="cpu", max_length=16)
    lengths = [
        [len(one.token_ids) + one.num_cut for one in (encoded.chosen, encoded.rejected)]
        for encoded in short.tokenizer.encode_pairs(pairs.pairs)
    ]
    num_long = sum(max(both) > 16 for both in lengths)
    num_tokens = sum(max(length - 16, 0) for both in lengths for length in both)
    assert num_long > 0, "the fixture has no long pair"
    for _ in range(2):
        scored = score(pairs, short, tmp_path)
        assert (scored.num_cut_rows, scored.num_cut_tokens) == (num_long, num_tokens)
        [note] = scored.notes
        assert f"{num_long} of 10 pairs are longer than 16 tokens and lost {num_tokens}" in note


def test_a_model_that_came_without_its_chat_template_is_named(pairs, tmp_path):
    folder = make_classifier(tmp_path / "plain", labels=("reward",))
    with_own = open_reward_model(folder, device="cpu")
    assert score(pairs, with_own, tmp_path / "scores").notes == ()
    (folder / "chat_template.jinja").unlink()
    [note] = score(pairs, open_reward_model(folder, device="cpu"), tmp_path / "scores").notes
    assert note.startswith("plain: it reads conversations as plain Human/Assistant turns")


def test_layouts_are_no_part_of_the_key(pairs, opened, tmp_path):
    first = score(pairs, opened, tmp_path)
    second = score(pairs, opened, tmp_path, how=HowToCompute(layout="sorted"))
    assert (second.folder, second.num_computed) == (first.folder, 0)


def test_too_little_memory_is_one_line_with_what_to_do(pairs, opened, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("encore.scoring.scoring_run.score_encoded", fail)
    with pytest.raises(OutOfDeviceMemoryError, match="--tokens-per-microbatch"):
        score(pairs, opened, tmp_path)


def test_a_score_that_is_no_number_is_never_written(pairs, tmp_path):
    broken = open_reward_model(make_model(tmp_path / "broken"), device="cpu")
    with torch.no_grad():
        broken.model.heads.weight[1].fill_(float("nan"))
    with pytest.raises(EncoreError, match=f"under head '{RULES[1]}'"):
        score(pairs, broken, tmp_path)
    assert not list(tmp_path.glob("*/shard-*.parquet"))


def test_scores_of_other_pairs_are_refused(pairs, opened, tmp_path):
    scored = score(pairs, opened, tmp_path)
    with pytest.raises(InputError, match="1 of the 11 pairs of made-up are not among them"):
        aligned_scores(scored.scores, pairs=benchmark_pairs({"refuse": 6, "respond": 5}))
