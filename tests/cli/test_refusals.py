"""Commands refuse bad input with one clear line and an exit code, and write nothing.

`tests/golden/test_golden_commands.py` has the calls that every version of the program refuses.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encore.serving.listening import listen

#: Exit code, arguments and message. The working directory has the studies ``fresh`` and ``rated``,
#: a ``gate``, and weights of other rules (``other.json``). MODEL is a model with three heads,
#: PORT a port in use.
REFUSALS = [
    (1, "browse nowhere", "nowhere: no such directory"),
    (1, "browse rated --run ffff", "ffff"),
    (1, "browse rated --port PORT", "Address already in use"),
    (1, "browse rated --host no.such.host.invalid", "--host no.such.host.invalid"),
    (2, "compare", "STUDIES is missing"),
    (2, "export MODEL --out new --rule be-kind --ratings .", "--ratings belongs to --scheme"),
    (1, "export MODEL --out new --rule be-late", "--rule be-late: the model has no such head"),
    (1, "export MODEL --out new --weights none.json", "weights none.json: cannot be used"),
    (
        1,
        "export MODEL --out new --scheme encore --ratings nowhere",
        "nowhere: no such file or folder",
    ),
    (1, "export gate --out new", "this is a gate"),
    (1, "export MODEL --out gate", "something else in it than an export"),
    (1, "export ./none --out new", "no such file or folder"),
    (1, "serve MODEL --port 0", "the model has 3 heads and a reward is one number"),
    (1, "serve MODEL --port 0 --weights other.json", "kindness among the weights"),
    (1, "serve MODEL --port 0 --rule kindness", "the model has no such head"),
    # An address that cannot be used is refused before a model is loaded.
    (1, "serve no/model --port PORT", "Address already in use"),
    (1, "serve no/model --host no.such.host.invalid --port 0", "no.such.host.invalid --port 0: "),
    (1, "sql --study rated --query nonsense", "expected one of"),
    (1, "sql --study rated --query weights_at", 'call it in a query: encore sql "from weights_at'),
]


@pytest.fixture(scope="module")
def folder(made_studies: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    for name in ("fresh", "rated"):
        (folder / name).symlink_to(made_studies / name)
    (folder / "gate").mkdir()
    (folder / "gate" / "gate.json").write_text("{}")
    (folder / "other.json").write_text(json.dumps({"be-kind": 0.5, "kindness": 0.5}))
    return folder


@pytest.mark.parametrize(("code", "arguments", "message"), REFUSALS)
def test_bad_input_is_refused_in_one_line(
    encore, folder, reward_model, monkeypatch, code, arguments, message
):
    monkeypatch.chdir(folder)
    with listen("127.0.0.1", 0) as listener:
        values = {"MODEL": reward_model, "PORT": listener.getsockname()[1]}
        finished = encore(*(values.get(argument, argument) for argument in arguments.split()))
    assert (finished.code, finished.out) == (code, "")
    assert message in " ".join(finished.err.replace("│", " ").split())
    if code == 1:
        assert finished.err.startswith("error: ")
        assert finished.err.count("\n") == 1
    assert not (folder / "new").exists()
