"""One sentence on the judge whose ratings are analyzed: is it any good?"""

from __future__ import annotations

from encore.analysis.analyze import Analysis
from encore.analysis.statistics import POOLED
from encore.core.number_text import counted, sentence
from encore.data.rating_runs import RatingManifest, note_on_label_mass


def judge_sentence(analysis: Analysis) -> str:
    """Return how many labels a judge used, under how many rules it is no coin, and its label mass.

    Labels and mass are left out where the ratings do not tell them.
    """
    manifest, answer = analysis.ratings.manifest, analysis.answers[-1]
    most_levels = max(rule.num_levels for rule in analysis.rules if rule.source == POOLED)
    num_labels = 0 if manifest is None else _num_labels(manifest)
    levels = (
        f"{most_levels} of {num_labels} labels" if num_labels else counted(most_levels, "level")
    )
    origin = "these" if manifest is None else "the judge's"
    used = f"{origin} ratings have at most {levels} under one rule"
    num_told = sum(row.verdict in ("trust", "against") for row in answer.rows)
    rules = f"{num_told or 'none'} of {counted(len(answer.rows), 'rule')}"
    on_pairs = f"on {counted(answer.num_pairs, 'pair')}"
    notes = [f"{used}; {on_pairs} they can be told from a coin under {rules}"]
    if manifest is not None:
        notes.append(note_on_label_mass(manifest, analysis.ratings.files))
    return " ".join(sentence(note) for note in notes if note)


def _num_labels(manifest: RatingManifest) -> int:
    """Return the number of labels that a run's judge may answer with; 0 if it writes numbers."""
    from encore.rating.rating_options import labels_of, rating_settings

    if questions := manifest.identity.get("questions"):  # of a decision model
        return len(questions["levels"])
    settings = rating_settings(manifest.settings)
    return len(labels_of(settings["decode"], settings["scale"]))
