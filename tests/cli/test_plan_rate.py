"""`encore plan rate`: a table before anything is loaded, and the line on it when a run ends."""

from __future__ import annotations


def test_the_table_has_the_asked_layout_and_a_run_ends_with_plan_against_actual(
    encore, study, judge_folder
):
    options = (study, "--judge", judge_folder, "--backend", "transformers")
    finished = encore("plan", "rate", *options, "--price-input", 1)
    assert finished.code == 0, finished.err
    assert "6 pairs x 2 responses x 10 rules; tokens counted on 6 of the pairs" in finished.out
    row = next(line for line in finished.out.splitlines() if "paper *" in line)
    assert row.split()[2] == "120"
    assert "hours: not known: --gpu NAME" in finished.out
    assert "give --price-output" in finished.err
    planned = encore("plan", "rate", *options, "--layout", "conversation-first", "--json").json
    assert planned["layout"] == "conversation-first"
    rated = encore("rate", *options, "--json")
    compared = rated.json["plan"]
    # transformers keeps no cache; greedy replies of the tiny judge are as long as the usual one.
    for name, values in planned["layouts"]["paper"].items():
        if name in compared:
            assert compared[name] == {"planned": values, "actual": values}, name
    assert "calls: 120; planned: 120" in rated.err
    assert "seconds: " in rated.err
