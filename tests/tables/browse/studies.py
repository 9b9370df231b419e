"""A rated study with hostile texts, and its page behind a port."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx

from encore.core.listening import listen
from encore.data.study import open_study
from encore.serving.host_guard import host_names
from encore.tables.browse_app import browse_app
from encore.tables.pair_index import open_pair_index
from tests.serving.servers import answering
from tests.worlds.judges import ScriptedJudge, hashed_score
from tests.worlds.studies import rate_study, shard_path, study_of, write_rules

PATIENCE = 30.0
NUM_PAIRS = {"hh": 40, "pku": 20}
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    " \x1b]0;owned\x07 \u202egnp.exe &lt;b&gt; ${1} </textarea> \u200b"
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
    """Make a study of two sources and three runs; the second run lacks its last shard, of 10 pairs.

    Every run has three rules.
    """
    rows_by_label = {
        label: [
            {
                "prompt": f"{label} question {index}? {HOSTILE if index == 3 else ''}",
                "chosen": f"Gentle answer {index}.",
                "rejected": f"Harsh answer {index}.",
            }
            for index in range(num_pairs)
        ]
        for label, num_pairs in NUM_PAIRS.items()
    }
    study = study_of(rows_by_label, folder / "study")
    rules = write_rules(folder / "rules.toml", ("Calm", "Fair", "Kind <b>words</b>"))
    options = {"rules": str(rules), "shard_size": 25, "max_reply_tokens": 300}
    expected = {"decode": "expected", "layout": "conversation-first"}
    rate_study(study, odd_judge("one"), **options)
    second_run = rate_study(study, odd_judge("two<i>"), **options)
    rate_study(study, odd_judge("one"), **options, **expected)
    shard_path(study / "ratings" / second_run.manifest.run_key, 2).unlink()
    return study


@contextlib.contextmanager
def browsing(study: Path) -> Iterator[httpx.Client]:
    """Serve a study's page in a thread of this process; yield a client of it."""
    with (
        listen("127.0.0.1", 0) as listener,
        open_pair_index(open_study(study)) as index,
        answering(
            browse_app(index, hosts=host_names("127.0.0.1")), listener, stop_seconds=1
        ) as url,
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        yield client
