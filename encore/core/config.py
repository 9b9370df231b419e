"""Configs of stages: frozen pydantic models whose fields are the options.

A field is the only declaration of its option. The command line, the Prefect form, recipes, run
keys, MLflow's parameters and the reference page are made from it. A config stands beside its stage;
this module has the parts that all configs share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from encore.core.bucket_addresses import is_address, shown_address
from encore.core.errors import EncoreError

Part = TypeVar("Part", bound="StageConfig")

#: Key of an option's metadata in the JSON schema of its field.
_METADATA_KEY = "encore"


class StageConfig(BaseModel):
    """The options of one stage. The docstring below a field is its help text."""

    #: Fields that are in a run's identity in another form: as digests of what they lead to, or as
    #: numbers of its plan. Every other field is in it as it stands, unless it has its default.
    REPLACED_IN_KEYS: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        defer_build=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        """Join the lines of each help text."""
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())

    @field_validator("*")
    @classmethod
    def _refuse_addresses(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a bucket's address as any other path than a study's, which is local by now.

        Raises:
            EncoreError: The name of the option. The value may have a key in it, so it is not shown
                as pydantic shows it.
        """
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path) and is_address(path):
                raise EncoreError(
                    f"{info.field_name} {shown_address(path)}: only a study may be in a bucket; "
                    "give a path of this machine"
                )
        return value


def option(
    default: Any = ...,
    *,
    help: str | None = None,  # noqa: A002  # the word that every parser uses
    group: str | None = None,
    name: str | None = None,
    positional: bool = False,
    hidden: bool = False,
    only_for: Mapping[str, Sequence[str]] | None = None,
    beside_recipe: bool = False,
    source: str | None = None,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    **bounds: Any,
) -> Any:
    """Return a field of a stage's config.

    Args:
        default: Default value, or the type that makes it. Without one the option is required.
        help: Help text of the command line, the Prefect form and the reference page, where
            several fields share it or a constant is part of it. None: the field's docstring.
        group: Title of the panel of the help text.
        name: Option name on the command line, if it is not the field's.
        positional: True makes it an argument instead of an option.
        hidden: True leaves it out of the command line.
        only_for: Values of another field with which this option is read, by that field's name,
            e.g. ``{"method": ("lora",)}``; see `unused_options`. None: it is always read.
        beside_recipe: True if it may be given together with a recipe: a path, an amount or the
            number of attempts. A recipe determines every other option.
        source: Origin of the default, e.g. a section of the paper.
        metavar: Placeholder of the value in the help text.
        choices: Values that the Prefect form offers. The stage itself refuses other values.
        **bounds: Further arguments of `pydantic.Field`: ``ge``, ``le``, ``gt``, ``lt``, ….
    """
    metadata: dict[str, Any]
    metadata = {"group": group, "name": name, "source": source, "metavar": metavar}
    metadata |= {"positional": positional, "hidden": hidden}
    metadata["beside_recipe"] = beside_recipe
    metadata["only_for"] = {name: [*values] for name, values in (only_for or {}).items()}
    metadata = {key: value for key, value in metadata.items() if value}
    extra: dict[str, Any] = {_METADATA_KEY: metadata}
    if choices:
        extra["enum"] = [*choices]
    default_key = "default_factory" if isinstance(default, type) else "default"
    return Field(description=help, json_schema_extra=extra, **{default_key: default}, **bounds)


def option_metadata(field: FieldInfo) -> Mapping[str, Any]:
    """Return the arguments of `option` for a field, without its default, help and bounds."""
    extra = field.json_schema_extra
    metadata = extra.get(_METADATA_KEY) if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def unused_options(config: BaseModel, *, because_of: str) -> dict[str, Any]:
    """Return the options that were set but are not read with the value of another field.

    Args:
        config: The config; only its own fields are looked at, not those of nested configs.
        because_of: Name of the other field, as in `option`'s ``only_for``.
    """
    value = getattr(config, because_of)
    options = {}
    for name, field in type(config).model_fields.items():
        readers = option_metadata(field).get("only_for", {}).get(because_of, (value,))
        if name in config.model_fields_set and value not in readers:
            options[name] = getattr(config, name)
    return options


def part_of(config: BaseModel, kind: type[Part], **changes: Any) -> Part:
    """Return the fields of a config that another class of configs has, with some changed.

    Args:
        config: Config with at least the fields of ``kind``.
        kind: Class of the part, e.g. what a run asks for, without how it is run.
        **changes: Values of the part that are not the config's.
    """
    values = {name: getattr(config, name) for name in kind.model_fields}
    return kind.model_validate(values | changes)


def keyed_defaults(kind: type[StageConfig]) -> dict[str, Any]:
    """Return the defaults of a config's options that are in keys, by name.

    A required option has ``PydanticUndefined``.
    """
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in kind.model_fields.items()
        if name not in kind.REPLACED_IN_KEYS
    }


def identity_of(config: StageConfig, kind: type[StageConfig] | None = None) -> dict[str, Any]:
    """Return the part of a run's identity that a config has, as JSON values.

    It holds the values that are not the default, so an option that is added changes no key of a run
    without it, and one that is given always does.

    Args:
        config: The config.
        kind: Class of the config whose fields count, if it is not the config's own: that of a run
            whose options a command has beside others.
    """
    changed_names = {
        name
        for name, default in keyed_defaults(kind or type(config)).items()
        if getattr(config, name) != default
    }
    dumped = config.model_dump(mode="json", include=changed_names)
    for name in changed_names:
        if isinstance(value := getattr(config, name), StageConfig):
            dumped[name] = identity_of(value)
    return dumped
