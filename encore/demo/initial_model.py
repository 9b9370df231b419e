"""A small reward model that was there before the demo's trainings: its stand-in for a public one.

The paper starts from a reward model that others trained on preferences of their own. Here a head in
closed form on the judge's untouched trunk learns from synthetic pairs of another part of the world
than the demo's. What is trained from it begins with the very weights of the judge.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

from encore.demo import backbone_config, judge_path
from encore.demo.make_data import hh_record
from encore.demo.pairs import draw_pair
from encore.demo.world.lexicon import load_lexicon
from encore.model_files import folder_digest
from encore.recipes.finished import once
from encore.training.config import TrainingConfig

#: Not the seed of the demo's pairs or benchmark.
SEED = 41
NUM_PAIRS = 200
_LABEL = "synthetic-initial"
_STUDY, _MODEL = "initial", "initial-reward-model"


def initial_reward_model(study: Path) -> Path:
    """The folder of a one-label classifier for plain transformers; made where it is not there yet.

    Args:
        study: The demo's. The model, and the study it learnt from, go to ``initial`` in it.
    """
    root = study / _STUDY
    lines = "".join(json.dumps(record) + "\n" for record in _records())
    config = TrainingConfig(objective="bradley-terry", method="probe")

    def work() -> list[Path]:
        return [_made(root, lines=lines, config=config)]

    inputs = {
        "backbone": folder_digest(judge_path()),
        "training": config.model_dump(mode="json"),
        "pairs": hashlib.sha256(lines.encode()).hexdigest(),
    }
    record = study / "recipes" / "make-demo" / "initial-model.json"
    once(record, study=study, inputs=inputs, work=work, is_one=True)
    return root / _MODEL


def _records() -> list[dict[str, object]]:
    """Pairs of the part of the world that the judge was trained on; the demo's are of another."""
    rng, lexicon = random.Random(SEED), load_lexicon("train")
    return [hh_record(draw_pair(rng, lexicon, multi_turn=False)) for _ in range(NUM_PAIRS)]


def _made(root: Path, *, lines: str, config: TrainingConfig) -> Path:
    from encore.data.ingestion import ingest
    from encore.data.study import open_study
    from encore.export import export_model
    from encore.model.opening import open_reward_model
    from encore.training.config import TrainConfig
    from encore.training.train import train

    with TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{_LABEL}.jsonl"
        path.write_text(lines, encoding="utf-8")
        ingest([f"{_LABEL}={path}"], out=root)
    trained = train(
        open_study(root), TrainConfig.of(root, backbone=backbone_config(), training=config)
    )
    opened = open_reward_model(trained.model_dir, device="cpu")
    return export_model(opened, out=root / _MODEL).folder
