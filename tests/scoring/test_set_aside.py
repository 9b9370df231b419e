"""A pair that the chat template refuses is set aside by every stage, counted, and never a 0."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from encore.benchmarks.benchmark_options import (
    BenchmarkConfig,
    BenchmarkRunOptions,
    PairsConfig,
    RowsConfig,
)
from encore.benchmarks.compare_tables import compare
from encore.benchmarks.metrics import units_of_pairs
from encore.benchmarks.pair_results import read_pair_results
from encore.benchmarks.render_table import render_markdown
from encore.benchmarks.run_benchmark import run_benchmark
from encore.core.errors import InputError
from encore.data.study import open_study
from encore.exports.write_export import export_model
from encore.model.open_model import open_reward_model
from encore.people.guardrail import measure_guardrail
from encore.people.people_options import GuardConfig
from encore.runs.shard_files import run_status
from encore.scoring.head_accuracy import head_accuracies
from encore.scoring.head_scores import ScoreManifest, read_head_scores
from encore.training.baselines.gate import train_gate
from encore.training.train import train
from encore.training.training_examples import read_examples
from encore.training.training_options import GateConfig, GateTrainingConfig
from encore.training.training_plan import PlanTrainConfig, plan_training
from encore.weighting.weights_options import WeightChoice
from tests.golden.command_line import encore
from tests.worlds.scorings import make_model, score
from tests.worlds.strict_templates import mixed_rows, strict_tokenizer, write_template
from tests.worlds.studies import file_digests, shard_path, study_of, write_lines
from tests.worlds.trainings import RULES, make_backbone, pairs_of, train_config, write_ratings

pytestmark = pytest.mark.services

NUM_TAKEN, NUM_REFUSED = 25, 2  # 2 of 27 pairs: 7.4 %
NOTE = "2 of 27 pairs are set aside: the chat template refuses them"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a rated study, a backbone, and two models, one of them strict."""
    folder = tmp_path_factory.mktemp("strict")
    rows = mixed_rows(NUM_TAKEN, num_refused=NUM_REFUSED)
    study_of(rows, folder / "study")
    write_ratings(folder / "study", folder / "ratings.parquet")
    make_backbone(folder / "tiny")
    template = write_template(folder)
    config = {"evaluation_share": 0.0, "seed": 0}
    make_model(folder / "model", chat_template=template, config=config)
    make_model(folder / "free", head_ids=("reward",), seed=1)
    write_lines(folder / "rows.jsonl", rows)
    return folder


@pytest.fixture
def study(world, tmp_path):
    return Path(shutil.copytree(world / "study", tmp_path / "study"))


def strict_training(world, **settings):
    config = train_config(world, max_steps=2, **settings)
    backbone = config.backbone.model_copy(
        update={"chat_template": str(world / "strict.jinja"), "max_length": 256}
    )
    return config.model_copy(update={"backbone": backbone})


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["multi-head", "bradley-terry"])
def test_examples_are_those_of_a_study_without_the_refused_pairs(world, tmp_path, objective):
    smaller_study = study_of(mixed_rows(NUM_TAKEN, num_refused=0), tmp_path / "study")
    mixed, expected = (
        read_examples(
            open_study(study),
            tokenizer=strict_tokenizer(),
            objective=objective,
            ratings=None if objective == "bradley-terry" else world / "ratings.parquet",
        )
        for study in (world / "study", smaller_study)
    )
    assert (mixed.num_pairs, mixed.num_set_aside) == (NUM_TAKEN, NUM_REFUSED)
    # The digest covers tokens, targets, ids and sources.
    assert mixed.digest == expected.digest
    assert any(note.startswith(NOTE) for note in mixed.notes)
    assert expected.num_set_aside == 0


def test_training_counts_them_in_its_manifest_and_its_answer_and_says_so_first(world, tmp_path):
    messages = []

    class Listener:
        def __getattr__(self, event):
            return lambda *arguments, **_more: messages.append((event, arguments))

    config = strict_training(world, out=tmp_path / "run")
    result = train(world / "study", config, reporter=Listener())
    assert result.num_set_aside == NUM_REFUSED
    manifest = json.loads((result.out / "training.json").read_bytes())
    assert manifest["num_set_aside"] == NUM_REFUSED
    note_indices = [
        index
        for index, (event, arguments) in enumerate(messages)
        if event == "message" and arguments[0].startswith(NOTE)
    ]
    assert note_indices
    assert note_indices[0] < messages.index(("started", ("loading the backbone",)))
    # The same call, and one that may set nothing aside: an error before any work.
    assert not train(world / "study", config).is_new
    strict = config.model_copy(update={"max_set_aside_share": 0.0, "out": tmp_path / "other"})
    with pytest.raises(InputError, match=r"refuses 2 of 27 pairs .*--max-set-aside-share 0\.08"):
        train(world / "study", strict)
    assert not (tmp_path / "other").exists()


def test_the_plan_counts_them_before_training(world):
    options = {"backbone": str(world / "tiny"), "chat_template": str(world / "strict.jinja")}
    tokens = plan_training(open_study(world / "study"), PlanTrainConfig(**options)).tokens
    assert (tokens.num_pairs, tokens.num_set_aside) == (NUM_TAKEN, NUM_REFUSED)
    assert tokens.notes[0].startswith(NOTE)
    with pytest.raises(InputError, match="refuses 2 of 27 pairs"):
        config = PlanTrainConfig(**options, max_set_aside_share=0.05)
        plan_training(open_study(world / "study"), config)
    # Of a shape by name there is no template to try: not known is not 0.
    config = PlanTrainConfig(backbone="llama-3.1-8b")
    tokens = plan_training(open_study(world / "study"), config).tokens
    assert (tokens.num_pairs, tokens.num_set_aside) == (NUM_TAKEN + NUM_REFUSED, None)
    assert "was not tried" in tokens.notes[0]


def test_a_gate_learns_from_the_other_pairs(world, tmp_path):
    run = train(world / "study", strict_training(world, out=tmp_path / "run"))
    gate = GateConfig(hidden_size=8, num_hidden_layers=1, num_steps=3)
    config = GateTrainingConfig(model=run.model_dir, gate=gate, out=tmp_path / "gate")
    result = train_gate(world / "study", config)
    assert result.num_set_aside == NUM_REFUSED
    assert result.num_pairs + result.num_evaluation_pairs == NUM_TAKEN
    assert any(note.startswith(NOTE) for note in result.notes)


# --- scores ---------------------------------------------------------------------------------------


def test_their_scores_are_null_and_counted_and_the_others_are_as_without_them(
    study, world, tmp_path
):
    result = score(study, world / "model", shard_size=5)
    tables = [pq.read_table(path) for path in run_status(result.out, ScoreManifest).paths]
    rows = [row for table in tables for row in table.to_pylist()]
    null_rows = [row for row in rows if row[RULES[0]] is None]
    assert (len(rows), len(null_rows)) == (2 * (NUM_TAKEN + NUM_REFUSED), 2 * NUM_REFUSED)
    assert all(row[rule] is None for row in null_rows for rule in RULES)
    assert (result.num_pairs, result.num_set_aside) == (27, 2)
    assert result.num_scores == 2 * NUM_TAKEN * len(RULES)
    assert result.notes[0].startswith(NOTE)
    manifest = json.loads((result.out / "score.json").read_bytes())
    assert manifest["num_set_aside"] == NUM_REFUSED
    reasons = {"no system turns": 1, "roles must alternate": 1}
    assert manifest["set_aside_reasons"] == reasons

    smaller_study = study_of(mixed_rows(NUM_TAKEN, num_refused=0), tmp_path / "alone")
    expected = read_head_scores(score(smaller_study, world / "model").out)
    scores = read_head_scores(result.out)
    assert np.isnan(scores.score_P2R).all(axis=(1, 2)).sum() == NUM_REFUSED
    assert scores.scored.pair_id_P.tolist() == expected.pair_id_P.tolist()
    np.testing.assert_allclose(scores.scored.score_P2R, expected.score_P2R, atol=1e-5)
    assert [accuracy.num_pairs for accuracy in head_accuracies(scores)] == [NUM_TAKEN] * 3
    assert [accuracy.half for accuracy in head_accuracies(scores)] == [
        accuracy.half for accuracy in head_accuracies(expected)
    ]


def test_a_resumed_scoring_sets_the_same_pairs_aside(study, world):
    first = score(study, world / "model", shard_size=5)
    before = file_digests(first.out, "shard-*")
    for index in range(6):  # 27 pairs in shards of 5
        shard_path(first.out, index).unlink()
        second = score(study, world / "model", shard_size=5)
        assert (second.key, second.num_set_aside, second.notes) == (
            first.key,
            NUM_REFUSED,
            first.notes,
        )
        assert file_digests(first.out, "shard-*") == before


def test_a_shard_of_refused_pairs_alone_is_all_null(study, world):
    result = score(study, world / "model", shard_size=1)
    assert result.is_complete
    assert result.num_scores == 2 * NUM_TAKEN * len(RULES)


def test_more_than_the_share_is_an_error_before_any_file(study, world):
    with pytest.raises(InputError, match=r"of 'model': it refuses 2 of 27 .* at most 5.0 %"):
        score(study, world / "model", max_set_aside_share=0.05)
    assert not (study / "scores").exists()


def test_the_command_says_it_and_every_view_counts_the_scored_pairs_alone(study, world):
    scored = encore("score", study, "--model", world / "model", "--json")
    answer = scored.json
    assert (answer["num_set_aside"], answer["accuracy"][0]["num_pairs"]) == (2, NUM_TAKEN)
    assert NOTE in scored.err
    query = encore("sql", study, "--query", "head_accuracy", "--json")
    assert {row["num_pairs"] for row in query.json} == {NUM_TAKEN}


# --- benchmarks -----------------------------------------------------------------------------------


def benchmark(study, world, *, max_set_aside_share=0.1, **settings):
    config = {
        "model": str(world / "model"),
        "reward_models": (f"free={world / 'free'}",),
        "ratings": world / "ratings.parquet",
        "pairs": PairsConfig(benchmark="generic", data=world / "rows.jsonl"),
        **settings,
    }
    how = BenchmarkRunOptions(device="cpu", max_set_aside_share=max_set_aside_share)
    return run_benchmark(open_study(study), BenchmarkConfig(**config), how)


def test_a_row_counts_the_pairs_that_its_model_scores_and_says_so(study, world):
    run = benchmark(study, world)
    rows = {line.name: line.our_figures for line in run.table.rows_with_figures}
    strict, free = rows["uniform"], rows["free"]
    assert (strict.headline.num_pairs, free.headline.num_pairs) == (NUM_TAKEN, 27)
    assert (strict.num_set_aside_pairs, free.num_set_aside_pairs) == (NUM_REFUSED, None)
    assert (strict.is_partial, free.is_partial) == (True, False)
    # Two rows are compared on the pairs that both score.
    assert free.comparison.num_pairs == NUM_TAKEN
    rows_by_name = {row.name: row for row in run.rows}
    settings = {"units": units_of_pairs(run.pairs), "weighting": "examples", "seed": 0}
    turned = rows_by_name["uniform"].compared_with(rows_by_name["free"], **settings)
    assert turned.num_pairs == NUM_TAKEN
    assert turned.difference == pytest.approx(-free.comparison.difference)
    credit_P = np.where(np.isnan(rows_by_name["uniform"].credit_P), 1.0, np.nan)
    unlike = replace(rows_by_name["free"], credit_P=credit_P, reward_P2=None)
    with pytest.raises(InputError, match="'uniform' and 'free': no pair is scored in both"):
        rows_by_name["uniform"].compared_with(unlike, **settings)
    assert any(NOTE in note for note in strict.notes)
    assert not any(NOTE in note for note in free.notes)
    [free_line] = [line for line in render_markdown(run.table).split("\n") if "| free " in line]
    assert free_line.split("|")[2].strip() == "27"
    assert "27 pairs, model**" in render_markdown(run.table)  # and not "27 pairs in 25 choices"

    # The stored credits are null, and the table and a comparison follow from them.
    results = {row.name: row for row in read_pair_results(run.results_path).rows}
    credit_P = results["uniform"].credit_P
    assert np.isnan(credit_P).sum() == NUM_REFUSED
    assert strict.headline.score == pytest.approx(np.nanmean(credit_P))
    assert np.isnan(results["uniform"].reward_P2).any(axis=1).tolist() == (
        np.isnan(credit_P).tolist()
    )
    [table] = compare([study])
    figures = {row.name: row.figures["Accuracy"].num_pairs for row in table.rows}
    assert (figures["uniform"], figures["free"]) == (NUM_TAKEN, 27)


def test_a_gate_and_weights_fitted_on_heads_pass_over_them(study, world, tmp_path):
    train_gate(
        study,
        GateTrainingConfig(
            model=world / "model",
            gate=GateConfig(hidden_size=8, num_hidden_layers=1, num_steps=3),
            out=tmp_path / "gate",
        ),
    )
    score(study, world / "model")
    rows = RowsConfig(schemes=("fitted-heads",))
    run = benchmark(study, world, gate=tmp_path / "gate", rows=rows)
    by_name = {row.name: row for row in run.rows}
    assert by_name["weights fitted on heads"].metadata.params["num_pairs"] == NUM_TAKEN
    for name in ("weights fitted on heads", "moe gate"):
        assert np.isnan(by_name[name].credit_P).sum() == NUM_REFUSED


def test_a_benchmark_of_too_many_refused_pairs_ends_before_scoring(study, world):
    with pytest.raises(InputError, match="refuses 2 of 27 pairs"):
        benchmark(study, world, max_set_aside_share=0.01)
    assert not (study / "benchmarks").exists()


# --- exports --------------------------------------------------------------------------------------


def test_an_export_compares_the_rankings_of_the_other_pairs(world, tmp_path):
    exported = export_model(
        open_reward_model(world / "model", device="cpu"),
        out=tmp_path / "export",
        dtype="bfloat16",
        pairs=pairs_of(world / "study"),
    )
    assert exported.verification.num_set_aside == NUM_REFUSED
    assert exported.verification.num_margins == NUM_TAKEN * len(RULES)
    assert any(note.startswith("2 pairs are set aside") for note in exported.notes)


# --- labelled responses ---------------------------------------------------------------------------


def test_the_guardrail_leaves_refused_responses_out(world, tmp_path):
    rows = [
        {"prompt": row["prompt"], "response": row["chosen"], "is_safe": index % 2 == 0}
        for index, row in enumerate(mixed_rows(NUM_TAKEN, num_refused=NUM_REFUSED))
    ]
    config = GuardConfig(
        labelled=(write_lines(tmp_path / "labelled.jsonl", rows),),
        model=str(world / "model"),
        composition=WeightChoice(rule=RULES[0]),
        out=tmp_path / "out",
        device="cpu",
    )
    result = measure_guardrail(config)
    assert result.figures.num_responses == NUM_TAKEN
    assert result.notes[0].startswith("2 of 27 responses are set aside")
    with pytest.raises(InputError, match="refuses 2 of 27 responses"):
        measure_guardrail(config.model_copy(update={"max_set_aside_share": 0.0}))
