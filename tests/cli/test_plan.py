"""`encore plan`: tables before anything is loaded, and plan against actual."""

from __future__ import annotations

from encore.demo import JUDGE_PATH

PLAN_COLUMNS = ["layout", "calls", "prompt", "computed", "output", "hours", "money"]
PAPER = ("--pairs", 70_000, "--tokens-per-response", 300)


def test_the_papers_training_has_memory_by_part_and_tokens(encore):
    finished = encore("plan", "train", *PAPER)
    assert finished.code == 0, finished.err
    assert "7.50 B parameters" in finished.out
    assert "41.9 GFLOP a token" in finished.out
    row = next(line for line in finished.out.splitlines() if "full-stochastic *" in line)
    assert "14.0" in row  # weights: 7.50 B x 2 bytes
    packed = next(line for line in finished.out.splitlines() if "packed *" in line)
    assert packed.split()[-1] == "42,000,000"
    assert "hours: not measured on this device" in finished.out
    assert "note: no --backbone is named" in finished.err


def test_a_studys_own_lengths_and_a_folders_config_are_used(encore, study, tmp_path):
    (tmp_path / "config.json").write_text((JUDGE_PATH / "config.json").read_text())
    values = encore("plan", "train", study, "--backbone", tmp_path, "--json").json
    assert values["tokens"]["num_pairs"] == 6
    assert values["tokens"]["origin"] == "6 pairs at 4 characters a token, not tokenised"
    # 16,384 x 128; five layers of 4 x 128 x 128 + 3 x 128 x 320 + 2 x 128; the last norm 128.
    expected = 16_384 * 128 + 5 * (65_536 + 122_880 + 256) + 128
    assert values["model"]["num_parameters"] == expected
    assert values["tokens"]["max_length"] <= 1024


def test_the_table_has_the_asked_layout_and_a_run_ends_with_plan_against_actual(
    encore, study, judge_folder
):
    options = (study, "--judge", judge_folder, "--backend", "transformers")
    amounts = ("--count", 2, "--pairs=6")
    finished = encore("plan", "rate", *options, *amounts, "--price-input", 1)
    assert finished.code == 0, finished.err
    command = f"next: encore rate {study} --judge {judge_folder} --backend transformers"
    assert finished.err.splitlines()[-1] == f"{command} --price-input 1"
    assert "6 pairs x 2 responses x 10 rules; tokens counted on 6 of the pairs" in finished.out
    lines = finished.out.splitlines()
    assert any(line.split() == PLAN_COLUMNS for line in lines)  # on one line at 80 columns
    row = next(line for line in lines if "paper *" in line)
    assert row.split()[2] == "120"
    assert "hours: not measured on this device: --calibrate PAIRS" in finished.out
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
