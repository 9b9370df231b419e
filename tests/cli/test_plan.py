"""`encore plan train`: figures before anything is loaded, a refusal that names what fits."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from encore.demo import judge_path

PAPER = ("--pairs", 70_000, "--tokens-per-response", 300)


def the_error(finished) -> str:
    lines = [line for line in finished.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, finished.err
    return lines[0]


def test_the_papers_training_fits_on_the_papers_gpu_with_the_default_recipe(encore):
    finished = encore("plan", "train", *PAPER)
    assert finished.code == 0, finished.err
    assert "7.50 B parameters" in finished.out
    assert "41.9 GFLOP a token" in finished.out
    row = next(line for line in finished.out.splitlines() if "full-stochastic *" in line)
    assert "14.0" in row  # weights: 7.50 B x 2 bytes
    assert row.split()[-1] == "yes"  # it fits
    assert "†" not in row  # and can be run
    packed = next(line for line in finished.out.splitlines() if "packed *" in line)
    assert packed.split()[-2:] == ["42,000,000", "1.24"]


def test_json_has_the_same_figures_and_nothing_else_on_stdout(encore):
    values = json.loads(encore("plan", "train", *PAPER, "--json").out)
    assert values["fits"] is True
    assert values["model"]["num_parameters"] == 7_504_924_672
    assert values["hours"]["packed"]["hours"] == pytest.approx(1.242, abs=0.001)
    assert values["gpu"]["name"] == "h100-80"


def test_a_recipe_that_cannot_fit_exits_1_and_names_one_that_does(encore):
    finished = encore("plan", "train", *PAPER, "--recipe", "full-float32", "--json")
    assert finished.code == 1
    assert json.loads(finished.out)["advice"]["recipe"] == "full-stochastic"
    assert "recipe full-stochastic" in the_error(finished)
    assert "--optimizer adamw-stochastic" in the_error(finished)


def test_where_nothing_fits_that_is_said(encore):
    finished = encore("plan", "train", *PAPER, "--gpu", "l4-24", "--backbone", "llama-3-70b")
    assert finished.code == 1
    assert "no recipe fits" in the_error(finished)


def test_a_studys_own_lengths_are_used(encore, study):
    finished = encore("plan", "train", study, "--backbone", judge_path(), "--json")
    assert finished.code == 0, finished.err
    tokens = json.loads(finished.out)["tokens"]
    assert tokens["num_pairs"] == 6
    assert tokens["origin"] == "6 pairs tokenised as training does"


def test_without_the_backbones_tokenizer_that_is_said(encore, study):
    finished = encore("plan", "train", study)
    assert finished.code == 0, finished.err
    assert "4 characters a token, not tokenised" in finished.out


def test_a_folder_needs_no_more_than_its_config(encore, tmp_path):
    (tmp_path / "config.json").write_text((judge_path() / "config.json").read_text())
    finished = encore("plan", "train", *PAPER, "--backbone", tmp_path, "--json")
    assert finished.code == 0, finished.err
    # 16,384 x 128; five layers of 4 x 128 x 128 + 3 x 128 x 320 + 2 x 128; the last norm 128.
    expected = 16_384 * 128 + 5 * (65_536 + 122_880 + 256) + 128
    assert json.loads(finished.out)["model"]["num_parameters"] == expected


def test_the_maximum_length_is_at_most_what_the_model_knows(encore):
    short = ("--pairs", 100, "--tokens-per-response", 100)
    values = json.loads(encore("plan", "train", *short, "--backbone", "minilm", "--json").out)
    assert values["tokens"]["max_length"] == 512


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--gpu", "tpu"), "GPU 'tpu': not in the table"),
        (("--recipe", "magic"), "recipe 'magic': expected one of full-stochastic"),
        (("--backbone", "nothing"), "backbone 'nothing': no such folder"),
        (("--backbone", "gemma-2-9b"), "its attention scores are capped"),
        (("--backbone", "minilm", "--layout", "prefix-shared"), "is an encoder"),
    ],
)
def test_what_is_not_known_is_one_clear_line(encore, arguments, named):
    finished = encore("plan", "train", *PAPER, *arguments)
    assert finished.code == 1
    assert named in the_error(finished)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train",),
        ("train", "--pairs", 10),
        ("train", "study", "--pairs", 10),
        ("cook", *PAPER),
    ],
)
def test_too_little_or_contradicting_arguments_are_a_usage_error(encore, arguments):
    assert encore("plan", *arguments).code == 2


def test_planning_imports_neither_torch_nor_transformers():
    code = (
        "import sys; from encore.cli.plan import plan\n"
        "plan('train', pairs=9, tokens_per_response=9.0)\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
