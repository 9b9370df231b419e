"""A config's field declares an option for the parser, the run's key and the reference page."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from encore.cli.reference import reference_page
from encore.core.command_parser import UsageError, build, command, new_app, run_main
from encore.core.config import StageConfig, identity_of, option
from encore.core.errors import InputError


class InnerConfig(StageConfig):
    model: str = option(name="backbone", help="Where to start.")
    length: int = option(8, ge=2, group="Input", help="Tokens.")


class OuterConfig(StageConfig):
    REPLACED_IN_KEYS = frozenset({"study", "threads"})
    study: Path = option(positional=True, help="The study.")
    inner: InnerConfig
    rate: float = option(0.5, gt=0, help="Speed.")
    kind: Literal["a", "b"] = option("a", help="Which.")
    sets: dict[str, bool | int | float | str] = option(dict, name="set", help="More.")
    threads: int = option(1, help="Changes no result.")
    later: int | None = option(None, help="Added after runs existed.")


def parse(*tokens: str) -> OuterConfig:
    configs: list[OuterConfig] = []

    def run(config: OuterConfig) -> None:
        """Collect."""
        configs.append(config)

    run.__annotations__["config"] = OuterConfig
    app = new_app("try", help="")
    app.default(command(run))
    app(list(tokens), exit_on_error=False, print_error=False)
    return configs[0]


def test_nested_configs_are_flattened_and_only_options_on_the_command_line_are_set():
    config = parse("here", "--backbone", "m", "--set", "n=4", "--set", "quant=fp8")
    assert config == OuterConfig(
        study=Path("here"), inner=InnerConfig(model="m"), sets={"n": 4, "quant": "fp8"}
    )
    assert "rate" not in config.model_fields_set


@pytest.mark.parametrize(
    ("path", "value", "kind", "message"),
    [
        (("inner", "length"), 1, UsageError, "--length 1"),
        (("kind",), "c", UsageError, "--kind 'c'"),
        (("rate",), 0, InputError, "--rate 0"),
    ],
)
def test_a_refusal_names_the_option_and_the_value(path, value, kind, message):
    values = {("study",): "s", ("inner", "model"): "m", path: value}
    with pytest.raises(kind, match=message):
        build(OuterConfig, values)


def test_the_key_has_the_options_that_change_results_and_are_not_the_default():
    base = {"study": Path("s"), "inner": InnerConfig(model="m")}
    assert identity_of(OuterConfig(**base)) == {"inner": {"model": "m"}}
    assert identity_of(OuterConfig(**base, threads=4, rate=0.5)) == identity_of(OuterConfig(**base))
    assert identity_of(OuterConfig(**base, later=3, sets={"n": 4})) == {
        "inner": {"model": "m"},
        "later": 3,
        "sets": {"n": 4},
    }


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (InputError("bad"), 1, "error: bad"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (OSError(28, "No space left", "f"), 1, "error: f: No space left"),
        (None, 0, ""),
    ],
)
def test_a_command_ends_with_one_line_and_an_exit_code(capsys, raised, code, message):
    app = new_app("try", help="")

    @app.default
    def run() -> None:
        if raised is not None:
            raise raised

    with pytest.raises(SystemExit) as end:
        run_main(app, [])
    assert end.value.code == code
    assert capsys.readouterr().err.startswith(message)


def test_the_reference_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "reference.md"
    assert page.read_text(encoding="utf-8") == reference_page(), (
        "run `python -m encore.cli.reference`"
    )
