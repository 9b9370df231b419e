"""Make the ratings that `encore demo` shows: the demo's judge rates the demo's pairs.

``python -m examples.demo_judge.rate_pairs`` ingests the shipped synthetic pairs, rates them as the
recipe ``demo`` does on a vLLM engine, and writes the finished run into ``encore/demo/ratings``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from encore.data.ingestion import ingest
from encore.demo import RATINGS_PATH
from encore.rating.rating_run import rate
from encore.recipes.recipe import load_recipe


def write_ratings(folder: Path) -> None:
    """Rate the demo's pairs, and replace a folder by the run: its manifest and its shards."""
    recipe = load_recipe("demo")
    with TemporaryDirectory() as temporary:
        study = Path(temporary) / "study"
        ingest(recipe.sources, out=study)
        result = rate(study, recipe.rating)
        assert not result.report.failures, result.report.failures
        shutil.rmtree(folder, ignore_errors=True)
        kept = shutil.ignore_patterns("locks", "engines", "checked.json", ".*")
        shutil.copytree(result.run_dir, folder / result.run_dir.name, ignore=kept)


if __name__ == "__main__":
    write_ratings(RATINGS_PATH)
