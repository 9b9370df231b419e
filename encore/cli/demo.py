"""`encore demo`: the whole path on shipped synthetic pairs and a shipped small judge.

Settings are those of the recipe `demo` (`encore/recipes/demo.toml`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from encore.cli.demo_table import SYNTHETIC, compare_on_benchmark
from encore.cli.train import train_shown
from encore.config import IngestConfig, StageConfig, option
from encore.options import command
from encore.terminal import out, say, warn

if TYPE_CHECKING:
    from encore.export import Composition
    from encore.model.config import BackboneConfig
    from encore.model.opening import OpenedModel
    from encore.recipes.recipe import Recipe

Backend = Literal["vllm", "transformers"]


class DemoConfig(StageConfig):
    """Where the demo goes."""

    study: Path = option(
        Path("demo-study"),
        name="out",
        help="Where the study goes; an existing demo is continued.",
    )
    backend: Backend | None = option(
        None, help="The judge's engine; default: vLLM, transformers where it is missing."
    )


@command
def demo(config: DemoConfig) -> None:
    """From preference pairs to weights and a reward model on shipped synthetic data, offline.

    Ingests the synthetic pairs, has the small shipped judge rate every response under the paper's
    ten rules on a real vLLM engine, measures the rules, prints their table with the weights,
    trains a reward model with a head for every rule, scores every response with it and exports it
    for other tools. Then every row of the paper's tables on a synthetic benchmark, beside two
    Bradley–Terry models, a gate and the judge itself, and a report. Minutes on a CPU. Pairs,
    judge and therefore every figure are synthetic: they show how the tool works and say nothing
    about the paper's claim.
    """
    run_demo(config.study, backend=config.backend)


def run_demo(study: Path, *, backend: Backend | None) -> None:
    """Do all of it and print what came of it; what is done already is not done again.

    Args:
        study: Where the study goes; an existing demo is continued.
        backend: The judge's engine; None: vLLM where it is installed.
    """
    from encore.recipes.recipe import RecipeChanges, changed, load_recipe

    started = time.monotonic()
    recipe = changed(load_recipe("demo"), RecipeChanges(backend=backend or _available_backend()))
    say("ENCORE demo: everything in it is synthetic, made for this demo by a seeded script")
    _rate_and_weigh(study, recipe)
    say("a small reward model to start from, as the paper starts from a public one")
    initial = _initial_reward_model(study, backbone=recipe.backbone)
    say("training a reward model on these ratings: one head per rule")
    trained = train_shown(
        study,
        backbone=recipe.backbone.model_copy(update={"model": str(initial)}),
        training=recipe.training,
    )
    _score_and_export(study, run=trained.out)
    compare_on_benchmark(study, recipe=recipe, heads=trained.out, initial=initial)
    _report(study)
    say(f"done in {time.monotonic() - started:.0f} s; next:")
    for call, purpose in _next_steps(study):
        out.print(
            Text.assemble(f"  {_program()} {call}  ", (f"# {purpose}", "dim")), soft_wrap=True
        )


def _initial_reward_model(study: Path, *, backbone: BackboneConfig) -> Path:
    """The folder of a one-label classifier for plain transformers; made where it is not there yet.

    The paper starts from a reward model that others trained on preferences of their own. Here a
    head in closed form on the judge's untouched trunk learns from other synthetic pairs than the
    demo's.

    Args:
        study: The demo's. The model, and the study it learnt from, go to ``initial`` in it.
        backbone: The judge.
    """
    from encore.data.ingestion import ingest
    from encore.data.study import open_study
    from encore.demo import initial_pairs_path
    from encore.export import export_model
    from encore.model.opening import open_reward_model
    from encore.model_files import folder_digest
    from encore.recipes.finished import once
    from encore.training.config import TrainConfig, TrainingConfig
    from encore.training.train import train

    root, config = study / "initial", TrainingConfig(objective="bradley-terry", method="probe")
    folder, pairs = root / "initial-reward-model", initial_pairs_path()

    def work() -> list[Path]:
        ingest([f"synthetic-initial={pairs}"], out=root)
        asked = TrainConfig.of(root, backbone=backbone, training=config)
        trained = train(open_study(root), asked)
        opened = open_reward_model(trained.model_dir, device="cpu")
        return [export_model(opened, out=folder).folder]

    inputs = {
        "backbone": folder_digest(Path(backbone.model)),
        "training": config.model_dump(mode="json"),
        "pairs": hashlib.sha256(gzip.decompress(pairs.read_bytes())).hexdigest(),
    }
    record = study / "recipes" / "make-demo" / "initial-model.json"
    once(record, study=study, inputs=inputs, work=work, is_one=True)
    return folder


def _rate_and_weigh(study: Path, recipe: Recipe) -> None:
    from encore.cli.ingest import ingest_and_report, print_report
    from encore.cli.rate import rate_and_report
    from encore.cli.weight_tables import weights_tables
    from encore.weighting.scheme import SchemeOptions
    from encore.weighting.weigh import weigh_rules

    print_report(ingest_and_report(IngestConfig(sources=recipe.sources, out=study)))
    rate_and_report(study, recipe.rating)
    weighed = weigh_rules(study, scheme="encore", options=SchemeOptions())
    out.print(*weights_tables(weighed), sep="\n")
    out.print(Text(SYNTHETIC, "bold"))


def _score_and_export(study: Path, *, run: Path) -> None:
    """Score once, compose by arithmetic, and write what other tools load."""
    from encore.export.weights_input import scheme_weights
    from encore.model.opening import open_reward_model

    say("scoring every response once under all heads; composing them is arithmetic from here")
    opened = open_reward_model(run, device="cpu")
    composition = scheme_weights(study, head_ids=opened.model.head_ids, scheme="encore")
    _score_and_compose(study, opened, composition.weights)
    _export(study, opened, None)
    _export(study, opened, composition)


def _export(study: Path, opened: OpenedModel, composition: Composition | None) -> None:
    """All heads, or the heads folded by weights; once."""
    from encore.export import ExportAbout, export_model
    from encore.recipes.finished import once

    name = "heads" if composition is None else "composed"
    weights = None if composition is None else dict(composition.weights)
    folder = study / "exports" / name

    def work() -> list[Path]:
        about = ExportAbout(composition=composition)
        return [export_model(opened, out=folder, weights=weights, about=about).folder]

    inputs = {"model": opened.digest, "weights": weights}
    record = study / "recipes" / "make-demo" / f"export-{name}.json"
    once(record, study=study, inputs=inputs, work=work, is_one=True)
    said = json.loads((folder / "encore_export.json").read_text(encoding="utf-8"))
    difference = said["verification"]["max_difference"]
    labels = "a label for each rule" if weights is None else "ENCORE's weights folded in"
    say(f"{folder}: {labels}; plain transformers gives the same scores (to {difference:.0e})")


def _score_and_compose(study: Path, opened: OpenedModel, weights: Mapping[str, float]) -> None:
    from encore.cli.score import show_scoring
    from encore.config import ScoringConfig
    from encore.data.pairs import iter_pairs
    from encore.data.study import open_study
    from encore.scoring.head_accuracy import accuracy_of, held_out_P
    from encore.scoring.head_scores import read_head_scores

    config = ScoringConfig(model=opened.name)
    result = show_scoring(open_study(study), config, opened=opened)
    scores = read_head_scores(result.out)
    assert result.split is not None, "the demo holds pairs out"
    is_held_out_P = held_out_P(result.split, iter_pairs(open_study(study)), scores)
    held_out = scores.take(is_held_out_P.nonzero()[0])
    uniform = dict.fromkeys(weights, 1 / len(weights))
    half = {
        name: accuracy_of(held_out.compose(composed), name=name).half
        for name, composed in (("ENCORE's weights", weights), ("uniform weights", uniform))
    }
    told = ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in half.items())
    say(f"{result.num_scores:,} scores in {result.out}")
    say(f"sides with the labels on the {held_out.num_pairs} held-out pairs: {told}")


def _report(study: Path) -> None:
    """The page, with the table just made among what it shows."""
    from encore.report.write_report import default_folder
    from encore.report.write_report import report as write_report

    written = write_report(study, out=default_folder(study))
    say(f"all of it on a page: {written.page}")


def _available_backend() -> Backend:
    if find_spec("vllm") is not None:
        return "vllm"
    warn(
        "vLLM is not installed on this machine (it needs Linux); the demo uses the transformers "
        "backend instead: the same replies, several times slower"
    )
    return "transformers"


def _program() -> str:
    """How this very command can be called again: by name where the shell finds it, else by path."""
    if found := which("encore"):
        return Path(found).name
    program = Path(sys.argv[0])
    return os.path.relpath(program) if program.name == "encore" else "encore"


def _next_steps(study: Path) -> tuple[tuple[str, str], ...]:
    return (
        (f"analyze {study} --by-source", "entropy, four accuracies, their correlation"),
        (f"weights {study} --tau 0.5", "a sharper preference for low-entropy rules"),
        (f"compare {study}", "every row of the benchmark's table, sorted"),
        (f"status {study}", "every rating shard, its digest checked"),
        (f"show PAIR --study {study}", "text, prompts, replies and ratings of one pair"),
        (f"serve {study}/exports/composed", "its rewards over HTTP"),
        ("ingest --help", "your own preference pairs"),
        ("train --help", "a reward model on a backbone of your own"),
    )
