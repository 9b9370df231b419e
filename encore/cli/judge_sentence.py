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
    labels = "" if manifest is None else _labels(manifest)
    used = f"the judge's ratings have at most {most_levels}{labels} under one rule"
    if manifest is None:
        used = f"these ratings have at most {counted(most_levels, 'level')} under one rule"
    num_told = sum(row.verdict in ("trust", "against") for row in answer.rows)
    rules = f"{num_told or 'none'} of {counted(len(answer.rows), 'rule')}"
    on_pairs = f"on {counted(answer.num_pairs, 'pair')}"
    notes = [f"{used}; {on_pairs} they can be told from a coin under {rules}"]
    if manifest is not None:
        notes.append(note_on_label_mass(manifest, analysis.ratings.files))
    return " ".join(sentence(note) for note in notes if note)


def _labels(manifest: RatingManifest) -> str:
    """Return the number of labels that a run allows, for the middle of a sentence."""
    from encore.rating.rating_options import labels_of, rating_settings

    settings = rating_settings(manifest.settings)
    labels = labels_of(settings["decode"], settings["scale"])
    return f" of {counted(len(labels), 'label')}" if labels else " levels"
