"""Commands refuse bad input with one clear line and an exit code, and write nothing."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from encore.core.listening import listen
from encore.demo import BENCHMARK_DATA_PATH, BENCHMARK_PATH
from tests.worlds.ratings import ratings_table, table_of

#: Exit code, call, and texts that the message contains. The working directory has the studies
#: ``fresh`` and ``rated``, a ``model`` with three heads, a ``judge``, an empty folder ``hollow``, a
#: ``gate``, weights of other rules (``other.json``) and ratings of which one is 7.5
#: (``outside.parquet``). PORT is a port in use.
REFUSALS = [
    (2, "nosuch", "nosuch"),
    (2, "status --nosuch", "nosuch"),
    (2, "status", "study"),
    (1, "status nowhere", "nowhere"),
    (1, "status hollow", "hollow"),
    (1, "status rated --run ffff", "ffff"),
    (2, "demo --backend nosuch", "backend", "nosuch"),
    (2, "ingest", "study"),
    (2, "ingest new", "source"),
    (1, "ingest new nosuch.jsonl", "nosuch.jsonl"),
    (1, "ingest new hollow", "hollow"),
    (1, "ingest new =pairs.jsonl", "="),
    (1, "ingest new mine=pairs.jsonl mine=pairs.jsonl", "pairs.jsonl"),
    (1, "ingest new mine=hh:broken.parquet", "broken.parquet"),
    (2, "ingest new mine=pairs.jsonl --prefer nicer", "prefer", "nicer"),
    (1, "ingest new mine=pairs.jsonl --split test", "split"),
    (2, "rate rated", "judge"),
    (1, "rate nowhere --judge judge", "nowhere"),
    (1, "rate rated --judge hollow", "config.json"),
    (1, "rate rated --judge ./hollow/none", "hollow/none"),
    (2, "rate rated --judge judge --shard-size 0", "shard-size"),
    (2, "rate rated --judge judge --limit many", "limit"),
    (2, "rate rated --judge judge --backend nosuch", "backend", "nosuch"),
    (1, "rate rated --judge judge --rules encore-11", "encore-11", "encore-10"),
    (1, "rate rated --judge judge --shard 99", "99"),
    (1, "rate rated --judge judge --backend transformers --engine-arg a=1", "--backend", "vllm"),
    (1, "rate rated --judge judge --engine-arg nonsense", "engine-arg", "nonsense"),
    (1, "rate rated --judge judge --engine-arg hf_overrides={a:1}", "{a:1}", "NAME=VALUE"),
    (1, "rate rated --judge judge --request-field top_p=high", "top_p=high", "NAME=JSON"),
    (1, "rate rated --judge judge --request-field top_p=NaN", "top_p=NaN", "NAME=JSON"),
    (1, "rate rated --judge judge --header X-Key:secret", "NAME=ENV:VARIABLE"),
    (1, "show nowhere 0", "nowhere"),
    (1, "show rated zzzz", "zzzz"),
    (2, "show", "pair"),
    (1, "analyze nowhere", "nowhere"),
    (1, "analyze broken.parquet", "broken.parquet"),
    (1, "analyze ratings.parquet --run abc", "run"),
    (1, "analyze outside.parquet", "7.5"),
    (1, "weights ratings.parquet --scheme nosuch", "nosuch", "encore"),
    (1, "weights ratings.parquet --tau 0", "tau", "0"),
    (2, "weights ratings.parquet --tau hot", "tau"),
    (1, "weights ratings.parquet --scheme single --rule nosuch", "nosuch"),
    (1, "weights ratings.parquet --scheme top-k --k 0", "k"),
    (2, "weights ratings.parquet --compare --sweep", "compare", "sweep"),
    (1, "paper nowhere", "nowhere"),
    (1, "report nowhere", "nowhere: no such file"),
    (1, "report rated --out pairs.jsonl", "is a file"),
    (2, "plan rating", "rating"),
    (2, "plan rate rated", "judge"),
    (2, "plan rate rated --judge judge --price-input -1", "price-input"),
    (2, "plan train", "pairs"),
    (1, "plan train --pairs 100 --tokens-per-response 100 --recipe nosuch", "nosuch", "lora"),
    (2, "train rated", "backbone"),
    (1, "train rated --backbone hollow", "config.json"),
    (1, "train rated --backbone judge --learning-rate 0", "learning-rate", "0"),
    (2, "train rated --backbone judge --epochs 0", "epochs"),
    (2, "train rated --backbone judge --layout nosuch", "layout", "nosuch"),
    (1, "train rated --backbone judge --evaluation-share 1.5", "evaluation-share", "1.5"),
    (2, "train rated --backbone judge --method nosuch", "method", "nosuch"),
    (1, "train rated --backbone judge --ratings nowhere", "nowhere"),
    (1, "train rated --backbone judge --chat-template nowhere", "nowhere"),
    (2, "gate rated", "model"),
    (1, "gate rated --model nowhere", "nowhere"),
    (2, "score rated", "model"),
    (1, "score rated --model hollow", "hollow"),
    (2, "score rated --model nowhere --dtype float99", "dtype", "float99"),
    (1, "benchmark rated --benchmark nosuch --model nowhere", "nosuch"),
    (2, "benchmark rated --table html", "table", "html"),
    (
        1,
        "benchmark rated --results nowhere --benchmark safety.toml --data safety.jsonl.gz",
        "nowhere",
    ),
    (2, "judge --judge judge", "out"),
    (2, "judge --judge judge --out new --by nosuch", "by", "nosuch"),
    (1, "judge --judge judge --out new --by rating", "weights-from"),
    (
        1,
        "judge --judge hollow --out new --benchmark safety.toml --data safety.jsonl.gz",
        "config.json",
    ),
    (2, "judge --judge m --out new --scheme encore --tau 1", "--tau 1.0: changes nothing"),
    (2, "judge --judge m --out new --rules encore-20", "encore-20: changes nothing with --by pair"),
    (2, "judge --judge m --out new --weights-from x --weights-run ab", "ab: changes nothing"),
    (1, "judge --judge m --out new --by rating --tau 1", "--by rating needs --weights-from"),
    (
        2,
        "judge --judge m --out new --by rating --weights-from x --protocol explained",
        "changes nothing with --by rating",
    ),
    (
        1,
        "judge --judge m --out new --by rating --weights-from x --max-reply-tokens 513",
        "by rating a reply has at most 512",
    ),
    (1, "compare nowhere", "nowhere"),
    (1, "compare hollow", "hollow"),
    (2, "compare", "STUDIES is missing"),
    (2, "paper rated extra", "extra"),
    (1, "export nowhere/none --out new", "nowhere/none"),
    (2, "export hollow", "out"),
    (2, "export hollow --out new --rule a --scheme encore", "rule", "scheme"),
    (2, "export hollow --out new --scheme encore", "ratings"),
    (2, "export model --out new --rule be-kind --ratings .", "--ratings belongs to --scheme"),
    (1, "export model --out new --rule be-late", "--rule be-late: the model has no such head"),
    (1, "export model --out new --weights none.json", "weights none.json: cannot be used"),
    (1, "export model --out new --scheme encore --ratings nowhere", "nowhere: no such file"),
    (1, "export gate --out new", "this is a gate"),
    (1, "export model --out gate", "something else in it than an export"),
    (1, "export ./none --out new", "no such file or folder"),
    (2, "serve hollow --port 70000", "port"),
    (2, "serve hollow --port 0 --tau 1", "tau", "scheme"),
    (1, "serve hollow --port 0", "hollow"),
    (1, "serve model --port 0", "the model has 3 heads and a reward is one number"),
    (1, "serve model --port 0 --weights other.json", "kindness among the weights"),
    (1, "serve model --port 0 --rule kindness", "the model has no such head"),
    (1, "serve no/model --port PORT", "Address already in use"),
    (1, "serve no/model --host no.such.host.invalid --port 0", "no.such.host.invalid --port 0: "),
    (1, "sql nowhere select", "nowhere"),
    (2, "sql rated", "--query"),
    (2, 'sql "from rules" rated', 'the study comes first: encore sql rated "from rules"'),
    (1, "sql rated --query nosuch", "nosuch", "entropy_accuracy"),
    (1, 'sql rated "drop table pairs"'),
    (1, "sql rated \"select * from read_text('/etc/hostname')\""),
    (1, 'sql rated "select * from nosuch"', "nosuch"),
    (1, "sql rated --query nonsense", "expected one of"),
    (1, "sql rated --query weights_at", 'call it in a query: encore sql "from weights_at'),
    (1, "publish nowhere", "nowhere"),
    (1, "publish rated --run ffff", "ffff"),
    (1, "browse nowhere", "nowhere: no such directory"),
    (1, "browse rated --run ffff", "ffff"),
    (1, "browse rated --port PORT", "Address already in use"),
    (1, "browse rated --host no.such.host.invalid", "--host no.such.host.invalid"),
    (1, "rules rate-importance pool.csv --output new", "nobody rates: give --judge, --people"),
    (2, "rules rate-importance pool.csv --output new --backend transformers", "--judge"),
    (1, "rules rate-importance pool.csv --output new --people none.csv", "No such file"),
    (2, "doctor extra", "extra"),
]


@pytest.fixture(scope="module")
def folder(made_studies, reward_model, judge_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    for name, path in {
        "fresh": made_studies / "fresh",
        "rated": made_studies / "rated",
        "model": reward_model,
        "judge": judge_folder,
        "safety.toml": BENCHMARK_PATH,
        "safety.jsonl.gz": BENCHMARK_DATA_PATH,
    }.items():
        (folder / name).symlink_to(path)
    for name in ("hollow", "gate"):
        (folder / name).mkdir()
    for name, text in {
        "gate/gate.json": "{}",
        "other.json": json.dumps({"be-kind": 0.5, "kindness": 0.5}),
        "pairs.jsonl": '{"prompt": "a", "chosen": "b", "rejected": "c"}\n',
        "pool.csv": "text\nBe kind.\n",
        "broken.parquet": "no Parquet",
    }.items():
        (folder / name).write_text(text)
    pq.write_table(table_of([[0.5]] * 9, [[0.1]] * 9), folder / "ratings.parquet")
    pq.write_table(ratings_table([("p", "s", "chosen", "r", 7.5)]), folder / "outside.parquet")
    return folder


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row[1].replace("/", ":"))
def test_bad_input_is_refused_in_one_line(encore, folder, monkeypatch, row):
    code, call, *texts = row
    monkeypatch.chdir(folder)
    files = {*folder.iterdir()}
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        finished = encore(*shlex.split(call.replace("PORT", str(port))))
    message = " ".join(re.sub("[│╭╮╰╯─]", " ", finished.err).split())
    assert (finished.code, finished.out) == (code, ""), message
    assert [text for text in texts if text.lower() not in message.lower()] == []
    assert "Traceback" not in message
    if code == 1:
        assert finished.err.endswith(f"error: {finished.error}\n")
        # `encore ingest` names the sources that it reads.
        assert finished.err.count("\n") == 1 or call.startswith("ingest")
    assert {*folder.iterdir()} == files
