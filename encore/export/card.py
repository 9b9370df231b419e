"""The model card of an export: what it scores, how to use it, where it comes from, its limits."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from encore.export.architecture import OLDEST_TESTED
from encore.export.card_facts import CardFacts
from encore.export.card_provenance import provenance, table
from encore.export.probes import EXAMPLE
from encore.export.records import Composition

#: Delete, controls, line ends of Unicode, lone halves of characters and what is none.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def model_card(facts: CardFacts) -> str:
    """The text of ``README.md``: metadata that the hub reads, then words."""
    sections = (
        f"# {facts.name}\n",
        _summary(facts),
        _use(facts),
        _rules(facts),
        _scale(facts),
        _readers(facts),
        _evaluation(facts),
        _limits(facts),
        provenance(facts),
    )
    return _metadata(facts) + "\n" + "\n".join(section for section in sections if section)


def example_code(folder: str) -> str:
    """Ten lines that score the example with transformers alone.

    Args:
        folder: The export, or its id on a hub.
    """
    prompt, response = EXAMPLE
    turns = [*((turn.role, turn.content) for turn in prompt), ("assistant", response)]
    user, assistant = (json.dumps({"role": role, "content": text}) for role, text in turns)
    return textwrap.dedent(
        f"""\
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained({json.dumps(folder)})
        model = AutoModelForSequenceClassification.from_pretrained({json.dumps(folder)}).eval()
        messages = [{user}]
        messages += [{assistant}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        with torch.no_grad():
            scores = model(**tokenizer(text, return_tensors="pt")).logits[0].tolist()
        print(dict(zip(model.config.id2label.values(), scores)))
        """
    )


# --- metadata -------------------------------------------------------------------------------------


def _metadata(facts: CardFacts) -> str:
    """The YAML header; JSON values are YAML."""
    backbone = str(facts.source.metadata.get("backbone_name", ""))
    values: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "license": facts.about.licence or "unknown",
        **({"base_model": backbone} if backbone.count("/") == 1 else {}),
        "tags": [
            *("reward-model", "safety", "encore"),
            *(("synthetic",) if facts.synthetic else ()),
        ],
    }
    lines = (f"{name}: {_yaml(value)}" for name, value in values.items())
    return "---\n" + "\n".join(lines) + "\n---\n"


def _yaml(value: object) -> str:
    """A JSON value, with those characters escaped that JSON leaves and YAML refuses or folds."""
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# --- words ----------------------------------------------------------------------------------------


def _summary(facts: CardFacts) -> str:
    warning = (
        f"> **Synthetic** ({', '.join(facts.synthetic)}): an example of the format. Its scores "
        "say nothing about real people, models or rules.\n\n"
        if facts.synthetic
        else ""
    )
    num_heads = len(facts.rules.mean_by_rule)
    if facts.rules.weights is not None:
        what = (
            f"A reward model with one score, `{facts.labels[0]}`: the weighted sum of {num_heads} "
            f"{_plural('head', num_heads)}, folded into one linear head."
        )
    elif num_heads == 1:
        what = f"A reward model with one score, `{facts.labels[0]}`."
    else:
        what = (
            f"A reward model with {num_heads} scores of a response, one under each rule. It is "
            "**not** for tools that expect one score (they would take the first): those want the "
            "composed export."
        )
    return (
        f"{warning}{what} `{facts.architecture}`, weights in {facts.dtype}; nothing but "
        f"transformers ({facts.minimum_transformers} or newer) is needed to run it. Higher is "
        "better.\n"
    )


def _use(facts: CardFacts) -> str:
    scores = ", ".join(
        f"{label!r}: {score:.6f}"
        for label, score in list(facts.verification.example_scores.items())[:3]
    )
    more = ", …" if len(facts.labels) > 3 else ""
    rounding = (
        ""
        if facts.dtype == "float32"
        else " transformers 4 computes in float32 unless told `torch_dtype`, so its last digits "
        "differ."
    )
    return (
        f"## Use\n\n```python\n{example_code(facts.name)}```\n\n"
        f"With the folder at hand (or its hub id in its place) this prints `{{{scores}{more}}}` "
        f"on a CPU.{rounding}\n"
    )


def _rules(facts: CardFacts) -> str:
    weights, composition = facts.rules.weights, facts.rules.composition
    entropies = {} if composition is None else composition.entropies
    columns = ["rule"]
    columns += ["mean rating"] if facts.is_centred else []
    columns += ["weight"] if weights is not None else []
    columns += ["entropy (nats)"] if entropies else []
    rows = []
    for head_id, mean in facts.rules.mean_by_rule.items():
        row = [f"`{head_id}`"]
        row += [f"{mean:.4f}"] if facts.is_centred else []
        row += [f"{weights[head_id]:.6g}"] if weights is not None else []
        row += [f"{entropies[head_id]:.4f}" if head_id in entropies else "–"] if entropies else []
        rows.append(row)
    return f"## Rules\n\n{_how_weighed(facts)}" + table(columns, rows)


def _how_weighed(facts: CardFacts) -> str:
    composition = facts.rules.composition
    if facts.rules.weights is None or composition is None:
        return ""
    shown_apart = ("log_base",)
    params = ", ".join(
        f"{name} {value}" for name, value in composition.params.items() if name not in shown_apart
    )
    shown = f" ({params})" if params else ""
    return f"Weights by scheme `{composition.scheme}`{shown}.{_about_weights(composition)}\n\n"


def _about_weights(composition: Composition) -> str:
    """Sentences on how the weights were made, each with the space before it."""
    base = composition.params.get("log_base", "e")
    sentences = []
    if composition.scheme == "encore":
        sentences.append(f"Weights are softmax(−entropy / tau), logarithms to base {base}.")
    if learnt_from := composition.learnt_from:
        sentences.append(
            f"**They were learnt from {' and '.join(learnt_from)}**: measured on the same, this "
            "model is flattered."
        )
    if composition.num_missing_shards:
        sentences.append(
            f"They come from an incomplete rating run: {composition.num_missing_shards} of "
            f"{composition.num_shards} shards were not read."
        )
    return "".join(f" {sentence}" for sentence in sentences)


def _scale(facts: CardFacts) -> str:
    if not facts.is_centred:
        return ""
    rules = facts.rules
    added = (
        "a rule's mean rating to its score"
        if rules.mean_of_reward is None
        else f"{rules.mean_of_reward:.6f} (the weighted sum of the mean ratings)"
    )
    read_as = (
        "on the scale of the ratings, 0 to 1."
        if rules.weights is None or rules.is_average
        else "as the weighted sum of ratings. It is not on their scale of 0 to 1, since the "
        "weights are no average's (some negative, or their sum not 1)."
    )
    return (
        "## Scale\n\nScores are centred: the heads learnt ratings from which each rule's mean was "
        f"taken. Add {added} to read a score {read_as} Rankings do not depend on it.\n"
    )


def _readers(facts: CardFacts) -> str:
    length = facts.source.tokenizer.max_length
    # Its own transformers is the oldest one; it pads on the left, which moves positions.
    is_readable = facts.minimum_transformers == OLDEST_TESTED and len(facts.labels) == 1
    rewardbench = (
        f"* RewardBench: `rewardbench --model {facts.name} --not_quantized --torch_dtype "
        f"{facts.dtype} --max_length {length} --force_truncation --batch_size 1`; its defaults "
        "(512 tokens that it does not keep to, float16, 8 bits for some names, batches padded on "
        "the left) score otherwise.\n"
        if is_readable
        else ""
    )
    return (
        f"## Other readers\n\n* vLLM: `vllm serve {facts.name} --runner pooling --dtype "
        f"{facts.dtype} --max-model-len {length}`, then POST "
        '`{"model": …, "messages": […]}` to `/classify`; what it calls probabilities are the '
        f"scores.\n{rewardbench}* A text is what the chat template makes of a conversation. It "
        "contains all special tokens; the tokenizer adds none.\n"
    )


def _evaluation(facts: CardFacts) -> str:
    evaluation = facts.source.metadata.get("evaluation")
    if not isinstance(evaluation, Mapping):
        return "## Evaluation\n\nNone was recorded.\n"
    r2, accuracy = evaluation.get("r2_by_head") or {}, evaluation.get("accuracy_half_by_head") or {}
    rows = [
        (f"`{head_id}`", _number(r2.get(head_id)), _percent(accuracy.get(head_id)))
        for head_id in facts.rules.mean_by_rule
    ]
    return (
        f"## Evaluation\n\nOf each head alone, on {evaluation.get('num_pairs', 0):,} pairs whose "
        "prompts were held out from training: how much of the rule's ratings it explains, and how "
        "often it ranks a pair as people did (ties count half).\n\n"
        + table(("rule", "R²", "accuracy"), rows)
    )


def _limits(facts: CardFacts) -> str:
    length = facts.source.tokenizer.max_length
    checked = facts.verification
    flips = (
        f"* Against the model in float32, {checked.num_flipped:,} of {checked.num_margins:,} "
        "rankings of pairs come out the other way round"
        + (
            f"; the largest margin among them was {checked.largest_flipped_margin:.1e}.\n"
            if checked.largest_flipped_margin is not None
            else ".\n"
        )
        + (
            f"* {checked.num_tied:,} of these pairs tie in one of the two and not in the other.\n"
            if checked.num_tied
            else ""
        )
        if checked.num_margins
        else ""
    )
    return (
        "## Limits\n\n"
        f"* Conversations beyond {length} tokens: ENCORE cuts the oldest tokens and keeps the one "
        "every text begins with; other tools cut in their own ways or not at all.\n"
        "* A message that spells a special token is taken for that token by plain readers; "
        "ENCORE's own scoring reads it as text.\n"
        f"{_long_positions(facts)}{flips}"
        "* It measures what its rules and their judge measured, in the languages and on the kinds "
        "of conversation it was trained on; a high score is no proof that a response is safe.\n"
    )


def _long_positions(facts: CardFacts) -> str:
    original = facts.original_positions
    if original is None:
        return ""
    return (
        f"* Beyond {original} tokens positions are scaled in another way (longrope). transformers "
        "does so with a whole batch that has one such conversation in it, vLLM with every "
        f"conversation if `--max-model-len` is above {original}; scores of shorter ones then "
        "differ. Score the two kinds apart.\n"
    )


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float | int) else "–"


def _percent(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float | int) else "–"


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"
