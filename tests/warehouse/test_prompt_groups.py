"""Pairs belong together if their whole prompts are equal, not the last turns alone."""

from __future__ import annotations

from typing import Any

from encore.weighting.weigh import open_evidence
from tests.worlds.studies import rate_study, study_of
from tests.worlds.trainings import pairs_of


def prompt(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """Return turns of user and assistant with these texts, after a system turn if there is one."""
    roles = [("user", "assistant")[index % 2] for index in range(len(contents))]
    turns = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
    return [*([{"role": "system", "content": system}] if system else []), *turns]


#: Name of the group of each prompt. All but one end with the same turn.
PROMPTS: list[tuple[str, Any]] = [
    ("alone", prompt("Tell me more.")),
    ("alone", prompt("Tell me more.")),
    ("after a question", prompt("What is a lock?", "A device.", "Tell me more.")),
    ("after a question", prompt("What is a lock?", "A device.", "Tell me more.")),
    ("after another answer", prompt("What is a lock?", "A door.", "Tell me more.")),
    ("after another question", prompt("What is a key?", "A device.", "Tell me more.")),
    ("with a system turn", prompt("Tell me more.", system="Be brief.")),
    ("with another system turn", prompt("Tell me more.", system="Be long.")),
    ("with another end", prompt("What is a lock?", "A device.", "Tell me less.")),
]


def test_the_group_of_a_pair_is_its_whole_prompt(tmp_path):
    rows = [
        {"prompt": turns, "chosen": f"Yes {index}.", "rejected": f"No {index}."}
        for index, (_, turns) in enumerate(PROMPTS)
    ]
    study = study_of(rows, tmp_path / "study")
    name_of_pair = {
        pair.pair_id: PROMPTS[int(pair.chosen.removeprefix("Yes ").removesuffix("."))][0]
        for pair in pairs_of(study)
    }
    rate_study(study)
    with open_evidence(study) as evidence:
        pairs = evidence.read_pairs()
    assert (pairs.grouped_by, pairs.num_prompts) == ("prompt", 7)
    group_by_name: dict[str, set[int]] = {}
    for pair_id, group in zip(pairs.pair_id_P, pairs.group_P.tolist(), strict=True):
        group_by_name.setdefault(name_of_pair[pair_id], set()).add(group)
    assert sorted(map(len, group_by_name.values())) == [1] * 7
    assert len(set.union(*group_by_name.values())) == 7
