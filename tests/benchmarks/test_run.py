"""A whole benchmark run: heads are scored once, and the table follows from their scores.

Suffixes: P pairs, 2 responses, R heads.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encore.benchmarks import definition
from encore.benchmarks.benchmark_models import ScoredModel, Scorer, encoded_pairs
from encore.benchmarks.benchmark_options import (
    BenchmarkConfig,
    BenchmarkRunOptions,
    PairsConfig,
    RowsConfig,
)
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.benchmark_table import table_folders
from encore.benchmarks.compare_tables import compare_tables, read_studies
from encore.benchmarks.render_table import table_notes
from encore.benchmarks.run_benchmark import (
    EVALUATION_JSON,
    BenchmarkRun,
    missing_initial_notes,
    overlap_notes,
    run_benchmark,
)
from encore.benchmarks.table_rows import TableRow
from encore.core.errors import InputError
from encore.core.model_files import folder_digest
from encore.data.pairs import iter_pairs
from encore.data.study import open_study
from encore.model.held_out_scores import write_held_out_scores
from encore.model.open_model import OpenedModel, open_reward_model
from encore.model.score_sequences import computed_batches
from encore.runs.shard_files import run_status
from encore.scoring.head_accuracy import held_out_P
from encore.scoring.head_scores import ScoreManifest, read_head_scores
from encore.training.baselines.gate import RESULT_FILE, train_gate
from encore.training.baselines.gating_network import GatingNetwork, fit_gate, load_gate, save_gate
from encore.training.training_options import GateConfig, GateTrainingConfig
from encore.weighting.schemes.bradley_terry import fit_scores
from tests.run_identities import differing_parts
from tests.worlds.models import make_classifier, tiny_config
from tests.worlds.refusals import assert_refused
from tests.worlds.scorings import held_out_scores, make_model, score_pairs
from tests.worlds.scorings import score as score_study
from tests.worlds.studies import shard_path, write_lines
from tests.worlds.tables import benchmark_pairs, make_world, turned
from tests.worlds.tokenizers import llama_3
from tests.worlds.trainings import RULES, write_ratings

pytestmark = pytest.mark.services

NUM_PAIRS = 20
HIDDEN_SIZE = 32
SHARD_SIZE = 4
#: Text of the shipped definition `generic`.
GENERIC = Path(definition.__file__).with_name("generic.toml").read_text(encoding="utf-8")
ROWS = {"schemes": ("encore", "random"), "taus": (2.0,), "num_random": 10}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_world(tmp_path_factory.mktemp("run"), num_rows=NUM_PAIRS)
    save_gate(folder / "gate", small_gate())
    gate_result = {"model": f"sha256:{folder_digest(folder / 'model')}", "synthetic": []}
    (folder / "gate" / RESULT_FILE).write_text(json.dumps(gate_result), encoding="utf-8")
    return folder


def small_gate(head_ids: tuple[str, ...] = RULES):
    rng = np.random.default_rng(0)
    prompt_PD, margin_PR = (
        rng.normal(size=(16, width)).astype(np.float32) for width in (HIDDEN_SIZE, len(head_ids))
    )
    config = GateConfig(hidden_size=8, num_hidden_layers=1, num_steps=3, temperature=1.0)
    return fit_gate(prompt_PD, margin_PR, head_ids=head_ids, config=config)


@pytest.fixture
def study(world: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world / "study", tmp_path / "study"))


def run(study: Path, world: Path, **more: Any) -> BenchmarkRun:
    """Run a benchmark of the world's model with options of the config, its pairs and its rows."""
    nested = {"pairs": PairsConfig, "rows": RowsConfig}
    settings = {
        "model": str(world / "model"),
        "ratings": world / "ratings.parquet",
        "device": "cpu",
        "benchmark": "generic",
        "data": world / "rows.jsonl",
        **ROWS,
        **more,
    }
    models = settings.pop("reward_models", {})
    for name, config in nested.items():
        fields = [field for field in config.model_fields if field in settings]
        settings[name] = config(**{field: settings.pop(field) for field in fields})
    settings["reward_models"] = tuple(f"{name}={model}" for name, model in models.items())
    names = BenchmarkRunOptions.model_fields.keys() & settings.keys()
    how = BenchmarkRunOptions(**{name: settings.pop(name) for name in names})
    return run_benchmark(open_study(study), BenchmarkConfig(**settings), how)


def row_of(result: BenchmarkRun, name: str) -> TableRow:
    return next(row for row in result.rows if row.name == name)


@pytest.fixture(scope="module")
def complete_run(world: Path, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkRun:
    """Return a run with two schemes, a gate and the initial model."""
    study = Path(shutil.copytree(world / "study", tmp_path_factory.mktemp("whole") / "study"))
    initial = {"initial model": world / "initial"}
    return run(study, world, reward_models=initial, gate=world / "gate")


@pytest.fixture(scope="module")
def opened(world: Path) -> OpenedModel:
    return open_reward_model(world / "model", device="cpu")


# --- head scores ----------------------------------------------------------------------------------

PAIRS = benchmark_pairs({"refuse": 6, "respond": 4})


def score(opened: OpenedModel, root: Path, pairs: BenchmarkPairs = PAIRS, **more: Any):
    settings = {"config": BenchmarkConfig(), "shard_size": SHARD_SIZE, **more}
    return Scorer(pairs=pairs, root=root, **settings).score(opened, title=opened.name)


def test_every_pair_has_its_scores_alone_and_its_subset(opened, tmp_path):
    scored = score(opened, tmp_path)
    for index, pair in enumerate(PAIRS.pairs):
        [alone_2R] = score_pairs(opened, [pair], layout="single")
        np.testing.assert_allclose(scored.scores.score_P2R[index], alone_2R, atol=1e-5)
    assert scored.scores.pair_id_P.tolist() == [pair.pair_id for pair in PAIRS.pairs]
    np.testing.assert_allclose(scored.scores.mean_R, [0.5, 0.25, 0.125])
    assert sorted(read_head_scores(scored.folder).subset_P) == sorted(PAIRS.subset_P)


def test_the_order_of_the_data_and_the_layout_change_no_stored_score(opened, tmp_path):
    first = score(opened, tmp_path)
    back = turned(PAIRS)
    second = score(opened, tmp_path, back, how=BenchmarkRunOptions(layout="sorted"))
    assert (first.num_computed, second.num_computed) == (PAIRS.num_pairs, 0)
    assert second.folder == first.folder
    np.testing.assert_array_equal(second.scores.score_P2R, first.scores.score_P2R[::-1])
    assert second.scores.subset_P.tolist() == list(back.subset_P)
    # A damaged and a missing shard are scored again, the whole one is not.
    shard_path(first.folder, 1).write_bytes(b"damaged")
    shard_path(first.folder, 2).unlink()
    assert score(opened, tmp_path).num_computed == 4 + 2  # of 4 + 4 + 2
    other_model = open_reward_model(make_model(tmp_path / "other", seed=5), device="cpu")
    assert score(other_model, tmp_path).folder != first.folder


def test_every_ingredient_of_a_benchmark_changes_the_key_of_its_head_scores(opened, tmp_path):
    def identity(pairs: BenchmarkPairs = PAIRS, **more: Any) -> dict[str, Any]:
        folder = score(opened, tmp_path, pairs, **more).folder
        return dict(run_status(folder, ScoreManifest).manifest.identity)

    newer = PAIRS.benchmark.model_copy(update={"version": "newer"})
    for part, changed in {
        "benchmark.version": identity(dataclasses.replace(PAIRS, benchmark=newer)),
        "data_sha256": identity(dataclasses.replace(PAIRS, digest="1" * 64)),
        "config.truncation": identity(config=BenchmarkConfig(truncation="rewardbench")),
        "plan.shard_size": identity(shard_size=3),
    }.items():
        assert differing_parts(identity(), changed) == {part}


def test_a_model_without_a_chat_template_gets_a_note(tmp_path):
    config = tiny_config("llama", vocab_size=300, num_labels=1, max_position_embeddings=1024)
    folder = make_classifier(tmp_path / "plain", config, llama_3())
    with_own = open_reward_model(folder, device="cpu")
    assert score(with_own, tmp_path / "scores").notes == ()
    (folder / "chat_template.jinja").unlink()
    [note] = score(open_reward_model(folder, device="cpu"), tmp_path / "scores").notes
    assert note.startswith("plain: it reads conversations as plain Human/Assistant turns")


def test_pairs_that_were_cut_are_counted_as_not_comparable(study, world, complete_run):
    models = {"reward_models": {"initial": world / "initial"}}
    short = open_reward_model(world / "initial", device="cpu", max_length=16)
    uncut = open_reward_model(world / "initial", device="cpu").tokenizer
    full_pairs = uncut.encode_pairs(complete_run.pairs.pairs)
    lengths = [len(text.token_ids) for pair in full_pairs for text in (pair.chosen, pair.rejected)]
    num_tokens = sum(max(length - 16, 0) for length in lengths)
    for _ in range(2):  # the second run reads stored scores
        result = run(study, world, max_length=16, **models)
        notes = [note for note in result.table.notes if "are longer than 16 tokens" in note]
        assert len(notes) == 2  # of each model
        beginning = f"initial: 20 of 20 pairs are longer than 16 tokens and lost {num_tokens}"
        assert beginning in notes[1]
        assert "the rewardbench tool cuts them in another way" in notes[1]
    figures_of_rows = [line.our_figures for line in result.table.rows_with_figures]
    assert {figures.num_cut_pairs for figures in figures_of_rows} == {NUM_PAIRS}
    assert not any(
        "num_cut_pairs" in row["ours"] for row in complete_run.table.model_dump()["rows"]
    )
    cut_as_tool = run(study, world, max_length=16, truncation="rewardbench", **models)
    assert any("cuts them in the same way" in note for note in cut_as_tool.table.notes)
    gap_P2 = result.rows[-1].reward_P2 - cut_as_tool.rows[-1].reward_P2
    assert abs(gap_P2).max() > 1e-3  # the text has lost its first token
    # The tool keeps the last 16 tokens, whatever the first one is.
    short_pairs = encoded_pairs(short, complete_run.pairs.pairs, truncation="rewardbench")
    for uncut_pair, cut in zip(full_pairs, short_pairs, strict=True):
        assert cut.chosen.token_ids.tolist() == uncut_pair.chosen.token_ids[-16:].tolist()
        assert cut.chosen.num_cut == len(uncut_pair.chosen.token_ids) - 16


# --- rows -----------------------------------------------------------------------------------------


def gated_rewards(result: BenchmarkRun, opened: OpenedModel, gate: GatingNetwork) -> np.ndarray:
    """Return the sum of the rules' scores, each weighed by the gate, [P, 2]."""
    scores = score(opened, result.out.parent, result.pairs, shard_size=1000).scores
    encoded = opened.tokenizer.encode_pairs(result.pairs.pairs)
    # The trunk's last state of each prompt, one sequence at a time.
    prompts = computed_batches(
        opened.model,
        [pair.chosen.token_ids[: pair.chosen.num_prompt] for pair in encoded],
        compute=opened.model.embed,
        pad_token_id=opened.tokenizer.pad_token_id,
        tokens_per_microbatch=1,
        layout="single",
    )
    state_PD = np.empty((NUM_PAIRS, HIDDEN_SIZE), dtype=np.float32)
    for batch in prompts:
        state_PD[batch.indices] = batch.value_NX
    rules = [scores.head_ids.index(rule_id) for rule_id in RULES]
    return np.einsum("pr,pcr->pc", gate.weights(state_PD), scores.score_P2R[:, :, rules])


def test_a_gate_weighs_the_heads_anew_for_each_prompt(complete_run, opened):
    row = row_of(complete_run, "moe gate")
    assert (row.method, row.metadata.kind) == ("moe", "scheme")
    models = json.loads((complete_run.out / EVALUATION_JSON).read_text())["models"]
    assert models["moe gate"]["gate"] is not None
    assert models["uniform"] == models["moe gate"] | {"gate": None}
    expected_P2 = gated_rewards(complete_run, opened, small_gate())
    np.testing.assert_allclose(row.reward_P2, expected_P2, atol=1e-4)


def test_the_gate_of_a_model_with_head_0_weighs_the_rules_alone(study, world, tmp_path):
    heads = ("preference", *RULES)
    split = {"evaluation_share": 0.5, "seed": 0}
    model = make_model(tmp_path / "joint", head_ids=heads, config=split)
    settings = GateConfig(hidden_size=8, num_hidden_layers=1, num_steps=3, temperature=1.0)
    config = GateTrainingConfig(model=model, gate=settings, out=tmp_path / "gate")
    gate = train_gate(study, config)
    assert [*gate.mean_weights] == [*RULES]
    result = run(study, world, model=str(model), gate=gate.out)
    opened = open_reward_model(model, device="cpu")
    expected_P2 = gated_rewards(result, opened, load_gate(gate.out, head_ids=RULES))
    np.testing.assert_allclose(row_of(result, "moe gate").reward_P2, expected_P2, atol=1e-4)


def test_weights_fitted_on_heads_learn_from_the_studys_scores_but_not_from_held_out_prompts(
    study, world, tmp_path
):
    split = {"evaluation_share": 0.5, "seed": 0}
    model = make_model(tmp_path / "model", seed=1, config=split)
    settings = {"model": str(model), "schemes": ("fitted-heads",)}
    score_study(study, world / "model")  # of another model
    with pytest.raises(InputError, match=r"has no scores of model .*; run `encore score"):
        run(study, world, **settings)
    scores = read_head_scores(score_study(study, model).out)
    pairs = [*iter_pairs(open_study(study))]
    is_learnt_P = ~held_out_P(split, pairs, scores)
    assert 0 < is_learnt_P.sum() < len(pairs)
    margin_PR = (scores.score_P2R[:, 0] - scores.score_P2R[:, 1]).astype(np.float64)[is_learnt_P]
    fitted_R = fit_scores(margin_PR)
    [_, row] = run(study, world, **settings).rows
    assert row.metadata.uses_labels
    assert row.metadata.params["num_pairs"] == is_learnt_P.sum()
    assert [*row.weights.values()] == pytest.approx(fitted_R / fitted_R.sum(), abs=1e-6)
    assert not any("does not say" in note for note in row.metadata.notes)


def test_a_gate_of_another_model_is_refused(study, world, tmp_path):
    save_gate(tmp_path / "heads", small_gate(head_ids=("a", "b")))
    assert_refused("it weighs 2 heads", run, study, world, gate=tmp_path / "heads")
    # Heads of the same names are no proof.
    gate = Path(shutil.copytree(world / "gate", tmp_path / "gate"))
    gate_result = {"model": "sha256:0", "synthetic": ["source made up"]}
    (gate / RESULT_FILE).write_text(json.dumps(gate_result), encoding="utf-8")
    assert_refused("was trained for another model", run, study, world, gate=gate)
    gate_result["model"] = f"sha256:{folder_digest(world / 'model')}"
    (gate / RESULT_FILE).write_text(json.dumps(gate_result), encoding="utf-8")
    result = run(study, world, gate=gate)
    assert "gate: source made up" in result.table.synthetic
    (gate / RESULT_FILE).unlink()
    assert_refused("does not say for which model it was trained", run, study, world, gate=gate)


def test_a_model_with_head_0_has_the_rows_of_its_rules_and_of_its_compositions(
    study, world, complete_run, tmp_path
):
    model = make_model(tmp_path / "joint", head_ids=("preference", *RULES))
    score_P2R = np.random.default_rng(0).normal(size=(30, 2, 1 + len(RULES)))
    write_held_out_scores(model, held_out_scores(score_P2R))
    result = run(study, world, model=str(model))
    names = [row.name for row in result.rows]
    composed = ["head 0 alone", "head 0 + uniform", "head 0 + encore", "head 0 + best"]
    of_rules = [row.name for row in complete_run.rows if row.metadata.kind == "scheme"]
    assert names == [*(name for name in of_rules if name != "moe gate"), *composed]
    scores = score(open_reward_model(model, device="cpu"), result.out.parent, result.pairs).scores
    score_P2R = scores.score_P2R.astype(np.float64)
    np.testing.assert_array_equal(row_of(result, "head 0 alone").reward_P2, score_P2R[:, :, 0])
    uniform_P2 = score_P2R[:, :, 1:].mean(axis=2)
    np.testing.assert_allclose(row_of(result, "uniform").reward_P2, uniform_P2)
    assert "head 0 + uniform: " in "".join(result.table.notes)
    assert row_of(result, "head 0 + best").model_identity["name"] == "joint"
    # Another beta is another table; beta needs a head 0.
    assert run(study, world, model=str(model), beta=0.0).out != result.out
    assert_refused(r"--beta 1\.0: model model has no head 0", run, study, world, beta=1.0)
    settings = {"model": None, "reward_models": {"judge": world / "initial"}, "beta": "auto"}
    assert_refused("it composes a model's heads", run, study, world, **settings)


# --- tables of one study --------------------------------------------------------------------------


def test_a_second_table_leaves_the_first_as_it_is(study, world):
    judged = run(study, world, model=None, reward_models={"judge a": world / "initial"})
    options = {"gate": world / "gate", "results": (f"judge b={judged.results_path}",)}
    first = run(study, world, **options)
    first_files = {path.name: path.read_bytes() for path in first.out.iterdir()}
    second = run(study, world, **options)
    assert (second.num_computed, second.out, second.table) == (0, first.out, first.table)
    without_gate = run(study, world, results=options["results"])
    assert set(table_folders(study)) == {first.out, judged.out, without_gate.out}
    assert {path.name: path.read_bytes() for path in first.out.iterdir()} == first_files
    # A row that several tables share is compared once.
    [table] = compare_tables(read_studies([study]))
    names = [line.name for line in first.table.rows]
    assert sorted(row.name for row in table.rows) == sorted([*names, "judge a"])


def identity_of(result: BenchmarkRun) -> dict[str, Any]:
    """Return the identity that a table's folder records."""
    content = json.loads((result.out / EVALUATION_JSON).read_text(encoding="utf-8"))
    assert result.out.name == content["key"]
    return dict(content["identity"])


def test_every_ingredient_changes_a_tables_key(study, world, tmp_path):
    first = run(study, world)
    # Other ratings of the same rules and pairs, other rows of the same number and ids.
    ratings = write_ratings(study, tmp_path / "ratings.parquet", missing_share=0.5)
    rows = tmp_path / "rows.jsonl"
    rows.write_text((world / "rows.jsonl").read_text().replace("Question 3?", "Question 33?"))
    make_model(tmp_path / "model", seed=5)
    definition_path = tmp_path / "generic.toml"
    definition_path.write_text(GENERIC.replace('version = "1"', 'version = "2"'))
    for parts, change in {
        "benchmark.version": {"benchmark": str(definition_path)},
        "data_sha256": {"data": rows},
        "model.digest": {"model": str(tmp_path / "model")},
        "model.gate": {"gate": world / "gate"},
        "ratings.ratings_sha256": {"ratings": ratings},
        "config.rows.schemes": {"schemes": ("encore",)},
        "config.rows.taus": {"taus": (1.0,)},
        "config.rows.k": {"k": 2},
        "config.rows.seed": {"seed": 1},
        "config.rows.num_random": {"num_random": 11},
        "config.paper": {"paper": "none"},
        "config.truncation": {"truncation": "rewardbench"},
    }.items():
        changed = run(study, world, **change)
        assert differing_parts(identity_of(first), identity_of(changed)) == {parts}, change
    # The key holds the content of reward models and of files of results, not their paths.
    make_model(tmp_path / "other" / "initial", head_ids=("reward",), seed=2)
    folders = (world / "initial", tmp_path / "other" / "initial")
    run_1, run_2 = (run(study, world, model=None, reward_models={"a": path}) for path in folders)
    assert differing_parts(identity_of(run_1), identity_of(run_2)) == {"reward_models.a.digest"}
    files = (f"b={run_1.results_path}", f"b={run_2.results_path}", f"c={run_1.results_path}")
    of_b, of_another, of_c = (identity_of(run(study, world, results=(file,))) for file in files)
    assert differing_parts(of_b, of_another) == differing_parts(of_b, of_c) == {"results"}


def test_pairs_that_training_may_have_used_are_counted(study, world, complete_run):
    trained = tuple(iter_pairs(open_study(study)))[:2]
    mixed = dataclasses.replace(complete_run.pairs, pairs=(*trained, *complete_run.pairs.pairs[2:]))
    learnt = [complete_run.pairs.pairs[-1].pair_id]
    for num, pairs, ids in ((2, mixed, ()), (3, mixed, learnt), (1, complete_run.pairs, learnt)):
        [note] = overlap_notes(open_study(study), pairs, label_pair_ids=ids)
        assert note.startswith(f"{num} of the 20 pairs are in the training study or its ratings")
    assert overlap_notes(open_study(study), complete_run.pairs) == ()
    # A table with Bradley-Terry weights over its own training pairs has the note.
    texts = {"chosen": trained[0].chosen, "rejected": trained[0].rejected, "subset": "refuse"}
    row = {"prompt": trained[0].prompt[0].content, **texts}
    data = write_lines(world / "seen.jsonl", [row])
    result = run(study, world, data=data, schemes=("bradley-terry",))
    assert any(note.startswith("1 of the 1 pairs are in") for note in result.table.notes)


# --- marks and refusals ---------------------------------------------------------------------------


def test_a_synthetic_benchmark_marks_its_table(study, world, tmp_path):
    definition_path = tmp_path / "synthetic.toml"
    definition_path.write_text(GENERIC.replace('name = "generic"', 'name = "synthetic-safety"'))
    models = {"model": None, "reward_models": {"initial model": world / "initial"}}
    result = run(study, world, benchmark=str(definition_path), **models)
    assert "benchmark synthetic-safety" in result.table.synthetic
    assert "example, not as evidence" in result.markdown_path.read_text(encoding="utf-8")


def test_a_table_without_the_initial_model_has_a_note(complete_run):
    row = row_of(complete_run, "initial model")
    assert not any("no row for the initial model" in note for note in complete_run.table.notes)

    def model(backbone: str | None, revision: str | None = None) -> ScoredModel:
        counts = {"folder": Path(), "scores": None, "num_cut_pairs": 0, "num_computed": 0}
        texts = {"name": "model", "notes": (), "synthetic": (), "computed_with": None}
        identity = {"revision": revision}
        return ScoredModel(**counts, **texts, model_identity=identity, backbone=backbone, row=row)

    # The initial model is recognised by its revision, or by the name of its row.
    unrelated, same = model(None, "sha256:b"), model(None, "sha256:a")
    assert len(missing_initial_notes(model("sha256:a"), [unrelated], ())) == 1
    assert missing_initial_notes(model("sha256:a"), [unrelated, same], ()) == ()
    assert missing_initial_notes(model("sha256:a"), [unrelated], [row]) == ()
    assert len(missing_initial_notes(model(None), [unrelated], ())) == 1


def test_wrong_input_is_refused_before_a_model_is_opened(study, world, tmp_path):
    reward_models = {"initial": "x"}
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("not a file of benchmark results", {"results": (str(tmp_path / "missing.parquet"),)}),
        ("no-ratings", {"ratings": tmp_path / "no-ratings"}),
        ("no model to benchmark", {"model": None}),
        ("give it as --model", {"model": None, "reward_models": reward_models, "gate": tmp_path}),
    ]
    for message, options in wrong:
        with pytest.raises(InputError, match=message):
            run(study, world, **{"model": str(tmp_path / "no-model"), **options})
    ratings = write_ratings(study, tmp_path / "other.parquet", rules=("be-loud", "be-late"))
    with pytest.raises(InputError, match="be-late, be-loud among the weights but no head"):
        run(study, world, ratings=ratings)
    assert not list((study / "benchmarks").glob("*/shard-*.parquet"))


def test_every_row_says_what_it_was_computed_with(study, world):
    """Compare a first call, one that computes nothing, and a table from a file of results."""
    models = {"reward_models": {"initial": world / "initial"}, "max_length": 64}
    first = run(study, world, **models)
    files = (str(first.results_path),)
    from_file = run(study, world, model=None, ratings=None, results=files)
    for done in (first, run(study, world, **models), from_file):
        for line in done.table.rows_with_figures:
            computed_with = line.our_figures.computed_with
            assert (computed_with.max_length, computed_with.dtype) == (64, "float32")
            assert computed_with.versions["torch"] == torch.__version__
        [note] = [note for note in table_notes(done.table) if "computed with" in note]
        assert note.startswith("rows computed with at most 64 tokens, float32, attention encore-")
