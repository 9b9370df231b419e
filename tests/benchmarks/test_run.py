"""A whole benchmark run: the table equals what its parts give, and says what one must know."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encore.benchmarks.scoring import encoded_pairs
from encore.benchmarks.stored_tables import read_tables

from encore.benchmarks.benchmark_config import BenchmarkConfig, PairsConfig, RowsConfig
from encore.benchmarks.compare import compare_tables, compare_two, read_studies
from encore.benchmarks.models import ScoredModel
from encore.benchmarks.pairs import read_benchmark_pairs
from encore.benchmarks.rows import TableRow
from encore.benchmarks.run import (
    BenchmarkRun,
    initial_notes,
    run_benchmark,
    synthetic_training,
)
from encore.data.ingestion import ingest
from encore.data.pairs import iter_pairs
from encore.data.study import open_study
from encore.errors import InputError
from encore.export import export_model
from encore.model.opening import open_reward_model
from encore.model_files import folder_digest
from encore.reporting import SILENT, Reporter, SilentReporter
from encore.training.gate import RESULT_FILE, GateConfig
from encore.training.gating_network import fit_gate, save_gate
from tests.benchmarks.table_world import compared_rows, jsonl_rows, write_jsonl
from tests.scoring.models import make_model, score_pairs
from tests.training.studies import RULES, make_study, write_ratings
from tests.weighting.evidence_for_tests import evidence_of_margins

NUM_PAIRS = 20
HIDDEN_SIZE = 32
ROWS = {"schemes": ("encore", "random"), "taus": (2.0,), "num_random": 10}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_study(folder / "study", num_pairs=12)
    write_ratings(folder / "study", folder / "ratings.parquet")
    make_model(folder / "model")
    make_model(folder / "initial", head_ids=("reward",), seed=1)
    write_jsonl(folder / "rows.jsonl", jsonl_rows(NUM_PAIRS, subsets=("refuse", "respond")))
    save_gate(folder / "gate", small_gate())
    return folder


def small_gate(num_inputs: int = HIDDEN_SIZE, head_ids: tuple[str, ...] = RULES):
    rng = np.random.default_rng(0)
    prompt_PD, chosen_PR, rejected_PR = (
        rng.normal(size=(16, width)).astype(np.float32)
        for width in (num_inputs, len(head_ids), len(head_ids))
    )
    config = GateConfig(hidden_size=8, num_hidden_layers=1, num_steps=3, temperature=1.0)
    return fit_gate(prompt_PD, chosen_PR, rejected_PR, head_ids=head_ids, config=config)


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "study", tmp_path / "study"))


def run(study: Path, made: Path, *, reporter: Reporter = SILENT, **more: Any) -> BenchmarkRun:
    """A table of the made model, with other options where given; those of pairs and rows too."""
    pairs = {"benchmark": "generic", "data": made / "rows.jsonl"}
    usual = {"model": made / "model", "ratings": made / "ratings.parquet", "device": "cpu"}
    given = {name: str(one) if name == "model" and one else one for name, one in more.items()}
    named = given.pop("reward_models", {})
    results = given.pop("results", ())
    nested = {
        name: type(field.default)(**base | {one: given.pop(one) for one in fields if one in given})
        for name, base, field, fields in (
            ("pairs", pairs, BenchmarkConfig.model_fields["pairs"], PairsConfig.model_fields),
            ("rows", ROWS, BenchmarkConfig.model_fields["rows"], RowsConfig.model_fields),
        )
    }
    config = BenchmarkConfig(
        **{**usual, "model": str(made / "model"), **nested, **given},
        reward_models=tuple(f"{name}={model}" for name, model in named.items()),
        results=tuple(f"{name}={path}" if name else str(path) for name, path in results),
    )
    return run_benchmark(open_study(study), config, reporter=reporter)


def names(found: BenchmarkRun) -> list[str]:
    return [line.name for line in found.table.lines]


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkRun:
    """Every scheme asked for, a gate and the untouched initial model: what most tests look at."""
    study = Path(shutil.copytree(made / "study", tmp_path_factory.mktemp("whole") / "study"))
    return run(study, made, reward_models=initial_of(made), gate=made / "gate")


def initial_of(made: Path) -> dict[str, Path]:
    """The initial model by the name of its row."""
    return {"initial model": made / "initial"}


def row_of(found: BenchmarkRun, name: str) -> TableRow:
    return next(line.row for line in found.table.lines if line.row and line.name == name)


def test_the_rows_are_those_of_the_head_scores(whole, made):
    pairs = read_benchmark_pairs(whole.table.pairs.benchmark, data=made / "rows.jsonl")
    ratings = made / "ratings.parquet"
    expected = compared_rows(whole.heads.scores, pairs, ratings=ratings, **ROWS)
    assert names(whole) == [*(row.name for row in expected), "moe gate", "initial model"]
    for row in expected:
        found = row_of(whole, row.name)
        assert (found.score, found.comparison) == (row.score, row.comparison)
    assert whole.num_computed == 2 * NUM_PAIRS


def test_a_reward_model_is_a_row_of_its_own_scores(whole, made):
    opened = open_reward_model(made / "initial", device="cpu")
    score_P2R = score_pairs(opened, whole.table.pairs.pairs)
    row = row_of(whole, "initial model")
    margin_P = score_P2R[:, 0, 0] - score_P2R[:, 1, 0]
    assert row.score.headline.score == pytest.approx((margin_P > 0).mean())
    assert row.comparison is not None  # with uniform weights of the other model


def test_a_gate_weighs_the_heads_anew_for_each_prompt(whole, made):
    row, behind = row_of(whole, "moe gate"), whole.models["moe gate"]
    assert behind.gate is not None
    assert whole.models["uniform"] == dataclasses.replace(behind, gate=None)
    gate, opened = small_gate(), open_reward_model(made / "model", device="cpu")
    encoded = opened.tokenizer.encode_pairs(whole.table.pairs.pairs)
    expected_P2 = []
    for pair, score_2R in zip(encoded, whole.heads.scores.score_P2R, strict=True):
        prompt_D = state_at_the_end(opened, pair.chosen.token_ids[: pair.chosen.num_prompt])
        expected_P2.append(score_2R @ gate.weights(prompt_D[None])[0])
    np.testing.assert_allclose(row.reward_P2, np.array(expected_P2), atol=1e-4)
    assert (row.method, row.kind) == ("moe", "scheme")


def state_at_the_end(opened: Any, token_ids: np.ndarray) -> np.ndarray:
    """The trunk's last state of one sequence by itself."""
    from encore.model.scoring import computed_batches

    class Embed:
        def __call__(self, microbatch: Any) -> Any:
            return opened.model.embed(microbatch)

    [batch] = computed_batches(
        opened.model,
        [token_ids],
        compute=Embed(),
        pad_token_id=opened.tokenizer.pad_token_id,
        tokens_per_microbatch=None,
        layout="single",
    )
    return np.asarray(batch.value_NX[0])


COMMITS = {"main": "a" * 40, "v2": "b" * 40}


@pytest.fixture
def on_the_hub(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A reward model with two revisions, where the hub's client keeps what it fetched."""
    cache = tmp_path / "cache" / "models--team--model"
    (cache / "refs").mkdir(parents=True)
    for seed, (branch, commit) in enumerate(COMMITS.items(), start=5):
        model = make_model(tmp_path / branch, head_ids=("reward",), seed=seed)
        opened = open_reward_model(model, device="cpu", dtype="float32")
        export_model(opened, out=cache / "snapshots" / commit)
        (cache / "refs" / branch).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return "team/model"


def test_each_row_s_reward_model_has_a_revision_of_its_own(study, made, on_the_hub):
    rows = {"newest": on_the_hub, "pinned": on_the_hub}
    revisions = {"pinned": "v2"}
    found = run(study, made, model=None, reward_models=rows, row_revisions=revisions)
    revisions = {name: behind.revision for name, behind in found.models.items()}
    assert revisions == {"newest": COMMITS["main"], "pinned": COMMITS["v2"]}
    of_main, of_v2 = (line.row.reward_P2 for line in found.table.lines)
    assert abs(of_main - of_v2).max() > 0.01  # other weights, other scores


def test_the_exported_model_of_a_scheme_is_the_scheme_s_row(study, made, whole, tmp_path):
    """Weighing scores of the heads, and scoring with the one head they were folded into."""
    row = row_of(whole, "encore (τ 2)")
    weights = dict(zip(row.vector.rule_ids, row.vector.weights, strict=True))
    export_model(
        open_reward_model(made / "model", device="cpu"), out=tmp_path / "folded", weights=weights
    )
    found = run(study, made, model=None, reward_models={"folded": tmp_path / "folded"})
    folded = row_of(found, "folded")
    np.testing.assert_allclose(folded.reward_P2, row.reward_P2, atol=1e-5)
    assert folded.credit_P.tolist() == row.credit_P.tolist()
    assert folded.score == row.score


def test_a_gate_of_another_model_is_refused(study, made, tmp_path):
    save_gate(tmp_path / "heads", small_gate(head_ids=("a", "b")))
    with pytest.raises(InputError, match="it weighs 2 heads"):
        run(study, made, gate=tmp_path / "heads")
    save_gate(tmp_path / "width", small_gate(num_inputs=7))
    with pytest.raises(InputError, match=r"reads states of 7 numbers, .* have 32"):
        run(study, made, gate=tmp_path / "width")
    # Heads of the same names and a trunk of the same width are no proof.
    gate = Path(shutil.copytree(made / "gate", tmp_path / "gate"))
    about = {"model": "sha256:0", "synthetic": ["source made up"]}
    (gate / RESULT_FILE).write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(InputError, match="was trained for another model"):
        run(study, made, gate=gate)
    about["model"] = f"sha256:{folder_digest(made / 'model')}"
    (gate / RESULT_FILE).write_text(json.dumps(about), encoding="utf-8")
    found = run(study, made, gate=gate)
    assert "gate: source made up" in found.table.synthetic
    assert not any("nothing says that it was trained" in note for note in found.table.notes)


class Heard(SilentReporter):
    """Remembers how many units of each title were done."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        self.done[title] = done

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        assert count >= 0
        self.done[list(self.done)[-1]] += count


def test_a_second_smaller_evaluation_leaves_the_first_table_as_it_is(study, made):
    """W3. What is scored is not scored again, and a row that two tables share is compared once."""
    judged = run(study, made, model=None, reward_models={"judge a": made / "initial"})
    both = {"gate": made / "gate", "results": [("judge b", judged.results_path)]}
    heard = Heard()
    first = run(study, made, **both, reporter=heard)
    assert set(heard.done) == {"model", "model, prompts of the gate"}
    assert heard.done["model, prompts of the gate"] == NUM_PAIRS
    whole = {path.name: path.read_bytes() for path in first.out.iterdir()}
    again = run(study, made, **both)
    assert (again.num_computed, again.out) == (0, first.out)
    assert again.table.as_dict() == first.table.as_dict()
    changes: list[dict[str, Any]] = [
        {"results": both["results"]},  # no gate
        {"gate": both["gate"]},  # no judge
        {**both, "schemes": ("encore",)},
    ]
    folders = {run(study, made, **change).out for change in changes}
    assert len({first.out, judged.out} | folders) == 2 + len(changes)
    assert {path.name: path.read_bytes() for path in first.out.iterdir()} == whole
    tables = read_tables(study)
    assert {table.folder for table in tables} == {first.out, judged.out} | folders
    [found] = compare_tables(read_studies([study]))
    assert sorted(one.row.name for one in found.rows) == sorted([*names(first), "judge a"])
    assert compare_two(tables, "encore (τ 2)", "uniform").comparison.num_pairs == NUM_PAIRS


def rows_of_study(study: Path, count: int) -> list[dict[str, str]]:
    """Benchmark rows that are pairs of the training study."""
    return [
        {
            "id": f"trained-{place}",
            "subset": "refuse",
            "prompt": pair.prompt[0].content,
            "chosen": pair.chosen,
            "rejected": pair.rejected,
        }
        for place, pair in enumerate(list(iter_pairs(open_study(study)))[:count])
    ]


def test_pairs_whose_answers_were_seen_are_counted(study, made, whole, tmp_path):
    """In the training study, and among the pairs that Bradley–Terry weights learnt from."""
    rows = [*jsonl_rows(3, subsets=("refuse",)), *rows_of_study(study, 2)]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    ratings = write_ratings(study, tmp_path / "all.parquet", missing_share=0)
    found = run(study, made, data=data, ratings=ratings, schemes=("bradley-terry",))
    learnt = "2 of the 5 pairs are among the rated ones that bradley-terry weights learnt from"
    assert any(note.startswith(learnt) for note in found.table.notes)
    trained = "2 of the 5 pairs are in the training study too"
    assert any(note.startswith(trained) for note in found.table.notes)
    assert not any("in the training study" in note for note in whole.table.notes)


def test_pairs_that_were_cut_are_counted_as_not_comparable(study, made, whole):
    """W2: the rewardbench tool cuts such texts otherwise; an option cuts as it does."""
    models = {"reward_models": {"initial": made / "initial"}}
    found = run(study, made, max_length=16, **models)
    noted = [note for note in found.table.notes if "are longer than 16 tokens and lost" in note]
    assert len(noted) == 2  # of each model
    assert all("do not compare with its results" in note for note in noted)
    rows = found.table.as_dict()["rows"]
    assert {row["ours"]["num_cut_pairs"] for row in rows} == {NUM_PAIRS}
    as_it = run(study, made, max_length=16, truncation="rewardbench", **models)
    assert any("cut as the rewardbench tool cuts" in note for note in as_it.table.notes)
    ours, theirs = (one.table.lines[-1].row.reward_P2 for one in (found, as_it))
    assert abs(ours - theirs).max() > 1e-3  # without the first token it is another text
    # The tool's own cut: the last 16 tokens of the whole, whichever they are.
    opened = open_reward_model(made / "initial", device="cpu")
    short = open_reward_model(made / "initial", device="cpu", max_length=16)
    for uncut, cut in zip(
        opened.tokenizer.encode_pairs(found.table.pairs.pairs),
        encoded_pairs(short, found.table.pairs.pairs, truncation="rewardbench"),
        strict=True,
    ):
        assert cut.chosen.token_ids.tolist() == uncut.chosen.token_ids[-16:].tolist()
        assert cut.chosen.num_cut == len(uncut.chosen.token_ids) - 16
    assert not any("num_cut_pairs" in row["ours"] for row in whole.table.as_dict()["rows"])


def test_a_synthetic_benchmark_is_marked(study, made, tmp_path):
    definition = tmp_path / "mine.toml"
    definition.write_text(
        'name = "synthetic-safety"\nversion = "1"\ntitle = "Made up"\ncitation = "none"\n'
        'headline = "Safety"\nlicence = "Apache-2.0"\n'
    )
    found = run(study, made, model=None, reward_models=initial_of(made), benchmark=str(definition))
    assert "benchmark synthetic-safety" in found.table.synthetic
    assert "example, not as evidence" in found.markdown_path.read_text(encoding="utf-8")


def test_without_a_model_with_heads_no_rating_is_read(study, made):
    found = run(
        study, made, model=None, reward_models={"initial": made / "initial"}, ratings=Path("no")
    )
    assert names(found) == ["initial"]
    assert found.table.reference == "initial"


def test_ratings_of_another_study_bring_their_own_marks(study, tmp_path):
    made_up = tmp_path / "made-up"
    source = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    ingest([f"synthetic-pairs={source}"], out=made_up)
    evidence = evidence_of_margins(np.zeros((2, 1)))
    elsewhere = dataclasses.replace(evidence, study=open_study(made_up))
    assert synthetic_training(elsewhere, study=None) == ("training source synthetic-pairs",)
    # A file of ratings is of no study: what the named one holds is not its.
    assert synthetic_training(evidence, study=None) == ()
    assert synthetic_training(evidence, study=open_study(study)) == ()


def test_a_table_without_the_untouched_initial_model_says_so(whole):
    row, behind = row_of(whole, "initial model"), whole.models["initial model"]
    missing = "no row is the untouched initial model that model was trained from"
    assert not any(note.startswith(missing) for note in whole.table.notes)
    heads = ScoredModel(scored=whole.heads, rows=(), synthetic=(), behind=behind)
    [note] = initial_notes(heads, (), ())
    assert note.startswith(missing)
    # Where the backbone is recorded, content says which model is initial, whatever its row's name.
    heads = dataclasses.replace(heads, backbone="sha256:a")
    other, same = (
        dataclasses.replace(
            heads, rows=(row,), behind=dataclasses.replace(behind, revision=revision)
        )
        for revision in ("sha256:b", "sha256:a")
    )
    assert len(list(initial_notes(heads, [other], ()))) == 1
    assert list(initial_notes(heads, [other, same], ())) == []
    assert list(initial_notes(heads, (), [row])) == []  # of a file only the name is known


def test_what_needs_no_model_is_refused_before_any_is_opened(study, made, tmp_path):
    nowhere: dict[str, Any] = {"model": tmp_path / "no-model"}
    with pytest.raises(InputError, match="no results of a benchmark"):
        run(study, made, **nowhere, results=[(None, tmp_path / "missing.parquet")])
    with pytest.raises(InputError, match=r"row 'uniform': the model's own rows are called like"):
        run(study, made, **nowhere, reward_models={"uniform": tmp_path / "no-model"})
    first = run(study, made, model=None, reward_models={"initial": made / "initial"})
    stored = [(None, first.results_path)]
    with pytest.raises(InputError, match=r"row 'initial' is there more than once"):
        run(study, made, **nowhere, reward_models={"initial": "x"}, results=stored)
    unread = {"initail": "v2"}
    with pytest.raises(InputError, match=r"revision 'v2' of row 'initail': .*expected one of init"):
        run(study, made, **nowhere, reward_models={"initial": "x"}, row_revisions=unread)
    with pytest.raises(InputError, match="no-ratings"):
        run(study, made, **nowhere, ratings=tmp_path / "no-ratings")


def test_rules_that_are_not_the_heads_are_refused_before_anything_is_scored(study, made, tmp_path):
    ratings = write_ratings(study, tmp_path / "other.parquet", rules=("be-loud", "be-late"))
    with pytest.raises(InputError, match="be-late, be-loud among the weights but no head"):
        run(study, made, ratings=ratings)
    assert not list((study / "benchmarks").glob("*/*.parquet"))
