"""Golden: names of commands and options; exit codes and messages of wrong calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import encore as package
from tests.golden.command_line import ENVIRONMENT, encore, encore_process
from tests.golden.conftest import GoldenStudy, find_product_file
from tests.golden.same import check_no_name_lost

COMMANDS = (
    *("demo", "ingest", "rate", "status", "show", "analyze", "weights", "theory", "report"),
    *("plan train", "train", "gate", "score", "benchmark", "judge", "compare", "paper"),
    *("export", "serve", "sql", "publish", "doctor"),
)
#: Titles of panels that group nothing.
NO_GROUP = {"Options", "Arguments", "Parameters", "Commands"}
FLOWS = ("demo", "evaluate", "pipeline", "rate_pairs", "score", "train_reward_model")


def options_of(text: str) -> list[str]:
    """Return every long option in the tables of a help text, not those in its prose."""
    rows = [line for line in text.splitlines() if re.match(r"\W*-", line)]
    names = {name for row in rows for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", row)}
    return sorted(names - {"--help", "--version"})


def groups_of(text: str) -> list[str]:
    """Return the titles of the panels that group options."""
    titles = [title.split(" (")[0] for title in re.findall(r"(?m)^╭─ (.+?) ─", text)]
    return [title for title in titles if title not in NO_GROUP]


def test_the_programs_help_names_every_command():
    text = encore("--help").out
    assert all(re.search(rf"(?m)^\W+{command.split()[0]} ", text) for command in COMMANDS)
    assert encore("--version").out == f"encore {package.__version__}\n"


def test_options_and_groups_of_every_command():
    """No name may be lost; new ones may be added."""
    texts = {command: encore(*command.split(), "--help") for command in COMMANDS}
    assert all(finished.code == 0 for finished in texts.values())
    check_no_name_lost(
        "options", {name: options_of(finished.out) for name, finished in texts.items()}
    )
    check_no_name_lost(
        "groups", {name: groups_of(finished.out) for name, finished in texts.items()}
    )


@pytest.mark.full
def test_options_of_every_flow():
    """Each flow runs in a process, because it imports Prefect."""
    texts = {}
    for flow in FLOWS:
        command = [sys.executable, "-m", f"flows.{flow}", "--help"]
        environment = {**os.environ, **ENVIRONMENT}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        texts[flow] = done.stdout
    check_no_name_lost("options-of-flows", {name: options_of(text) for name, text in texts.items()})


def test_public_python_names():
    check_no_name_lost("python", {"names": sorted(package.__all__)})
    assert all(getattr(package, name).__doc__ for name in package.__all__)


#: Arguments, exit code, and texts that the message must contain. STUDY has ratings, EMPTY is an
#: empty folder; `values_of_names` has the values of all names in capitals.
WRONG_CALLS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("nosuch", 2, ("nosuch",)),
    ("status --nosuch", 2, ("nosuch",)),
    ("status", 2, ("study",)),
    ("status nowhere", 1, ("nowhere",)),
    ("status EMPTY", 1, ("EMPTY",)),
    ("status STUDY --run ffff", 1, ("ffff",)),
    ("demo --backend nosuch", 2, ("backend", "nosuch")),
    ("ingest", 2, ("study",)),
    ("ingest NEW", 2, ("source",)),
    ("ingest nosuch.jsonl --out NEW", 1, ("nosuch.jsonl",)),
    ("ingest EMPTY --out NEW", 1, ("EMPTY",)),
    ("ingest =PAIRS --out NEW", 1, ("=",)),
    ("ingest mine=PAIRS mine=PAIRS --out NEW", 1, ("PAIRS",)),
    ("ingest mine=hh:BROKEN --out NEW", 1, ("BROKEN",)),
    ("ingest mine=PAIRS --prefer nicer --out NEW", 2, ("prefer", "nicer")),
    ("ingest mine=PAIRS --split test --out NEW", 1, ("split",)),
    ("rate STUDY", 2, ("judge",)),
    ("rate nowhere --judge JUDGE", 1, ("nowhere",)),
    ("rate STUDY --judge EMPTY", 1, ("config.json",)),
    ("rate STUDY --judge EMPTY/none", 1, ("EMPTY/none",)),
    ("rate STUDY --judge JUDGE --shard-size 0", 2, ("shard-size",)),
    ("rate STUDY --judge JUDGE --limit many", 2, ("limit",)),
    ("rate STUDY --judge JUDGE --backend nosuch", 2, ("backend", "nosuch")),
    ("rate STUDY --judge JUDGE --rules encore-11", 1, ("encore-11", "encore-10")),
    ("rate STUDY --judge JUDGE --shard 99", 1, ("99",)),
    ("rate STUDY --judge JUDGE --backend transformers --engine-arg a=1", 1, ("--backend", "vllm")),
    ("rate STUDY --judge JUDGE --engine-arg nonsense", 1, ("engine-arg", "nonsense")),
    ("show 0 --study nowhere", 1, ("nowhere",)),
    ("show zzzz --study STUDY", 1, ("zzzz",)),
    ("show", 2, ("pair",)),
    ("analyze nowhere", 1, ("nowhere",)),
    ("analyze BROKEN", 1, ("BROKEN",)),
    ("analyze RATINGS --run abc", 1, ("run",)),
    ("analyze OUTSIDE", 1, ("7.5",)),
    ("weights RATINGS --scheme nosuch", 1, ("nosuch", "encore")),
    ("weights RATINGS --tau 0", 1, ("tau", "0")),
    ("weights RATINGS --tau hot", 2, ("tau",)),
    ("weights RATINGS --scheme single --rule nosuch", 1, ("nosuch",)),
    ("weights RATINGS --scheme top-k --k 0", 1, ("k",)),
    ("weights RATINGS --compare --sweep", 2, ("compare", "sweep")),
    ("theory", 2, ("ratings",)),
    ("theory nowhere", 1, ("nowhere",)),
    ("theory RATINGS --synthetic", 2, ("synthetic",)),
    ("report nowhere", 1, ("nowhere",)),
    ("plan rating", 2, ("rating",)),
    ("plan rate STUDY", 2, ("judge",)),
    ("plan rate STUDY --judge JUDGE --gpu nosuch", 1, ("nosuch", "h100-80")),
    ("plan rate STUDY --judge JUDGE --price-input -1", 2, ("price-input",)),
    ("plan train", 2, ("pairs",)),
    ("plan train --pairs 100 --tokens-per-response 100 --gpu nosuch", 1, ("nosuch", "h100-80")),
    ("plan train --pairs 100 --tokens-per-response 100 --recipe nosuch", 1, ("nosuch", "lora")),
    ("plan train --pairs 100 --tokens-per-response 100 --utilisation 2", 2, ("utilisation",)),
    ("train STUDY", 2, ("backbone",)),
    ("train STUDY --backbone EMPTY", 1, ("config.json",)),
    ("train STUDY --backbone BACKBONE --learning-rate 0", 1, ("learning-rate", "0")),
    ("train STUDY --backbone BACKBONE --epochs 0", 2, ("epochs",)),
    ("train STUDY --backbone BACKBONE --layout nosuch", 2, ("layout", "nosuch")),
    ("train STUDY --backbone BACKBONE --evaluation-share 1.5", 1, ("evaluation-share", "1.5")),
    ("train STUDY --backbone BACKBONE --method nosuch", 2, ("method", "nosuch")),
    ("train STUDY --backbone BACKBONE --ratings nowhere", 1, ("nowhere",)),
    ("train STUDY --backbone BACKBONE --chat-template nowhere", 1, ("nowhere",)),
    ("gate STUDY", 2, ("model",)),
    ("gate STUDY --model nowhere", 1, ("nowhere",)),
    ("score STUDY", 2, ("model",)),
    ("score STUDY --model EMPTY", 1, ("EMPTY",)),
    ("score STUDY --model nowhere --dtype float99", 2, ("dtype", "float99")),
    ("benchmark STUDY --benchmark nosuch --model nowhere", 1, ("nosuch",)),
    ("benchmark STUDY --table html", 2, ("table", "html")),
    ("benchmark STUDY --results nowhere.parquet --benchmark SAFETY --data DATA", 1, ("nowhere",)),
    ("judge --judge JUDGE", 2, ("out",)),
    ("judge --judge JUDGE --out NEW --by nosuch", 2, ("by", "nosuch")),
    ("judge --judge JUDGE --out NEW --by rating", 1, ("weights-from",)),
    ("judge --judge EMPTY --out NEW --benchmark SAFETY --data DATA", 1, ("config.json",)),
    ("compare nowhere", 1, ("nowhere",)),
    ("compare EMPTY", 1, ("EMPTY",)),
    ("paper extra", 2, ("extra",)),
    ("export nowhere/none --out NEW", 1, ("nowhere/none",)),
    ("export EMPTY", 2, ("out",)),
    ("export EMPTY --out NEW --rule a --scheme encore", 2, ("rule", "scheme")),
    ("export EMPTY --out NEW --scheme encore", 2, ("ratings",)),
    ("serve EMPTY --port 70000", 2, ("port",)),
    ("serve EMPTY --port 0 --tau 1", 2, ("tau", "scheme")),
    ("serve EMPTY --port 0", 1, ("EMPTY",)),
    ("sql select --study nowhere", 1, ("nowhere",)),
    ("sql --study STUDY", 2, ("--query",)),
    ("sql --query nosuch --study STUDY", 1, ("nosuch", "entropy_accuracy")),
    ("sql @DROP --study STUDY", 1, ()),
    ("sql @FILE --study STUDY", 1, ()),
    ("sql @NOTABLE --study STUDY", 1, ("nosuch",)),
    ("publish nowhere", 1, ("nowhere",)),
    ("publish STUDY --run ffff", 1, ("ffff",)),
    ("doctor extra", 2, ("extra",)),
)


@pytest.fixture(scope="module")
def values_of_names(
    golden_study: GoldenStudy, fixed_ratings: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return the value of each name in capitals in `WRONG_CALLS`."""
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("wrong")
    (folder / "empty").mkdir()
    (folder / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    (folder / "broken.parquet").write_text("no Parquet")
    (folder / "broken.jsonl").write_text('{"prompt":\n')
    outside = pq.read_table(fixed_ratings)
    changed = [7.5, *outside["rating"].to_pylist()[1:]]
    column = outside.schema.get_field_index("rating")
    pq.write_table(outside.set_column(column, "rating", [changed]), folder / "outside.parquet")
    return {
        "STUDY": str(golden_study.folder),
        "EMPTY": str(folder / "empty"),
        "PAIRS": str(folder / "pairs.jsonl"),
        "BROKEN": str(folder / "broken.parquet"),
        "OUTSIDE": str(folder / "outside.parquet"),
        "NEW": str(folder / "new"),
        "JUDGE": str(golden_study.judge),
        "BACKBONE": str(golden_study.backbone),
        "RATINGS": str(fixed_ratings),
        "SAFETY": str(find_product_file("synthetic-safety.toml")),
        "DATA": str(find_product_file("synthetic-safety.jsonl.gz")),
        "@DROP": "drop table pairs",
        "@FILE": "select * from read_text('/etc/hostname')",
        "@NOTABLE": "select * from nosuch",
    }


def fill_in(text: str, values: dict[str, str]) -> str:
    """Replace the names in capitals by their values."""
    for name, value in values.items():
        text = re.sub(rf"(?<!\w){name}(?!\w)", value, text)
    return text


@pytest.mark.parametrize("call", WRONG_CALLS, ids=lambda call: call[0].replace("/", ":"))
def test_a_wrong_call(values_of_names, tmp_path, monkeypatch, call):
    """It ends with its exit code and one message that names the mistake, and writes nothing."""
    text, code, names = call
    monkeypatch.chdir(tmp_path)
    arguments = [fill_in(argument, values_of_names) for argument in text.split()]
    finished = encore(*arguments)
    message = " ".join(re.sub("[│╭╮╰╯─]", " ", finished.err).split())
    assert finished.code == code, message
    assert finished.out == ""
    assert "Traceback" not in message
    for name in names:
        assert fill_in(name, values_of_names).lower() in message.lower()
    if code == 1:
        assert len(re.findall(r"(?m)^error: ", finished.err)) == 1, finished.err
    assert not Path(values_of_names["NEW"]).exists()


def test_a_wrong_call_and_a_right_one_in_a_process(values_of_names):
    """A new process gives the same as this process."""
    wrong = encore_process("weights", values_of_names["RATINGS"], "--scheme", "nosuch")
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("error: ")
    right = encore_process("weights", values_of_names["RATINGS"], "--json")
    assert right.code == 0
    assert right.json == encore("weights", values_of_names["RATINGS"], "--json").json
