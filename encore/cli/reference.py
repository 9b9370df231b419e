"""The page with every option of every command, generated from the stages' configs.

``python -m encore.cli.reference`` writes it to ``docs/reference.md``.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from encore.cli.app import COMMANDS, command_of
from encore.options import bounds_of, options_of

PAGE = Path("docs/reference.md")
_HEAD = """# Reference

Every option of every command, generated from the configs (`python -m encore.cli.reference`). Flows,
recipes (TOML) and Prefect's forms take the same fields, except for those that say how a result is
printed. *Key* says whether an option is part of a run's key: changing it makes another run beside
the existing one. Commands without this column make no run.
"""
#: The commands whose results lie under a key.
_KEYED = {"rate", "train", "score", "benchmark", "judge"}


def reference_page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *(line for name in COMMANDS for line in _command_lines(name))])


def _command_lines(name: str) -> Iterator[str]:
    function = command_of(name)
    yield f"## encore {name}\n"
    yield f"{(inspect.getdoc(function) or '').splitlines()[0]}\n"
    columns = ["option", "type", "default", "key", "what it says"]
    for cells in [columns, ["---"] * len(columns), *_rows(function)]:
        shown = cells if name in _KEYED else [*cells[:3], *cells[4:]]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in shown) + " |"
    yield ""


def _rows(function: Callable[..., None]) -> Iterator[list[str]]:
    """The cells of each option: arguments, options of configs, then how results are printed."""
    options = [one for model in function.configs for one in options_of(model)]  # type: ignore[attr-defined]  # set by `command`
    for option in sorted(options, key=lambda one: not one.about.get("positional")):
        field, about = option.field, option.about
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        bounds, source = bounds_of(field), about.get("source")
        text = (field.description or "") + f" [{bounds}]" * bool(bounds)
        yield [
            f"`{option.flag}`",
            _type_name(field.annotation),
            "required"
            if option.is_required
            else ""
            if default in (None, (), {})
            else f"`{default}`",
            "yes" * about.get("identity", True),
            text + f" ({source})" * bool(source),
        ]
    known = {option.parameter_name for option in options}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in known:
            annotation, about_it = typing.get_args(parameter.annotation)
            flag, default = f"`--{name.replace('_', '-')}`", f"`{parameter.default}`"
            yield [flag, _type_name(annotation), default, "", about_it.help]


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
