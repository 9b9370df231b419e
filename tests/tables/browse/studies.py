"""A rated study with hostile texts, and its page behind a port."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from encore.data.ingestion import ingest
from encore.data.study import open_study
from encore.judges.judge_config import JudgeConfig
from encore.rating.rating_config import RatingConfig
from encore.rating.rating_run import open_run
from encore.runs.shard_runner import work_through
from encore.serving.listening import listen, make_server, url_of
from encore.tables.browse_app import browse_app
from encore.tables.pair_index import open_pair_index
from tests.worlds.judges import ScriptedJudge, hashed_score
from tests.worlds.studies import shard_path

PATIENCE = 30.0
NUM_PAIRS = {"hh": 40, "pku": 20}
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    " \x1b]0;owned\x07 \u202egnp.exe &lt;b&gt; ${1} </textarea> \u200b"
)
RULES = "".join(
    f'[[rules]]\ntitle = "{title}"\ndescription = "d"\npreference_rule = "p"\n'
    f'rating_rule = "Rule {title}."\n'
    for title in ("Calm", "Fair", "Kind <b>words</b>")
)


def odd_judge(name: str) -> ScriptedJudge:
    """Return a judge that scores by name and prompt; some replies are empty or an attack.

    Its labels of decoding ``expected`` share most of the probability among the last three.
    """

    def script(prompt: str) -> str:
        byte = hashlib.sha256((name + prompt).encode()).digest()[0]
        return {0: HOSTILE, 1: ""}.get(byte % 17, hashed_score(name + prompt))

    return ScriptedJudge(script, name=name, label_logprobs=(-5.0,) * 7 + (-1.0, -1.5, -2.0))


def write_hostile_study(folder: Path) -> Path:
    """Two sources and three runs; of the second the last shard, of 10 pairs, is missing."""
    for label, num_pairs in NUM_PAIRS.items():
        records = [
            {
                "prompt": f"{label} question {index}? {HOSTILE if index == 3 else ''}",
                "chosen": f"Gentle answer {index}.",
                "rejected": f"Harsh answer {index}.",
            }
            for index in range(num_pairs)
        ]
        (folder / f"{label}.jsonl").write_text("\n".join(map(json.dumps, records)))
    ingest([f"{label}={folder / label}.jsonl" for label in NUM_PAIRS], out=folder / "study")
    (folder / "rules.toml").write_text(f'name = "three"\n{RULES}')
    rest = {"rules": str(folder / "rules.toml"), "shard_size": 25, "max_reply_tokens": 300}
    expected = {"decode": "expected", "layout": "conversation-first"}
    for name, options in (("one", {}), ("two<i>", {}), ("one", expected)):
        config = RatingConfig(judge=JudgeConfig(model=name), **rest, **options)
        run = open_run(open_study(folder / "study"), config, judge=odd_judge(name))
        work_through(run.job())
        if name == "two<i>":
            shard_path(folder / "study" / "ratings" / run.manifest.run_key, 2).unlink()
    return folder / "study"


@contextlib.contextmanager
def browsing(study: Path) -> Iterator[httpx.Client]:
    """A client of a study's page, which a thread of this process answers until the end."""
    with listen("127.0.0.1", 0) as listener, open_pair_index(open_study(study)) as index:
        server = make_server(browse_app(index, host="127.0.0.1"), stop_seconds=1)
        thread = threading.Thread(target=server.run, args=([listener],), name="browse")
        thread.start()
        try:
            with httpx.Client(base_url=url_of(listener), timeout=PATIENCE) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()
