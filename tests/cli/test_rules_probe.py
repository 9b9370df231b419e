"""`encore rules probe`: tables of every form, then which scores a planted sentence buys."""

from __future__ import annotations

import json

from tests.cli.conftest import NUM_PAIRS
from tests.worlds.studies import write_rules


def test_every_form_has_a_table_and_the_json_is_the_file_of_the_probe(
    encore, study, judge_folder, tmp_path
):
    rules = write_rules(tmp_path / "rules.toml", ["kind"])
    options = ("--judge", judge_folder, "--backend", "transformers", "--rules", rules)
    printed = encore("rules", "probe", study, *options, "--num-pairs", 5)
    assert printed.code == 0, printed.err
    assert "unchanged under rules: 10 ratings" in printed.err
    assert "headed, planted-order, planted-request, planted-claim under rules: 70" in printed.err
    for title in ("reframed: every rule as:", "padded: appended: This is where", "planted-claim:"):
        assert title in printed.out
    row = next(line for line in printed.out.splitlines() if line.split()[-1:] == ["unknown"])
    assert row.split()[0] == "1"
    assert "1 kind" in printed.out
    assert "unknown for kind: fewer than 30 pairs" in " ".join(printed.out.split())
    finished = encore("rules", "probe", study, *options, "--num-pairs", 20, "--json")
    assert f"note: the study has {NUM_PAIRS} pairs, fewer than 20: all" in finished.err
    record = finished.json
    [path] = study.glob(f"probes/*/probe-{record['key']}.json")
    assert json.loads(path.read_text()) == record
    assert record["variants"].keys() == record["rules"][0]["effects"].keys()
