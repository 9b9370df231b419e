"""Command-line parsers, generated from stage configs.

A command is a function of stage configs (`encore.core.config.StageConfig`), beside arguments whose
annotation has an `option` of its own, such as the study. `command` replaces each config by one
option per field, with nested configs flattened, and builds the configs from the user's values.
`run_main` runs a parser and turns errors and signals into one line and an exit code. The commands
of `encore` and ``python -m flows.NAME`` share both.
"""

from __future__ import annotations

import inspect
import json
import keyword
import logging
import os
import re
import signal
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, Union

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter
from cyclopts.exceptions import UnknownCommandError
from pydantic import BaseModel, JsonValue, ValidationError, create_model
from pydantic.fields import FieldInfo

from encore.core.config import StageConfig, option_metadata
from encore.core.errors import EncoreError, InputError, first_problem
from encore.core.extras import install_command, missing_package
from encore.core.folder_watches import sending_studies
from encore.core.stop_signals import call_stops
from encore.core.terminal import (
    VisibleFormatter,
    console,
    fail,
    is_json_due,
    is_verbose,
    print_json,
    say,
    say_next,
)

USAGE_ERROR, INTERRUPTED, TERMINATED = 2, 130, 143
#: Kinds of problems of a wrong call (exit code 2): closed bounds and choices, which a parser
#: checks. A problem with an open bound, or of several options, is an input error.
_WRONG_CALL = {"greater_than_equal", "less_than_equal", "literal_error", "missing", "enum"}

_ARGUMENTS = Group("Arguments", sort_key=0)
_OPTIONS = Group("Options", sort_key=1)
#: ``--no-NAME`` of a flag that is off by default is accepted, and not listed by the help.
_NEGATIVE_FLAG = re.compile(r"--no-([a-z-]+)")
#: An example of each form in which options take pairs.
_PAIR_EXAMPLES = {
    "NAME=VALUE": """tensor_parallel_size=4 or hf_overrides='{"max_position_embeddings": 4096}'""",
    "NAME=JSON": """top_p=0.9 or reasoning_effort='"low"'""",
}

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
    """SIGTERM: it stops a command as Ctrl-C does, with an exit code of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One field of a config on the command line.

    Attributes:
        flag: Name on the command line, e.g. ``--judge``; upper case for an argument.
        path: Names of the fields that lead to it through nested configs.
        field: The field of the config.
        metadata: `option_metadata` of the field.
        is_required: True if neither the field nor a config around it has a default.
    """

    flag: str
    path: tuple[str, ...]
    field: FieldInfo
    metadata: Mapping[str, Any]
    is_required: bool

    @property
    def parameter_name(self) -> str:
        """Return the name as a Python parameter."""
        name = self.flag.removeprefix("--").replace("-", "_").lower()
        return name + "_" * keyword.iskeyword(name)

    @property
    def takes_pairs(self) -> bool:
        """Return True if the option takes NAME=VALUE and may be repeated."""
        return typing.get_origin(self.field.annotation) is dict

    @property
    def pair_form(self) -> str:
        """Return the form of an option that takes pairs, e.g. ``NAME=VALUE``."""
        return self.metadata.get("metavar") or "NAME=VALUE"

    def parse(self, value: Any) -> Any:
        """Return the config's value for a value of the command line.

        Raises:
            InputError: A value of a repeated option is not NAME=VALUE or NAME=JSON.
        """
        if not (self.takes_pairs and isinstance(value, list)):
            return value
        pairs: dict[str, Any] = {}
        _, value_type = typing.get_args(self.field.annotation)
        for text in value:
            name, equals, pairs[name] = text.partition("=")
            if value_type is str:  # it may hold a secret: the config refuses it without showing it
                continue
            is_valid, number_or_json = bool(equals) and name.isidentifier(), None
            try:
                number_or_json = json.loads(pairs[name], parse_constant=_refuse_constant)
            except ValueError:
                is_text = value_type is not JsonValue and not pairs[name].startswith(("{", "["))
                is_valid = is_valid and is_text
            if not is_valid:
                raise InputError(
                    f"{self.flag} {text!r}: expected {self.pair_form}, e.g. "
                    f"{_PAIR_EXAMPLES[self.pair_form]}"
                )
            if value_type is JsonValue or isinstance(
                number_or_json, bool | int | float | dict | list
            ):
                pairs[name] = number_or_json
        return pairs


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(name)


def options_of(
    model: type[BaseModel], path: tuple[str, ...] = (), *, within_required: bool = True
) -> tuple[Option, ...]:
    """Return every option of a config in the order of its fields, nested configs flattened."""
    options: list[Option] = []
    for name, field in model.model_fields.items():
        metadata, field_path = option_metadata(field), (*path, name)
        is_required = within_required and field.is_required()
        if (nested := _config_in(field.annotation)) is not None:
            options += options_of(nested, field_path, within_required=is_required)
        elif not metadata.get("hidden"):
            option_name = metadata.get("name") or name.replace("_", "-")
            options.append(
                Option(
                    flag=option_name.upper() if metadata.get("positional") else f"--{option_name}",
                    path=field_path,
                    field=field,
                    metadata=metadata,
                    is_required=is_required,
                )
            )
    return tuple(options)


def build(model: type[StageConfig], values: Mapping[tuple[str, ...], Any]) -> StageConfig:
    """Build a config from values by path. All other fields keep their defaults.

    Raises:
        UsageError: A value out of its bounds: the option, the value, what was expected.
        InputError: Values that only the config's own checks refuse.
    """
    tree: dict[str, Any] = {}
    required = [option.path for option in options_of(model) if option.is_required]
    for path in (*required, *values):  # so pydantic names the missing field and not its config
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
    """Return a parser without commands."""
    return App(
        name=name,
        help=help,
        version=version,
        group_arguments=_ARGUMENTS,
        group_parameters=_OPTIONS,
        result_action="return_value",
    )


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function with one parameter per option in place of its config parameters."""
    hints = typing.get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    own_options = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in signature.parameters.items()
        if any(isinstance(part, FieldInfo) for part in typing.get_args(hints[name]))
    }
    configs: dict[str, type[StageConfig]] = {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, StageConfig)
    }
    arguments = create_model("Arguments", __base__=StageConfig, **own_options)  # type: ignore[call-overload]
    models: dict[str, type[StageConfig]] = {"": arguments, **configs}
    options = {name: options_of(model) for name, model in models.items()}
    plain = [
        parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in signature.parameters.values()
        if parameter.name not in {*configs, *own_options}
    ]

    def run(*positional: Any, **keywords: Any) -> None:
        """Build the configs of the parsed options, and call the function with them."""
        names = [parameter.name for parameter in ordered]
        values = dict(zip(names, positional, strict=False)) | keywords

        def built(name: str, model: type[StageConfig]) -> StageConfig:
            value_by_path = {
                option.path: option.parse(values.pop(option.parameter_name))
                for option in options[name]
                if option.parameter_name in values
            }
            return build(model, value_by_path)

        own_values = dict(built("", arguments))
        function(
            **own_values, **{name: built(name, model) for name, model in configs.items()}, **values
        )

    all_options = [option for of_config in options.values() for option in of_config]
    # A panel of the help text for each group, in the order of their first options.
    titles = dict.fromkeys(
        title for option in all_options if (title := option.metadata.get("group"))
    )
    groups = {title: Group(title, sort_key=key) for key, title in enumerate(titles, start=2)}
    ordered = sorted(
        (_parameter(option, groups) for option in all_options), key=lambda option: option.kind
    )
    run.__signature__ = inspect.Signature([*ordered, *plain])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*ordered, *plain)}
    run.__doc__ = function.__doc__
    run.__name__ = function.__name__
    run.usage = _usage(all_options)  # type: ignore[attr-defined]
    return run


def single_command(function: Callable[..., None], *, name: str) -> App:
    """Return a parser of one function without a command name: ``python -m flows.rate_pairs``."""
    app = new_app(name, help=inspect.getdoc(function) or "")
    app.default(run := command(function))
    app.usage = f"Usage: {name} {run.usage}"  # type: ignore[attr-defined]
    return app


def run_main(app: App, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a parser and exit with a code.

    It is 0, 1 (error), 2 (usage), 3 (incomplete), 4 (check failed), 130 (interrupted) or 143
    (terminated).
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # else a character outside the terminal's encoding is fatal
            reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:  # prints the warnings of the library
        logging.lastResort.setFormatter(VisibleFormatter())
    arguments = sys.argv[1:] if arguments is None else arguments
    is_json_due.set("--json" in arguments)
    is_verbose.set("--verbose" in arguments)
    try:
        with _stopping_on_signals(), sending_studies(), _naming_missing_extras(app, arguments):
            called, bound, _ = app.parse_args(
                _in_parsers_form(arguments),
                exit_on_error=False,
                print_error=False,
                help_on_error=False,
            )
            called(*bound.args, **bound.kwargs)
            sys.stdout.flush()
    except CycloptsError as error:
        listed = "commands" if isinstance(error, UnknownCommandError) else "options"
        problem = _usage_problem(error)
        end = " " if problem.endswith("?") else "; "
        _exit(f"{problem}{end}`--help` lists the {listed}", exit_code=USAGE_ERROR)
    except EncoreError as error:
        _exit(str(error), exit_code=error.exit_code)
    except KeyboardInterrupt as error:
        is_term = isinstance(error, TerminatedError)
        event, exit_code = ("terminated", TERMINATED) if is_term else ("interrupted", INTERRUPTED)
        kept = "; ".join(getattr(error, "__notes__", ())) or "finished work is kept"
        _exit(
            f"{event}; {kept}, the same command continues",
            exit_code=exit_code,
            next_command=[*app.name[0].split(), *arguments],
        )
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # `| head` has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        file = error.filename or "writing a file"
        _exit(
            f"{file}: {error.strerror or error}; finished work is kept: put this right and run "
            "the same command again",
            exit_code=1,
        )
    sys.exit(0)


@contextmanager
def _stopping_on_signals() -> Iterator[None]:
    """Inside the block, turn SIGINT and SIGTERM into exceptions and say so at once.

    Work that must be finished first can take seconds.
    """
    raised: list[KeyboardInterrupt] = []

    def stop(number: int, _frame: types.FrameType | None) -> None:
        say("stopping …")
        call_stops()
        raised.append(TerminatedError() if number == signal.SIGTERM else KeyboardInterrupt())
        raise raised[-1]

    earlier_handlers = {
        number: signal.signal(number, stop)
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    except RuntimeError as error:  # DuckDB raises it in place of the handler's exception
        if raised:
            raise raised[-1] from error
        raise
    finally:
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)


@contextmanager
def _naming_missing_extras(app: App, arguments: Sequence[str]) -> Iterator[None]:
    """Inside the block, make an error that names the extra of a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = str(error.name).partition(".")[0]
        if not install_command(module):
            raise  # no package of an extra: a defect
        called = " ".join((*app.name, *app.parse_commands(arguments)[0]))
        raise EncoreError(missing_package(called, module)) from error


def _exit(message: str, *, exit_code: int, next_command: Sequence[str] = ()) -> NoReturn:
    console.quiet = False
    fail(message)
    if next_command:
        say_next(*next_command[1:], program=next_command[0])
    if is_json_due.get():
        print_json({"error": {"message": message, "exit_code": exit_code}})
    sys.exit(exit_code)


def _in_parsers_form(arguments: Sequence[str]) -> list[str]:
    """Return a call without ``--no-NAME`` and ``--verbose``, which the parser does not know."""
    return [
        _NEGATIVE_FLAG.sub(r"--\1=False", argument)
        for argument in arguments
        if argument != "--verbose"
    ]


def _usage_problem(error: CycloptsError) -> str:
    """Return the mistake of a wrong call; a missing argument is explained by its help."""
    is_missing = isinstance(error, MissingArgumentError) and error.keyword is None
    argument = error.argument if is_missing else None
    if argument is None or argument.tokens:  # of the commands, the message names only the first
        return str(error).partition(" Available commands")[0].rstrip(".")
    sentence = (argument.parameter.help or "").partition(". ")[0].rstrip(".")
    return f"{argument.name} is missing: {sentence[:1].lower()}{sentence[1:]}"


def _usage(options: Sequence[Option]) -> str:
    """Return the arguments and the required options of a command, e.g. ``STUDY [OPTIONS]``."""
    usage = []
    for option in sorted(options, key=lambda option: option.flag.startswith("--")):
        name, kind = option.flag, typing.get_origin(option.field.annotation)
        if not name.startswith("--"):
            if kind in (list, tuple):
                name = option.metadata.get("metavar") or f"{name}..."
            usage.append(name if option.is_required else f"[{name}]")
        elif option.is_required:
            value = option.metadata.get("metavar") or option.parameter_name.upper()
            usage.append(f"{name} {value}")
    return " ".join((*usage, "[OPTIONS]"))


def _config_in(annotation: Any) -> type[StageConfig] | None:
    """Return the config class of an annotation such as ``Config | None``; None without one."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        members = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return _config_in(members[0]) if len(members) == 1 else None
    is_config = isinstance(annotation, type) and issubclass(annotation, StageConfig)
    return annotation if is_config else None


def _parameter(option: Option, groups: Mapping[str, Group]) -> inspect.Parameter:
    field, metadata = option.field, option.metadata
    is_positional = bool(metadata.get("positional"))
    is_required, bounds, source = option.is_required, _bounds_of(field), metadata.get("source")
    text = (field.description or "") + f" [{bounds}]" * bool(bounds)
    has_default = field.default_factory is None and not field.is_required()
    default = field.default if has_default else None
    annotation: Any = list[str] | None if option.takes_pairs else field.annotation
    if default is None and not is_required:
        annotation = annotation | None
    parameter = Parameter(
        name=option.flag,
        help=text + f" ({source})" * bool(source),
        group=_ARGUMENTS if is_positional else groups.get(metadata.get("group", ""), _OPTIONS),
        metavar=option.pair_form if option.takes_pairs else metadata.get("metavar"),
        show_default=bool(default) and not is_required,
        allow_repeating=True,  # the last value counts, so that scripts can append
        negative="" if default is False or field.annotation not in (bool, bool | None) else None,
    )
    return inspect.Parameter(
        option.parameter_name,
        inspect.Parameter.POSITIONAL_ONLY if is_positional else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if is_required else default,
        annotation=Annotated[annotation, parameter],
    )


def _bounds_of(field: FieldInfo) -> str:
    """Return a field's bounds as text, e.g. ``≥ 1, ≤ 100``."""
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    return ", ".join(
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in signs
        if hasattr(bound, name)
    )


def _refusal(model: type[BaseModel], error: ValidationError) -> EncoreError:
    """Return the error of a refused value: its option, the value, what was expected."""
    problem = first_problem(error)
    path = tuple(part for part in problem.location if isinstance(part, str))
    options = (option for option in options_of(model) if option.path == path[: len(option.path)])
    if (refused := next(options, None)) is None:
        return InputError(problem.message)
    bounds = refused.field.metadata
    has_open_bound = any(hasattr(bound, "gt") or hasattr(bound, "lt") for bound in bounds)
    is_wrong_call = problem.kind in _WRONG_CALL and not has_open_bound
    kind = UsageError if is_wrong_call else InputError
    return kind(f"{refused.flag} {problem.value!r}: {problem.message}")
