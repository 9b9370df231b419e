"""What a stage runs with: frozen pydantic models, the only declaration of each option.

From a stage's config the command line and the Prefect form are generated, and from it come recipes,
the run's identity, MLflow's parameters and the reference page. A config stands beside its stage;
this module has what all of them share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

_ABOUT = "encore"


class StageConfig(BaseModel):
    """The options of one stage."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), defer_build=True
    )


def option(
    default: Any = ...,
    *,
    help: str,  # noqa: A002  # the word that every parser uses
    group: str | None = None,
    name: str | None = None,
    alias: str | None = None,
    positional: bool = False,
    hidden: bool = False,
    identity: bool = True,
    since: bool = False,
    only_for: Mapping[str, Sequence[str]] | None = None,
    source: str | None = None,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    **bounds: Any,
) -> Any:
    """A field of a stage's config.

    Args:
        default: Its default; left out: the option is required.
        help: What it says, for the command line, the Prefect form and the reference page.
        group: Panel of the help text.
        name: Option name on the command line, if not the field's.
        alias: A second option name.
        positional: An argument instead of an option.
        hidden: No option on the command line.
        identity: Whether it changes results and so is part of a run's key.
        since: Added after runs existed: at its default it is left out of the key.
        only_for: The values of another field with which this option is read, by that field's name,
            e.g. ``{"method": ("lora",)}``; see `unused_options`. None: it is always read.
        source: Where the default comes from, e.g. a section of the paper.
        metavar: What stands for the value in the help text.
        choices: What the Prefect form offers; the stage itself refuses another value by name.
        **bounds: Passed to `pydantic.Field`: ``ge``, ``le``, ``gt``, ``lt``, ``min_length``,
            ``examples``, ….
    """
    about: dict[str, Any]
    about = {"group": group, "name": name, "alias": alias, "source": source, "metavar": metavar}
    about |= {"positional": positional, "hidden": hidden, "since": since}
    about["only_for"] = {name: [*values] for name, values in (only_for or {}).items()}
    said = {key: value for key, value in about.items() if value}
    if not identity:
        said["identity"] = False
    extra: dict[str, Any] = {_ABOUT: said}
    if choices:
        extra["enum"] = [*choices]
    default_is = "default_factory" if isinstance(default, type) else "default"
    return Field(description=help, json_schema_extra=extra, **{default_is: default}, **bounds)


#: An option that is no part of a run's key, because it changes no result.
unkeyed_option = partial(option, identity=False)


def about_option(field: FieldInfo) -> Mapping[str, Any]:
    """What `option` was told of a field beside its default, help and bounds."""
    extra = field.json_schema_extra
    about = extra.get(_ABOUT) if isinstance(extra, dict) else None
    return about if isinstance(about, dict) else {}


def unused_options(config: BaseModel, *, because_of: str) -> dict[str, Any]:
    """Return the options that were set but are not read with the value of another field.

    Args:
        config: The config; only its own fields are looked at, not those of nested configs.
        because_of: Name of the other field, as in `option`'s ``only_for``.
    """
    value = getattr(config, because_of)
    options = {}
    for name, field in type(config).model_fields.items():
        readers = about_option(field).get("only_for", {}).get(because_of, (value,))
        if name in config.model_fields_set and value not in readers:
            options[name] = getattr(config, name)
    return options


def identity_of(config: BaseModel) -> dict[str, Any]:
    """The part of a config that a run's key is made of, as JSON values.

    Fields that change no result are left out, and fields that were added later while they have
    their default, so that the keys of existing runs stay.
    """
    dumped = config.model_dump(mode="json")
    identity: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        about = about_option(field)
        value = getattr(config, name)
        is_default = about.get("since") and value == field.get_default(call_default_factory=True)
        if about.get("identity", True) and not is_default:
            identity[name] = identity_of(value) if isinstance(value, BaseModel) else dumped[name]
    return identity
