"""`encore export`: a trained reward model as a plain transformers folder that loads anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from encore.cli import weight_choice as choice
from encore.cli.output import JsonOption, compact_table, out, print_json, say, warn
from encore.cli.stopping import stopped_by_sigterm
from encore.errors import InputError

if TYPE_CHECKING:
    from encore.data.records import PreferencePair
    from encore.export import Composition, ExportResult
    from encore.export.push import PushResult

_INCOMPLETE = 3
#: By which a gate's folder is known.
_GATE_FILE = "gate.json"
#: Pairs on which flipped rankings are counted: a fair sample, minutes on a CPU for 8 billion
#: weights.
_MAX_PAIRS = 200


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run or model folder of `encore train`, an export with all heads, or a hub id.",
        ),
    ],
    out_dir: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder to write; one export.")
    ],
    heads: Annotated[
        bool,
        typer.Option(
            "--heads", help="One label per rule (the default).", rich_help_panel=choice.PANEL
        ),
    ] = False,
    weights: choice.Weights = None,
    rule: choice.Rule = None,
    scheme: choice.Scheme = None,
    ratings: choice.Ratings = None,
    tau: choice.Tau = None,
    seed: choice.Seed = None,
    k: choice.K = None,
    run: choice.Run = None,
    judge: choice.Judge = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="Of the weights on disk; bfloat16 halves them and can flip near-ties."),
    ] = "float32",
    max_length: Annotated[
        int | None,
        typer.Option(min=16, help="Tokens of a conversation; default: as it was trained."),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Of a hub id.")] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--license", metavar="ID", help="For the card: the hub's name of a licence, e.g. mit."
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="REPO",
            help="Then upload it to this repository of the Hugging Face hub (owner/name); the "
            "token is that of `hf auth login` or HF_TOKEN. A new repository is private.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a reward model so that other tools load it without ENCORE.

    The folder is the backbone's own ...ForSequenceClassification in safetensors, with config,
    tokenizer, chat template and a model card; no code of ours or anybody's is in it. Without
    weights every rule is a label. With weights the heads are folded into one label, which is
    exact.

    Before it is kept, the folder is read back with plain transformers and has to give the same
    tokens and, to 1e-5, the same scores.

    For example:

    encore export study/training/KEY --out my-model-heads

    encore export study/training/KEY --out my-model --scheme encore --ratings study

    encore weights study --json > weights.json

    encore export study/training/KEY --out my-model --weights weights.json --dtype bfloat16

    Exit code 3: the weights come from a rating run that is not complete.
    """
    chosen = choice.WeightChoice(
        heads=heads,
        weights=weights,
        rule=rule,
        scheme=scheme,
        ratings=ratings,
        tau=tau,
        seed=seed,
        k=k,
        run=run,
        judge=judge,
    )
    chosen.check()
    if ratings is not None and scheme is None and dtype != "bfloat16":
        raise typer.BadParameter(
            "--ratings belongs to --scheme, or (a study) to --dtype bfloat16, which counts on its "
            "pairs the rankings that it flips"
        )
    from encore.export import ExportAbout, export_model
    from encore.export.folder import refuse_occupied
    from encore.model.opening import open_reward_model

    refuse_occupied(out_dir, source=model)  # before a large model is loaded for nothing
    _refuse_gate(model)
    # On the CPU: the export is opened beside it, and both may not fit on a GPU.
    opened = open_reward_model(
        model, device="cpu", dtype="float32", max_length=max_length, revision=revision
    )
    composition = chosen.composition(opened.model.head_ids)
    pairs = _pairs(ratings) if dtype == "bfloat16" else ()
    with stopped_by_sigterm():  # what is half-written is removed
        result = export_model(
            opened,
            out=out_dir,
            weights=None if composition is None else composition.weights,
            dtype=dtype,
            about=ExportAbout(composition=composition, licence=licence),
            pairs=pairs,
        )
    for note in result.notes:
        warn(note)
    pushed = None if push is None else _push(result, push)
    _report(result, composition, pushed, as_json=as_json)
    if composition is not None and composition.num_missing_shards:
        raise typer.Exit(code=_INCOMPLETE)


def _refuse_gate(model: str) -> None:
    if (Path(model).expanduser() / _GATE_FILE).is_file():
        raise InputError(
            f"model {model}: this is a gate, whose weights depend on the prompt, so it cannot be "
            "folded into a plain classifier; export the model it weighs"
        )


def _pairs(ratings: Path | None) -> Sequence[PreferencePair]:
    """Some pairs of a study, by content hash; none of anything else, which is said."""
    from encore.data.pairs import iter_pairs
    from encore.data.study import MARKER, open_study

    if ratings is None:
        return ()
    if not (ratings / MARKER).is_file():
        say(
            f"note: {ratings} is no study and has no pairs: the rankings that bfloat16 flips were "
            "not counted"
        )
        return ()
    by_hash = sorted(iter_pairs(open_study(ratings)), key=lambda pair: pair.pair_id)
    return by_hash[:_MAX_PAIRS]


def _push(result: ExportResult, repo_id: str) -> PushResult:
    from encore.export.push import push_export

    pushed = push_export(result.folder, repo_id=repo_id)
    say(f"pushed: {pushed.url}")
    return pushed


def _report(
    result: ExportResult,
    composition: Composition | None,
    pushed: PushResult | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(_as_json(result, composition, pushed))
    elif composition is not None:
        rows = [(rule_id, f"{weight:.4f}") for rule_id, weight in composition.weights.items()]
        out.print(compact_table(("rule", "weight"), rows, title="Folded heads"))
    checked = result.verification
    flips = (
        f"; {checked.num_flipped} of {checked.num_margins} rankings flipped, {checked.num_tied} "
        "tied in one of the two"
        if checked.num_margins
        else ""
    )
    say(
        f"{result.folder}: {result.kind}, {result.num_labels} "
        f"{'label' if result.num_labels == 1 else 'labels'}, {result.dtype}, "
        f"{result.num_bytes / 1e6:.1f} MB; {checked.num_probes} conversations score the same with "
        f"plain transformers (to {checked.max_difference:.0e}){flips}"
    )
    say(f"next: {result.folder / 'README.md'} shows how to load it in ten lines")


def _as_json(
    result: ExportResult, composition: Composition | None, pushed: PushResult | None
) -> dict[str, Any]:
    return {
        "folder": str(result.folder),
        "kind": result.kind,
        "labels": list(result.labels),
        "dtype": result.dtype,
        "num_bytes": result.num_bytes,
        "weights": None if composition is None else dict(composition.weights),
        "scheme": None if composition is None else composition.scheme,
        "verification": dataclasses.asdict(result.verification),
        "notes": list(result.notes),
        "pushed": None if pushed is None else dataclasses.asdict(pushed),
    }
