"""The flow run in the Prefect UI, as a browser shows it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.browser.chromium import browser_page
from tests.browser.prefect_pictures import run_pipeline, take_pictures
from tests.prefect_server import running_server
from tests.tiny_judge import make_tiny_judge

_PNG = b"\x89PNG\r\n\x1a\n"


def test_a_run_its_tasks_and_its_artifacts_are_shown(chromium: str, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Q{n}", "chosen": f"Yes, {n}.", "rejected": f"No, {n}!"} for n in range(4)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = make_tiny_judge(tmp_path / "tiny-judge")
    work, pictures = tmp_path / "work", tmp_path / "pictures"
    work.mkdir()
    pictures.mkdir()
    with running_server(tmp_path / "server") as server, browser_page(chromium) as page:
        flow_run = run_pipeline(
            server,
            work,
            sources={"small": pairs},
            judge=judge,
            options=["--backend", "transformers", "--shard-size", "2"],
        )
        take_pictures(page, server, flow_run, to=pictures)

    assert flow_run["state"]["message"] == "2 rated, 0 reused, 0 failed"
    taken = sorted(path.name for path in pictures.iterdir())
    assert taken == ["prefect-artifacts.png", "prefect-run.png", "prefect-statistics.png"]
    for picture in pictures.iterdir():
        assert picture.read_bytes().startswith(_PNG)
