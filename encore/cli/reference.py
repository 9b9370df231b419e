"""The page with every option of every command, generated from the stages' configs.

``python -m encore.cli.reference`` writes it to ``docs/reference.md``.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from encore.cli.app import COMMANDS
from encore.config import StageConfig, about_option
from encore.options import Option, bounds_of, options_of

PAGE = Path("docs/reference.md")
_HEAD = """# Reference

Every option of every command, generated from the configs (`python -m encore.cli.reference`). Flows,
recipes (TOML) and Prefect's forms take the same fields. *Key* says whether an option is part of a
run's key: changing it makes another run beside the old one.
"""


def reference_page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *(line for name in COMMANDS for line in _command_lines(name))])


def _command_lines(name: str) -> Iterator[str]:
    function = getattr(import_module(f"encore.cli.{name}"), name)
    yield f"## encore {name}\n"
    yield f"{(inspect.getdoc(function) or '').splitlines()[0]}\n"
    configs: tuple[type[StageConfig], ...] = function.configs
    options = [one for model in configs for one in options_of(model)]
    options.sort(key=lambda one: not one.is_positional)
    if options:
        yield "| option | type | default | key | what it says |"
        yield "|---|---|---|---|---|"
        yield from (option_row(one) for one in options)
        yield ""


def option_row(option: Option) -> str:
    """One option as a row of the table."""
    field, about = option.field, about_option(option.field)
    default = (
        "required"
        if field.is_required()
        else _default(field.get_default(call_default_factory=True))
    )
    bounds = bounds_of(field)
    text = " ".join(
        part
        for part in (
            field.description or "",
            f"[{bounds}]" if bounds else "",
            f"({about['source']})" if about.get("source") else "",
        )
        if part
    )
    cells = (
        f"`{option.flag}`",
        _type_name(field.annotation),
        default,
        "yes" if about.get("identity", True) else "",
        text,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(value: Any) -> str:
    return "" if value in (None, (), {}) else f"`{value}`"


def _type_name(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(one) for one in arguments if one is not type(None))
    if origin in (tuple, list):
        return f"{_type_name(arguments[0])}, repeatable"
    if origin is dict:
        return "NAME=VALUE, repeatable"
    names = {int: "integer", float: "number", str: "text", bool: "flag", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


if __name__ == "__main__":
    PAGE.write_text(reference_page(), encoding="utf-8")
