"""Command-line parsers, generated from stage configs.

A command is a function whose first parameters are stage configs (`encore.core.config.StageConfig`);
`command` replaces each of them by one option per field, nested configs flattened, and builds the
configs from what the user gave. `run_main` runs a parser and turns errors and signals into one line
and an exit code. The commands of `encore` and ``python -m flows.NAME`` share both.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, Union

from cyclopts import App, CycloptsError, Group, Parameter
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from encore.core.config import StageConfig, about_option
from encore.core.errors import EncoreError, InputError, first_problem
from encore.core.stopping import call_stops
from encore.core.terminal import console, fail, say

USAGE_ERROR, INTERRUPTED, TERMINATED = 2, 130, 143
#: Closed bounds and choices are the parser's to check: breaking one is a wrong call. What has an
#: open bound, or concerns several options, is an input error.
_WRONG_CALL = {"greater_than_equal", "less_than_equal", "literal_error", "missing", "enum"}

_ARGUMENTS = Group("Arguments", sort_key=0)
_OPTIONS = Group("Options", sort_key=1)

JsonOption = Annotated[
    bool,
    Parameter(
        negative="",
        show_default=False,
        group=_OPTIONS,
        help="Print the result as JSON on stdout and nothing else there.",
    ),
]


class UsageError(EncoreError):
    """The command line does not fit the command."""

    exit_code = USAGE_ERROR


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: stop like Ctrl-C does, but with its own exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One field of a config on the command line; ``path`` leads to it through nested configs.

    ``about`` is what `option` was told of it. A field without default is not required
    where a config around it has one.
    """

    flag: str
    path: tuple[str, ...]
    field: FieldInfo
    about: Mapping[str, Any]
    is_required: bool

    @property
    def parameter_name(self) -> str:
        """The name as a Python parameter."""
        return self.flag.removeprefix("--").replace("-", "_").lower()

    @property
    def takes_pairs(self) -> bool:
        """Whether it is given as NAME=VALUE, several times."""
        return typing.get_origin(self.field.annotation) is dict

    def parsed(self, given: Any) -> Any:
        """The config's value for what was given on the command line."""
        if not (self.takes_pairs and isinstance(given, list)):
            return given
        pairs = {}
        for text in given:
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise InputError(
                    f"{self.flag} {text!r}: expected NAME=VALUE, e.g. tensor_parallel_size=4"
                )
            pairs[name] = value
            with suppress(ValueError):
                if isinstance(number := json.loads(value), bool | int | float):
                    pairs[name] = number
        return pairs


def options_of(
    model: type[BaseModel], path: tuple[str, ...] = (), *, within_required: bool = True
) -> tuple[Option, ...]:
    """Every option of a config in the order of its fields, nested configs flattened."""
    found: list[Option] = []
    for name, field in model.model_fields.items():
        about, here = about_option(field), (*path, name)
        is_required = within_required and field.is_required()
        if (nested := _config_in(field.annotation)) is not None:
            found += options_of(nested, here, within_required=is_required)
        elif not about.get("hidden"):
            word = about.get("name") or name.replace("_", "-")
            flag = word.upper() if about.get("positional") else f"--{word}"
            one = Option(flag=flag, path=here, field=field, about=about, is_required=is_required)
            found.append(one)
    return tuple(found)


def build(model: type[StageConfig], values: Mapping[tuple[str, ...], Any]) -> StageConfig:
    """The config that given values describe; fields that were not given keep their defaults.

    Raises:
        UsageError: A value out of its bounds: the option, the value, what was expected.
        InputError: Values that only the config's own checks refuse.
    """
    tree: dict[str, Any] = {}
    required = [one.path for one in options_of(model) if one.is_required]
    for path in (*required, *values):  # what is missing is then missed where it belongs
        branch = tree
        for name in path[:-1]:
            branch = branch.setdefault(name, {})
        if path in values:
            branch[path[-1]] = values[path]
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise _refusal(model, error) from error


def new_app(name: str, *, help: str, version: Callable[[], str] | None = None) -> App:  # noqa: A002
    """A parser to which commands are added."""
    return App(
        name=name,
        help=help,
        version=version,
        group_arguments=_ARGUMENTS,
        group_parameters=_OPTIONS,
        result_action="return_value",
    )


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function with one parameter per option in place of its parameters that are configs."""
    hints = typing.get_type_hints(function, include_extras=True)
    configs = {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, StageConfig)
    }
    options = {name: options_of(model) for name, model in configs.items()}
    signature = inspect.signature(function)
    plain = [
        parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in signature.parameters.values()
        if parameter.name not in configs
    ]

    def run(*positional: Any, **given: Any) -> None:
        values = dict(zip([one.name for one in ordered], positional, strict=False)) | given
        built: dict[str, StageConfig] = {}
        for name, model in configs.items():
            there = [one for one in options[name] if one.parameter_name in values]
            own = {one.path: one.parsed(values.pop(one.parameter_name)) for one in there}
            built[name] = build(model, own)
        function(**built, **values)

    every = [one for found in options.values() for one in found]
    # A panel of the help text for each group, in the order of their first options.
    names = dict.fromkeys(group for one in every if (group := one.about.get("group")))
    groups = {name: Group(name, sort_key=place) for place, name in enumerate(names, start=2)}
    ordered = sorted((_parameter(one, groups) for one in every), key=lambda one: one.kind)
    run.__signature__ = inspect.Signature([*ordered, *plain])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*ordered, *plain)}
    run.__doc__ = function.__doc__
    run.__name__ = function.__name__
    return run


def single_command(function: Callable[..., None], *, name: str) -> App:
    """A parser for one function without a command name, e.g. ``python -m flows.rate_pairs``."""
    app = new_app(name, help=inspect.getdoc(function) or "")
    app.default(command(function))
    return app


def run_main(app: App, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a parser and exit: 0, 1 error, 2 usage, 3 incomplete, 130 interrupted, 143 terminated."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # otherwise a terminal without Unicode ends the command
            reconfigure(errors="backslashreplace")
    try:
        with _told_of_signals():
            called, bound, _ = app.parse_args(
                arguments, exit_on_error=False, print_error=False, help_on_error=False
            )
            called(*bound.args, **bound.kwargs)
    except CycloptsError as error:
        what = str(error).rstrip(".")
        _exit(f"{what}; `--help` lists the options", exit_code=USAGE_ERROR)
    except EncoreError as error:
        _exit(str(error), exit_code=error.exit_code)
    except KeyboardInterrupt as error:
        is_term = isinstance(error, TerminatedError)
        word, exit_code = ("terminated", TERMINATED) if is_term else ("interrupted", INTERRUPTED)
        _exit(f"{word}; finished work is kept, the same command continues", exit_code=exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has seen enough
    except OSError as error:
        where = error.filename or "writing a file"
        _exit(
            f"{where}: {error.strerror or error}; finished work is kept: put this right and run "
            "the same command again",
            exit_code=1,
        )
    sys.exit(0)


@contextmanager
def _told_of_signals() -> Iterator[None]:
    """Say at once that a signal was heard: to finish what is at work can take seconds."""
    heard: list[KeyboardInterrupt] = []

    def stop(number: int, _frame: types.FrameType | None) -> None:
        say("stopping …")
        call_stops()
        heard.append(TerminatedError() if number == signal.SIGTERM else KeyboardInterrupt())
        raise heard[-1]

    before = {
        number: signal.signal(number, stop)
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    except RuntimeError as error:  # what DuckDB raises in the place of the handler's exception
        if heard:
            raise heard[-1] from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(message: str, *, exit_code: int) -> NoReturn:
    console.quiet = False
    fail(message)
    sys.exit(exit_code)


def _config_in(annotation: Any) -> type[StageConfig] | None:
    """The config class of an annotation, through ``| None``."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        rest = [one for one in typing.get_args(annotation) if one is not type(None)]
        return _config_in(rest[0]) if len(rest) == 1 else None
    is_config = isinstance(annotation, type) and issubclass(annotation, StageConfig)
    return annotation if is_config else None


def _parameter(option: Option, groups: Mapping[str, Group]) -> inspect.Parameter:
    field, about = option.field, option.about
    is_positional, alias = bool(about.get("positional")), about.get("alias")
    is_required, bounds, source = option.is_required, _bounds_of(field), about.get("source")
    text = (field.description or "") + f" [{bounds}]" * bool(bounds)
    has_default = field.default_factory is None and not field.is_required()
    default = field.default if has_default else None
    annotation: Any = list[str] | None if option.takes_pairs else field.annotation
    if default is None and not is_required:
        annotation = annotation | None
    shown = Parameter(
        name=(option.flag, f"--{alias}") if alias else option.flag,
        help=text + f" ({source})" * bool(source),
        group=_ARGUMENTS if is_positional else groups.get(about.get("group", ""), _OPTIONS),
        metavar="NAME=VALUE" if option.takes_pairs else about.get("metavar"),
        show_default=bool(default) and not is_required,
        allow_repeating=True,  # the last one counts, so that scripts can append
        negative=None if field.annotation in (bool, bool | None) else "",
    )
    return inspect.Parameter(
        option.parameter_name,
        inspect.Parameter.POSITIONAL_ONLY if is_positional else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if is_required else default,
        annotation=Annotated[annotation, shown],
    )


def _bounds_of(field: FieldInfo) -> str:
    """A field's bounds in a few words, e.g. ``≥ 1, ≤ 100``."""
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    return ", ".join(
        f"{sign} {getattr(one, name)}"
        for one in field.metadata
        for name, sign in signs
        if hasattr(one, name)
    )


def _refusal(model: type[BaseModel], error: ValidationError) -> EncoreError:
    problem = first_problem(error)
    where = tuple(part for part in problem.location if isinstance(part, str))
    found = next((one for one in options_of(model) if one.path == where[: len(one.path)]), None)
    if found is None:
        return InputError(problem.message)
    has_open_bound = any(hasattr(one, "gt") or hasattr(one, "lt") for one in found.field.metadata)
    is_wrong_call = problem.kind in _WRONG_CALL and not has_open_bound
    kind = UsageError if is_wrong_call else InputError
    return kind(f"{found.flag} {problem.value!r}: {problem.message}")
