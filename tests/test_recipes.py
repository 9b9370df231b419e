"""Recipes as data, what is finished of one, the demo's benchmark: no orchestrator needed."""

from __future__ import annotations

import gzip
import json
import random
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from encore.benchmarks.definition import load_benchmark
from encore.benchmarks.pairs import BenchmarkPairs, read_benchmark_pairs
from encore.benchmarks.paper_tables import BENCHMARK, paper_row
from encore.config import JudgeConfig
from encore.data.rules import load_rule_set
from encore.data.sources.locate import locate
from encore.data.study import create_study
from encore.demo.benchmark import benchmark_data_path, benchmark_path
from encore.demo.make_benchmark import PAIRS_PER_SUBSET, SUBSETS, render_benchmark
from encore.demo.make_data import SEED, demo_pairs, hh_record, pku_record
from encore.errors import EncoreError, InputError
from encore.model.config import BackboneConfig
from encore.recipes.changes import JudgeChanges, changed
from encore.recipes.checks import check_names, check_within_reach
from encore.recipes.inputs import backbone_inputs, data_digests, ingest_inputs
from encore.recipes.needs import (
    Machine,
    refuse_judge_too_large,
    refuse_training_too_large,
    this_machine,
)
from encore.recipes.recipe import Recipe, RowModel, TablePlan, Weighing
from encore.recipes.shipped import RECIPE_NAMES, SHAPE_OF, SKYWORK, demo, load_recipe
from encore.recipes.stages import StageBook, StageResult
from encore.synthetic import SYNTHETIC_LABEL
from encore.training.config import TrainingConfig
from encore.training.plan import PlanTrainConfig, plan_training
from tests.model.test_whole_classifier import make_classifier

PAPERS = [name for name in RECIPE_NAMES if name != "demo"]

# --- the shipped recipes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_a_recipe_names_nothing_that_does_not_exist(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert load_rule_set(recipe.rating.rules).rules
    assert [one for source in recipe.sources for one in locate(source)]
    assert load_benchmark(recipe.table.benchmark).num_pairs
    # As a flow's parameter it goes through JSON.
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize("name", PAPERS)
def test_a_recipe_of_the_paper_trains_as_the_paper_says(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.training.epochs, recipe.training.learning_rate) == (1, 2e-5)
    assert recipe.table.benchmark == BENCHMARK
    assert (recipe.weighing.tau, recipe.weighing.k) == (2.0, 5)


@pytest.mark.parametrize("name", PAPERS)
def test_every_table_of_trained_models_has_the_untouched_one_beside_them(name: str) -> None:
    recipe = load_recipe(name)
    [initial] = [row for row in recipe.rows if row.training is None]
    assert initial.backbone.model == recipe.backbone.model


@pytest.mark.parametrize(
    ("name", "table"),
    [("hh_pku_encore_10", "main"), ("fsfairx", "fsfairx"), ("top_5", "selection")],
)
def test_the_trained_rows_are_methods_of_the_papers_table(name: str, table: Any) -> None:
    trained = {row.name: row for row in load_recipe(name).rows if row.training is not None}
    assert len(trained) == 2
    for method in trained:
        assert paper_row(table, method).kind == "model"
    # "+ Skywork", "+ FsfairX": from the reward model with its own head; else from the plain one.
    initialised = trained["bradley-terry-model-initialised"]
    assert initialised.training is not None
    assert initialised.training.head_init == "own"
    assert initialised.backbone == load_recipe(name).backbone
    assert trained["bradley-terry-model"].backbone.model.endswith("Instruct")


def test_recipes_that_share_ratings_and_training_say_the_same() -> None:
    main = load_recipe("hh_pku_encore_10")
    for name in ("fsfairx", "top_5", "probe"):
        assert load_recipe(name).rating == main.rating
        assert load_recipe(name).sources == main.sources
    assert load_recipe("top_5").training == main.training
    assert load_recipe("top_5").rows == main.rows


def test_no_figure_of_the_paper_stands_beside_what_it_did_not_train() -> None:
    for name in ("hh_full_8b_10", "hh_full_8b_20", "demo"):
        assert load_recipe(name).table.paper == "none"


def test_an_unknown_recipe_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="recipe 'best': expected one of hh_pku_encore_10, fsfair"):
        load_recipe("best")


def test_a_recipe_that_does_not_fit_together_is_refused() -> None:
    recipe = demo()
    ranking = TrainingConfig(objective="bradley-terry")
    with pytest.raises(ValidationError, match="expected multi-head"):
        Recipe.model_validate({**dict(recipe), "training": ranking})
    with pytest.raises(ValidationError, match="'bradley-terry-model' is there more than once"):
        Recipe.model_validate({**dict(recipe), "rows": (*recipe.rows, *recipe.rows)})
    with pytest.raises(ValidationError, match="a row of its own has one head"):
        RowModel(name="a", backbone=recipe.backbone, training=TrainingConfig())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_length": 512}, "max_length 512"),
        ({"dtype": "bfloat16", "pooling": "mean"}, "dtype 'bfloat16', pooling 'mean'"),
        ({"chat_template": "mine.jinja"}, "chat_template 'mine.jinja'"),
        ({"init": "random"}, "init 'random'"),
        ({"trust_remote_code": True}, "trust_remote_code True"),
    ],
)
def test_an_untouched_row_refuses_settings_that_nothing_reads(
    settings: dict[str, Any], says: str
) -> None:
    backbone = BackboneConfig.model_validate({"model": "team/model", "revision": "v2", **settings})
    with pytest.raises(ValidationError, match=f"row 'a': its backbone says {says}, and a reward"):
        RowModel(name="a", backbone=backbone)
    preferences = TrainingConfig(objective="bradley-terry")
    assert RowModel(name="a", backbone=backbone, training=preferences).backbone == backbone
    pinned = BackboneConfig(model="team/model", revision="v2")
    assert RowModel(name="a", backbone=pinned).backbone.revision == "v2"


# --- changes for a machine or a pilot -------------------------------------------------------------


def test_a_change_leaves_everything_else(tmp_path: Path) -> None:
    recipe = load_recipe("hh_pku_encore_10")
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    changes = JudgeChanges(model="./llama", engine_args={"tensor_parallel_size": 4}, limit=200)

    found = changed(recipe, changes, benchmark_data=rows)

    assert found.rating.judge == JudgeConfig(
        model="./llama", engine_args={"tensor_parallel_size": 4}
    )
    assert (found.limit, found.table.data) == (200, rows)
    same = {"name", "rating", "table"}
    assert found.model_dump(exclude=same) == recipe.model_dump(exclude=same)
    assert found.rating.rules == recipe.rating.rules
    assert changed(recipe, JudgeChanges()) == recipe


def test_a_pilot_has_a_table_and_an_export_of_its_own() -> None:
    recipe = load_recipe("hh_pku_encore_10")
    small, smaller = (changed(recipe, JudgeChanges(limit=limit)) for limit in (200, 100))
    # Folders of records, table and export are called after the recipe.
    assert small.name == "hh_pku_encore_10_pilot_200"
    assert len({recipe.name, small.name, smaller.name}) == 3


def test_rows_of_a_benchmark_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--benchmark-data .*nowhere"):
        changed(demo(), JudgeChanges(), benchmark_data=tmp_path / "nowhere")


# --- what is finished -----------------------------------------------------------------------------


class Worker:
    """Writes a file, and counts how often."""

    def __init__(self, study: Path, name: str = "out.txt", text: str = "done") -> None:
        self.path = study / name
        self.text = text
        self.num_calls = 0

    def __call__(self) -> StageResult:
        self.num_calls += 1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text)
        return StageResult(outputs=(self.path,), facts={"where": "there"})


def new_book(study: Path, **hooks: Any) -> StageBook:
    return StageBook(study=create_study(study).path, recipe="mine", **hooks)


def test_a_finished_stage_is_not_done_again(tmp_path: Path) -> None:
    work = Worker(tmp_path)
    first = new_book(tmp_path).once("train", inputs={"tau": 2.0}, work=work)
    book = new_book(tmp_path)  # as another process would
    assert book.once("train", inputs={"tau": 2.0}, work=work) == first
    assert work.num_calls == 1
    assert (book.done_now, book.done_before) == ([], ["train"])
    assert first.facts == {"where": "there"}


def test_another_input_makes_a_stage_due(tmp_path: Path) -> None:
    work = Worker(tmp_path)
    new_book(tmp_path).once("train", inputs={"tau": 2.0}, work=work)
    new_book(tmp_path).once("train", inputs={"tau": 1.0}, work=work)
    assert work.num_calls == 2


@pytest.mark.parametrize("damage", ["lost", "changed", "cut short", "record", "half a record"])
def test_damage_makes_a_stage_due(tmp_path: Path, damage: str) -> None:
    work = Worker(tmp_path)
    book = new_book(tmp_path)
    book.once("train", inputs={}, work=work)
    record = book.record_path("train")
    match damage:
        case "lost":
            work.path.unlink()
        case "changed":
            work.path.write_text("dome")  # of the same length
        case "cut short":
            work.path.write_text("don")
        case "record":
            record.unlink()
        case "half a record":
            record.write_bytes(record.read_bytes()[:40])
    new_book(tmp_path).once("train", inputs={}, work=work)
    assert work.num_calls == 2


def test_what_is_damaged_is_gone_before_the_work_could_take_it_for_its_own(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    found: list[list[str]] = []

    def work() -> StageResult:
        found.append([path.name for path in (good, bad) if path.exists()])
        for path in (good, bad):  # as training does: what is there with the right length stays
            if not path.exists():
                path.write_text("done")
        return StageResult(outputs=(good, bad))

    new_book(tmp_path).once("train", inputs={}, work=work)
    bad.write_text("dome")
    new_book(tmp_path).once("train", inputs={}, work=work)
    assert found == [[], ["good.txt"]]
    assert bad.read_text() == "done"


def test_of_one_thing_nothing_is_kept_without_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def work() -> StageResult:
        assert not folder.exists()  # a model's folder without its model is nobody's
        folder.mkdir()
        for name in ("config.json", "weights"):
            (folder / name).write_text(name)
        return StageResult(outputs=(folder,))

    for _ in range(2):
        new_book(tmp_path).once("train", inputs={}, work=work, is_one=True)
        (folder / "config.json").unlink()


def test_another_input_removes_nothing(tmp_path: Path) -> None:
    work = Worker(tmp_path)
    new_book(tmp_path).once("train", inputs={"tau": 2.0}, work=work)
    work.path.write_text("edited")  # perhaps another stage's by now

    def looks() -> StageResult:
        assert work.path.read_text() == "edited"
        return work()

    new_book(tmp_path).once("train", inputs={"tau": 1.0}, work=looks)


def test_a_second_process_waits_for_a_stage_and_does_not_repeat_it(tmp_path: Path) -> None:
    work = Worker(tmp_path)
    waits, is_working = threading.Event(), threading.Event()

    def slow() -> StageResult:
        is_working.set()
        assert waits.wait(60)  # until the second one is told that it has to
        return work()

    first = new_book(tmp_path)
    second = new_book(tmp_path, on_wait=lambda _stage: waits.set())
    with ThreadPoolExecutor() as pool:  # a lock is an open file's: threads conflict as processes do
        one = pool.submit(first.once, "train", inputs={}, work=slow)
        assert is_working.wait(60)
        other = pool.submit(second.once, "train", inputs={}, work=work)
        assert one.result(60) == other.result(60)
    assert (first.done_now, second.done_now, second.done_before) == (["train"], [], ["train"])
    assert work.num_calls == 1


def test_a_stage_makes_nothing_in_a_place_that_is_no_study(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    book = StageBook(study=tmp_path, recipe="mine")
    with pytest.raises(InputError, match="a directory with other things in it"):
        book.once("ingest", inputs={}, work=Worker(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_work_that_fails_leaves_no_record(tmp_path: Path) -> None:
    def fails() -> StageResult:
        raise OSError("the disk went away")

    book = new_book(tmp_path)
    with pytest.raises(OSError, match="went away"):
        book.once("train", inputs={}, work=fails)
    assert book.recorded("train") is None
    assert book.done_now == []


def test_a_stage_that_wrote_nothing_is_no_finished_one(tmp_path: Path) -> None:
    with pytest.raises(EncoreError, match="stage train: it ended without a file"):
        new_book(tmp_path).once("train", inputs={}, work=lambda: StageResult(outputs=()))


def test_a_result_that_differs_stands_for_another_input_of_what_follows(tmp_path: Path) -> None:
    tokens = {
        new_book(tmp_path / name)
        .once("train", inputs={}, work=Worker(tmp_path / name, text=text))
        .token
        for name, text in (("a", "one"), ("b", "two"), ("c", "one"))
    }
    assert len(tokens) == 2  # a and c are the same, wherever they are


def test_every_file_of_a_folder_counts_and_no_lock(tmp_path: Path) -> None:
    book, folder = new_book(tmp_path), tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    for name in ("a.json", "inner/b.json", ".lock"):
        (folder / name).write_text(name)
    record = book.once("train", inputs={}, work=lambda: StageResult(outputs=(folder,)))
    assert list(record.files) == ["model/a.json", "model/inner/b.json"]


def test_a_study_that_moved_is_as_finished_as_before(tmp_path: Path) -> None:
    work = Worker(tmp_path / "here")
    new_book(tmp_path / "here").once("train", inputs={}, work=work)
    (tmp_path / "here").rename(tmp_path / "there")
    assert new_book(tmp_path / "there").finished("train", inputs={}) is not None


# --- what a machine must have ---------------------------------------------------------------------

_GIB = 1 << 30
LAPTOP = Machine(num_gpus=0, gpu_bytes=0, memory_bytes=16 * _GIB)
ONE_H100 = Machine(num_gpus=1, gpu_bytes=79 * _GIB, memory_bytes=128 * _GIB)
FOUR_H100 = Machine(num_gpus=4, gpu_bytes=79 * _GIB, memory_bytes=512 * _GIB)


def judge_of(name: str, **engine_args: int) -> JudgeConfig:
    changes = JudgeChanges(engine_args=engine_args)
    return changed(load_recipe(name), changes).rating.judge


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (LAPTOP, "no GPU and 16 GiB of memory; rate where they fit"),
        (ONE_H100, "1 GPU of 79 GiB, of which it would use 1; rate where they fit"),
        # 4 · 79 GiB would do, but a judge uses one GPU unless it is told otherwise.
        (FOUR_H100, "of which it would use 1; use them all: --engine-arg tensor_parallel_size=4"),
    ],
)
def test_a_judge_that_cannot_run_here_is_refused_with_what_to_do(
    machine: Machine, says: str
) -> None:
    # Llama 3 70B: 70.55 B weights in two bytes each = 141.1 GB = 131 GiB.
    with pytest.raises(InputError, match="its weights alone take 131 GiB") as caught:
        refuse_judge_too_large(judge_of("hh_pku_encore_10"), machine=machine)
    assert says in str(caught.value)


def test_a_judge_that_may_run_here_is_not_refused() -> None:
    spread = judge_of("hh_pku_encore_10", tensor_parallel_size=4)
    refuse_judge_too_large(spread, machine=FOUR_H100)
    refuse_judge_too_large(judge_of("hh_full_8b_20"), machine=ONE_H100)  # 15 GiB
    refuse_judge_too_large(load_recipe("demo").rating.judge, machine=LAPTOP)
    with pytest.raises(InputError, match="1 GPU of 79 GiB"):  # four are asked for, one is here
        refuse_judge_too_large(spread, machine=ONE_H100)


def test_a_training_that_cannot_fit_is_refused_unless_it_is_done() -> None:
    recipe = load_recipe("hh_pku_encore_10")
    # 7.50 B weights in two bytes, two averages of each in two more: 45 GB = 42 GiB.
    small = Machine(num_gpus=1, gpu_bytes=40 * _GIB, memory_bytes=128 * _GIB)
    with pytest.raises(InputError, match=r"stage train: .* takes at least 42 GiB of memory"):
        refuse_training_too_large(recipe, machine=small)
    rows = [row.stage for row in recipe.rows]
    refuse_training_too_large(recipe, machine=small, done=["train", *rows])
    refuse_training_too_large(load_recipe("probe"), machine=small)  # weights alone: 14 GiB
    refuse_training_too_large(recipe, machine=ONE_H100)
    refuse_training_too_large(load_recipe("demo"), machine=LAPTOP)
    with pytest.raises(InputError, match="no GPU and 16 GiB"):  # float32 on a CPU: 28 GiB
        refuse_training_too_large(load_recipe("probe"), machine=LAPTOP)


def test_gpus_are_asked_in_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("encore.recipes.needs._ASK_CUDA", "print(79 << 30)")
    machine = this_machine()
    assert (machine.num_gpus, machine.gpu_bytes) == (2, 79 * _GIB)
    assert machine.memory_bytes > _GIB
    assert machine.words == "2 GPUs of 79 GiB each"
    monkeypatch.setattr("encore.recipes.needs._ASK_CUDA", "raise RuntimeError('no driver')")
    with pytest.raises(EncoreError, match=r"GPUs do not answer .*no driver.*encore doctor"):
        this_machine()


# --- what it names --------------------------------------------------------------------------------


def test_what_the_demo_names_is_within_reach() -> None:
    check_names(demo())
    check_within_reach(demo())


def test_a_recipe_without_a_row_for_a_subset_is_refused_before_its_rating(tmp_path: Path) -> None:
    rows = gzip.decompress(benchmark_data_path().read_bytes()).splitlines(keepends=True)
    short = tmp_path / "short.jsonl"
    short.write_bytes(b"".join(rows[1:]))
    with pytest.raises(InputError, match="--benchmark-data"):  # 79 pairs of 80
        check_within_reach(changed(demo(), JudgeChanges(), benchmark_data=short))


def test_a_backbone_that_is_not_there_is_refused_before_its_rating(tmp_path: Path) -> None:
    row = (
        demo()
        .rows[0]
        .model_copy(update={"backbone": BackboneConfig(model=str(tmp_path / "nowhere"))})
    )
    with pytest.raises(EncoreError, match=r"nowhere.*no such folder"):
        check_within_reach(demo().model_copy(update={"rows": (row,)}))


def test_an_untouched_row_may_be_of_a_kind_that_cannot_be_trained_on(tmp_path: Path) -> None:
    backbone = BackboneConfig(model=str(make_classifier(tmp_path / "model", "distilbert")))
    untouched = RowModel(name="initial model", backbone=backbone)
    check_within_reach(demo().model_copy(update={"rows": (untouched,)}))
    trained = demo().rows[0].model_copy(update={"backbone": backbone})
    with pytest.raises(InputError, match="'distilbert' is not one ENCORE can train on"):
        check_within_reach(demo().model_copy(update={"rows": (untouched, trained)}))


def test_a_scheme_that_needs_a_rule_is_refused() -> None:
    with pytest.raises(ValidationError, match="'single' needs a rule, and a recipe names none"):
        Weighing(scheme="single")


# --- what the page says ---------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("recipes", "num_pairs", "method"),
    [
        (["hh_pku_encore_10", "fsfairx", "top_5"], 69_400, "full-stochastic"),
        (["hh_full_8b_10", "hh_full_8b_20"], 169_352, "full-stochastic"),
        (["probe"], 69_400, "probe"),
    ],
)
def test_the_pages_hours_and_memory_are_the_plans(
    recipes: list[str], num_pairs: int, method: str
) -> None:
    config = PlanTrainConfig(
        backbone=SHAPE_OF[SKYWORK], recipe=method, pairs=num_pairs, tokens_per_response=300
    )
    plan = plan_training(config)
    planned = plan["hours"][config.layout]["hours"]
    for name in recipes:
        num_trained = 1 + sum(row.training is not None for row in load_recipe(name).rows)
        [line] = [
            line for line in PAGE.splitlines() if line.startswith(f"| `{name}`") and "GiB" in line
        ]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert float(cells[2].split()[0].rstrip(";")) == pytest.approx(
            num_trained * planned, abs=0.05
        ), name
        assert cells[3].startswith(f"{plan['memory']['total_gib']:.1f} GiB"), name


def test_the_pages_python_runs_a_recipe_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Recipe, Path]] = []
    monkeypatch.setattr("flows.recipes.run_recipe", lambda *given: ran.append(given))
    [code] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(code, "docs/recipes.md", "exec"), {})  # noqa: S102 - what a reader is told to do
    [(recipe, study)] = ran
    assert (recipe.name, recipe.backbone.model, recipe.rows) == ("mine", "./my-llama", ())
    assert recipe.sources == load_recipe("probe").sources
    assert study == Path("study")


# --- what stages follow from ----------------------------------------------------------------------


def test_local_things_are_their_content_not_their_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "pairs.jsonl").write_text('{"prompt": "p"}\n')

    def both(make: Any) -> tuple[Any, Any]:
        return make(tmp_path / "a"), make(tmp_path / "b")

    def inputs(folder: Path) -> dict[str, Any]:
        source = f"mine={folder / 'pairs.jsonl'}"
        return ingest_inputs(demo().model_copy(update={"sources": (source,)}))

    same, also = both(inputs)
    assert same == also
    one, other = both(lambda folder: backbone_inputs(BackboneConfig(model=str(folder))))
    assert one == other
    (tmp_path / "b" / "pairs.jsonl").write_text('{"prompt": "q"}\n')
    (tmp_path / "b" / "config.json").write_text('{"a": 1}')
    assert inputs(tmp_path / "b") != same
    assert backbone_inputs(BackboneConfig(model=str(tmp_path / "b"))) != one
    assert data_digests(tmp_path / "a") != data_digests(tmp_path / "b")


def test_a_hub_model_is_its_name() -> None:
    assert backbone_inputs(BackboneConfig(model=SKYWORK))["model"] == SKYWORK


def test_the_papers_two_data_sets_are_pinned() -> None:
    sources = ingest_inputs(load_recipe("hh_pku_encore_10"))["sources"]
    assert [source["label"] for source in sources] == ["hh", "pku"]
    assert all(source["revision"] for source in sources)


# --- the demo's benchmark -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs() -> BenchmarkPairs:
    return read_benchmark_pairs(load_benchmark(benchmark_path()), data=benchmark_data_path())


def test_the_demos_benchmark_is_whole_and_says_that_it_is_synthetic(pairs: BenchmarkPairs) -> None:
    assert not pairs.is_partial
    assert pairs.notes == ()  # no pair twice, every row with an id
    assert pairs.num_pairs == 5 * PAIRS_PER_SUBSET == 80
    assert set(Counter(pairs.subset_P).values()) == {PAIRS_PER_SUBSET}
    for name in (pairs.benchmark.name, *pairs.subset_P):
        assert name.startswith(SYNTHETIC_LABEL)


def test_its_subsets_are_those_of_rewardbench_marked() -> None:
    real = [subset.name for subset in load_benchmark(BENCHMARK).subsets]
    assert [subset.name for subset in SUBSETS] == [f"{SYNTHETIC_LABEL}-{name}" for name in real]


def test_the_shipped_benchmark_is_what_the_script_writes() -> None:
    rendered = render_benchmark()
    assert rendered == render_benchmark()
    # Compared unpacked: zlib's builds compress the same text to different bytes.
    assert gzip.decompress(benchmark_data_path().read_bytes()) == gzip.decompress(rendered)


def test_no_response_of_the_benchmark_is_among_the_training_pairs(pairs: BenchmarkPairs) -> None:
    rng = random.Random(SEED)
    records = [hh_record(pair) for pair in demo_pairs(rng, multi_turn=True)]
    records += [pku_record(pair, rng) for pair in demo_pairs(rng, multi_turn=False)]
    trained_on = json.dumps(records)
    for pair in pairs.pairs:
        assert json.dumps(pair.chosen)[1:-1] not in trained_on
        assert json.dumps(pair.rejected)[1:-1] not in trained_on


def test_a_plan_without_a_benchmark_of_its_own_is_the_papers() -> None:
    assert TablePlan().benchmark == BENCHMARK
