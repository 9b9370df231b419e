"""Write the entries of `python.md`, the page on Python, from signatures and docstrings.

A line ``::: NAME`` of the page becomes the entry of that function or class. ``::: NAME = PATH`` is
the object at PATH, which the page calls NAME. The site's build calls `on_page_markdown`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from importlib import import_module
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

#: A line of the page that an entry replaces: the name that it shows, and the path if it differs.
ENTRY = re.compile(r"^::: (\S+)(?: = (\S+))?$", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put the entries into the page `python.md`."""
    if page.file.src_uri != "python.md":
        return markdown
    return ENTRY.sub(lambda match: entry(match[1], match[2] or match[1]), markdown)


def entry(name: str, path: str) -> str:
    """Return the entry of a function or a class as Markdown.

    Args:
        name: Name that the page gives it, e.g. ``encore.rate``.
        path: Module and name of the object.
    """
    public = object_at(path)
    parts = [f"### {name}"]
    is_class = isinstance(public, type)
    is_config = is_class and issubclass(public, BaseModel)
    if is_config:
        parts += [docstring_as_markdown(public), _fields_table(public)]
    elif is_class and (dataclasses.is_dataclass(public) or issubclass(public, Exception)):
        parts.append(docstring_as_markdown(public))
    else:
        parts += [_signature(name, public), docstring_as_markdown(public)]
    for method_name, method in vars(public).items() if is_class and not is_config else ():
        if inspect.isfunction(method) and not method_name.startswith("_"):
            parts += [_signature(f"{name.rpartition('.')[2]}.{method_name}", method)]
            parts += [docstring_as_markdown(method)]
    for record in _returned_records(public) if inspect.isfunction(public) else ():
        parts += [f"**Returns `{record.__name__}`**", docstring_as_markdown(record)]
    return "\n\n".join(parts)


def object_at(path: str) -> Any:
    """Return the object with this module and name."""
    module, _, attribute = path.rpartition(".")
    return getattr(import_module(module), attribute)


def docstring_as_markdown(public: object) -> str:
    """Return a docstring as Markdown: its text, its examples as code, its sections as lists."""
    text, *sections = _SECTION.split(inspect.getdoc(public) or "")
    parts = [re.sub(r"(?m)^>>> .*(?:\n.+)*", r"```python\n\g<0>\n```", text.strip())]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        rows = [" ".join(row.split()) for row in re.split(r"\n(?=    \S)", body.strip("\n"))]
        rows = [re.sub(r"^([*\w]+): ", r"`\1`: ", row) for row in rows]
        heading = "Arguments" if title == "Args" else title
        parts.append("\n".join([f"**{heading}**", "", *(f"- {row}" for row in rows)]))
    return "\n\n".join(parts)


def _signature(name: str, function: Any) -> str:
    """Return a block of code with a function's parameters, one a line if they are many."""
    signature = inspect.signature(function)
    parameters: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "…" if " at 0x" in repr(parameter.default) else repr(parameter.default)
        text = f"{stars}{parameter.name}: {parameter.annotation}"
        parameters.append(
            f"{text} = {default}" if parameter.default is not signature.empty else text
        )
    returned = signature.return_annotation
    end = ")" if returned in (signature.empty, "None") else f") -> {returned}"
    line = f"{name}({', '.join(parameters)}{end}"
    if len(line) > 88:
        line = "\n".join([f"{name}(", *(f"    {text}," for text in parameters), end])
    return f"```python\n{line}\n```"


def _returned_records(function: Any) -> list[type]:
    """Return the records of ENCORE that a function returns."""
    module = import_module(function.__module__)
    names = re.findall(r"\w+", str(inspect.signature(function).return_annotation))
    classes = [getattr(module, name, None) for name in names]
    return [c for c in classes if isinstance(c, type) and c.__module__.startswith("encore.")]


def _fields_table(config: type[BaseModel]) -> str:
    """Return a table of a config's fields: type, default and meaning of each."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in config.model_fields.items():
        type_name = _type_name(field.annotation)
        meaning = field.description or f"See {type_name}. A dict with its fields will do."
        cells = [f"`{name}`", type_name, _default(field), meaning]
        rows.append("| " + " | ".join(map(_escaped, cells)) + " |")
    return "\n".join(rows)


def _type_name(annotation: Any) -> str:
    """Return the name of a type without its bounds: ``int | None``, ``"text" | "choice"``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return " | ".join(
            f'"{value}"' if isinstance(value, str) else str(value) for value in arguments
        )
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in arguments)
    if annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "…"
    name = getattr(origin or annotation, "__name__", str(annotation))
    return f"{name}[{', '.join(map(_type_name, arguments))}]" if arguments else str(name)


def _escaped(cell: str) -> str:
    """Return the text of a cell in which nothing ends the cell or is read as HTML."""
    return cell.replace("|", "\\|").replace("<", "&lt;")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return f"`{type(value).__name__}()`"
    return "" if value is None or value == {} or value == () else f"`{value!r}`".replace("'", '"')
