"""`encore status`: which shards are done, missing, damaged or failed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from encore.cli.output import compact_table, counted, shown_judge
from encore.config import RunKeyConfig, StudyConfig
from encore.errors import InputError, StudyIncompleteError
from encore.options import JsonOption, command
from encore.terminal import out, print_json

if TYPE_CHECKING:
    from encore.rating_runs import RatingManifest, RatingStatus


class StatusConfig(RunKeyConfig, StudyConfig):
    """Which study and run to look at."""


@command
def status(config: StatusConfig, *, json: JsonOption = False) -> None:
    """List every run of a study with its shards; every file's digest and values are checked.

    Exit code 0: complete, or enough (`encore rate --until-weights-within`). 3: shards are missing,
    damaged or failed (with the recorded error); `encore rate` with the same parameters rates
    exactly these.
    """
    from encore.data.study import open_study
    from encore.rating_runs import chosen_runs, enough_of, run_status

    run_dirs = chosen_runs(open_study(config.study).ratings_dir, config.run)
    if not run_dirs:
        raise InputError(f"{config.study}: no ratings yet; run `encore rate` first")
    statuses = [run_status(run_dir) for run_dir in run_dirs]
    if json:
        print_json({"runs": [_as_dict(found) for found in statuses]})
    else:
        for found in statuses:
            _print(found)
    unfinished = [found for found in statuses if found.problems and not enough_of(found)]
    if num_open := sum(len(found.problems) for found in unfinished):
        commands = "; ".join(_continuing(config.study, found.manifest) for found in unfinished)
        raise StudyIncompleteError(
            f"{counted(num_open, 'shard')} not done; to rate exactly these: {commands}"
        )


def _as_dict(found: RatingStatus) -> dict[str, Any]:
    counts = ("num_ratings", "num_nulls")
    return {
        "run_key": found.manifest.run_key,
        "judge": found.manifest.judge,
        "num_shards": len(found.shards),
        "is_complete": found.is_complete,
        **_counts(found),
        "num_ratings": found.total("num_ratings"),
        "num_nulls": found.total("num_nulls"),
        "shards": [
            {name: getattr(shard, name) for name in ("index", "state", "detail")}
            | {name: int(shard.footer.get(name, 0)) for name in counts}
            for shard in found.shards
        ],
    }


def _counts(found: RatingStatus) -> dict[str, int]:
    from encore.runs import ShardStateName

    return {state: found.count(state) for state in get_args(ShardStateName)}


def _print(found: RatingStatus) -> None:
    from encore.rating_runs import enough_of

    manifest, plan = found.manifest, found.manifest.identity["plan"]
    counts = ", ".join(f"{num} {state}" for state, num in _counts(found).items())
    out.print(
        f"run {manifest.run_key}  {', '.join((shown_judge(manifest), *manifest.ways))}  rules "
        f"{manifest.rule_set} ({len(manifest.rules)})  {plan['num_pairs']} pairs, "
        f"{plan['shard_size']} a shard, overlong prompts: {plan['overlong']}\n"
        f"  {counts}  ({found.total('num_ratings')} ratings, {found.total('num_nulls')} nulls)",
        soft_wrap=True,
    )
    if enough := enough_of(found):
        out.print(f"  {enough}\n", soft_wrap=True)
    elif rows := [(shard.index, shard.state, shard.detail) for shard in found.problems]:
        out.print(compact_table(("shard", "state", "why"), rows))


def _continuing(study: Path, manifest: RatingManifest) -> str:
    """The command that continues a run: its key does not say where judge and rule file lie."""
    from encore.data.rules import SHIPPED_RULE_SETS

    identity = manifest.identity
    judge, plan = identity["judge"], identity["plan"]
    decoding, is_http = identity["decoding"], judge["backend"] == "http"
    is_folder = str(judge["revision"]).startswith("sha256:")
    is_shipped = manifest.rule_set in SHIPPED_RULE_SETS
    found = {
        "judge": f"FOLDER/{judge['name']}" if is_folder else judge["name"],
        "revision": None if is_folder else judge["revision"],
        "backend": judge["backend"],
        "base-url": "URL" if is_http else None,
        "tokenizer": "FOLDER" if is_http and judge["chat_template_sha256"] else None,
        "dtype": None if is_http else judge["dtype"],
        "max-model-len": judge["max_model_len"],
        "rules": manifest.rule_set if is_shipped else f"FOLDER/{manifest.rule_set}.toml",
        "limit": plan["num_pairs"],
        "shard-size": plan["shard_size"],
        "overlong": plan["overlong"],
        "layout": identity.get("layout"),
        "decode": decoding.get("kind"),
        "scale": ",".join(decoding.get("labels", ())),
        "min-label-mass": decoding.get("min_label_mass"),
        "max-reply-tokens": decoding["max_reply_tokens"],
    }
    words = [str(word) for name, value in found.items() if value for word in (f"--{name}", value)]
    for name, value in () if is_http else judge["engine_args"].items():
        words += ["--engine-arg", f"{name}={value}"]
    return shlex.join(["encore", "rate", str(study), *words])
