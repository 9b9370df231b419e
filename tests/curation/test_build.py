"""A recipe goes from 259 principles to 87, 20 and 10, and does again only what has changed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from encore.curation import dedupe
from encore.curation.build import build_rules, load_rule_recipe
from encore.curation.curation_config import BuildConfig
from encore.curation.pool import write_pool
from encore.errors import InputError
from tests.curation.principles import index_in, principle, rules_in, write_answers
from tests.scripted_judge import ScriptedJudge

NUM_DISTINCT, NUM_PRINCIPLES = 87, 259
JUDGES = ("first", "second", "third", "fourth")
PAPER = {"merged": 259, "distinct": 87, "top-20": 20, "top-10": 10}


def text_of(number: int) -> str:
    """Of 259 principles: 87 distinct ones, then near-duplicates of these that end otherwise."""
    return f"Principle {number % NUM_DISTINCT} says what is right{'!' * (number // NUM_DISTINCT)}."


def planted(texts: list[str], **_: object) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings in which a principle and its near-duplicates have a cosine of 1, others of 0."""
    embedding_ND = np.eye(NUM_DISTINCT, dtype=np.float32)[[index_in(text) for text in texts]]
    return embedding_ND, np.zeros(len(texts), dtype=bool)


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe over two pools with four judges and five people."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dedupe, "embed", planted)
    numbers = range(NUM_PRINCIPLES)
    rules = [principle(n, description=text_of(n), source="") for n in numbers]
    write_pool(tmp_path / "first.toml", rules[:100])
    write_pool(tmp_path / "second.toml", rules[100:])
    answers = np.random.default_rng(0).random((NUM_DISTINCT, 5)).round(2).tolist()
    rows = [f"principle-{n},{','.join(map(str, row))}" for n, row in enumerate(answers)]
    write_answers(tmp_path / "people.csv", ["rule_id,a,b,c,d,e", *rows])
    lines = ['pools = ["first.toml", "second.toml"]', 'people = ["people.csv"]']
    lines += [f"paper_counts = {{ {', '.join(f'{k} = {v}' for k, v in PAPER.items())} }}"]
    lines += [line for name in JUDGES for line in ("[[judges]]", f'model = "{name}"')]
    return write_answers(tmp_path / "recipe.toml", lines)


def test_259_principles_become_87_then_20_and_10_and_a_rerun_asks_nothing(recipe, tmp_path):
    judges = [ScriptedJudge(name=name) for name in JUDGES]
    config = BuildConfig(recipe=str(recipe), output=tmp_path / "out")
    report = build_rules(config, judges=judges)
    assert [step["num_rules"] for step in report["steps"]] == [259, 87, 20, 10]
    assert {step["step"]: step["paper"] for step in report["steps"]} == PAPER
    assert [judge.num_asked for judge in judges] == [NUM_DISTINCT] * 4
    twenty, ten = (rules_in(tmp_path / "out" / f"top-{size}.toml") for size in (20, 10))
    assert twenty[:10] == ten
    # Each principle stands three times in the pools, but for two that stand twice.
    assert all(len(rule.merged_from) in (1, 2) for rule in twenty)
    assert {one.source for rule in twenty for one in (rule, *rule.merged_from)} == {
        "first",
        "second",
    }
    assert (report["selection"]["num_people"], report["selection"]["num_judges"]) == (5, 4)
    again = build_rules(config, judges=judges)
    assert [judge.num_asked for judge in judges] == [NUM_DISTINCT] * 4
    assert again["steps"] == report["steps"]
    recipe.write_text(recipe.read_text().replace('"fourth"', '"fifth"'))
    judges[3] = ScriptedJudge(name="fifth")
    changed = build_rules(config, judges=judges)
    assert (judges[0].num_asked, judges[3].num_asked) == (NUM_DISTINCT, NUM_DISTINCT)
    assert {*changed["selection"]["rules"][0]["ratings"]} == {*"abcde", *JUDGES[:3], "fifth"}
    table = json.loads((tmp_path / "out" / "top-20.json").read_text())
    assert [row["rank"] for row in table["rules"]] == [*range(1, NUM_DISTINCT + 1)]


def test_the_shipped_recipe_is_the_papers_and_a_wrong_one_is_one_clear_error(tmp_path):
    paper = load_rule_recipe("paper")
    assert (len(paper.pools), len(paper.judges)) == (5, 4)
    assert (paper.threshold, paper.sizes, paper.paper_counts) == (0.8, (20, 10), PAPER)
    with pytest.raises(InputError, match=r"^pools/constitutional-ai\.csv: no such file"):
        build_rules(BuildConfig(recipe="paper", output=tmp_path / "out"))
    for lines, said in (
        (["pools = []"], "pools: Tuple should have at least 1 item"),
        (['pools = ["a"]'], "nobody rates: give judges, people, or both"),
        (['pools = ["a"]', "size = 3"], "size: Extra inputs are not permitted"),
        (["pools = "], "correct the TOML"),
    ):
        with pytest.raises(InputError, match=said):
            load_rule_recipe(str(write_answers(tmp_path / "wrong.toml", lines)))
    with pytest.raises(InputError, match="expected paper, or a TOML file"):
        load_rule_recipe("papr")
