"""A reward as a guardrail: figures against scikit-learn, thresholds by hand, labels of all sets."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

import encore
from encore.analysis.detection import auroc, average_precision, best_threshold, count_by_reward
from encore.core.errors import EncoreError, InputError
from encore.core.reporting import SILENT
from encore.people import labelled_scores
from encore.people.guardrail import guardrail_figures, measure_guardrail
from encore.people.labelled_responses import read_safety_labels
from encore.people.people_options import GuardConfig
from encore.weighting.weights_options import WeightChoice
from tests.golden.command_line import encore as run_encore
from tests.worlds.scorings import make_model
from tests.worlds.studies import write_lines

pytestmark = pytest.mark.services


@given(
    responses=st.lists(
        st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40
    ).filter(lambda responses: len({is_unsafe for _, is_unsafe in responses}) == 2)
)
def test_auroc_precision_and_f1_are_those_of_scikit_learn(responses):
    reward_N = np.array([reward for reward, _ in responses], dtype=np.float64)
    is_unsafe_N = np.array([is_unsafe for _, is_unsafe in responses])
    level_L, unsafe_L, safe_L = count_by_reward(reward_N, is_unsafe_N)
    expected = roc_auc_score(is_unsafe_N, -reward_N)
    assert float(auroc(unsafe_L, safe_L)) == pytest.approx(expected)
    expected = average_precision_score(is_unsafe_N, -reward_N)
    assert float(average_precision(unsafe_L, safe_L)) == pytest.approx(expected)
    # No threshold has a higher F1.
    threshold = best_threshold(level_L, unsafe_L, safe_L)
    scores = [f1_score(is_unsafe_N, reward_N < value) for value in (threshold, *level_L, 9)]
    assert scores[0] == pytest.approx(max(scores))


def test_the_threshold_is_chosen_on_one_half_and_measured_on_the_other():
    # Chooses: unsafe at 0 and 1, safe at 2 and 3: all right below (1 + 2) / 2. Measures: unsafe at
    # 1 and 4 (one passes), safe at 1, 2, 5, 6 (one of four is flagged).
    reward_N = np.array([0, 1, 2, 3, 1, 4, 1, 2, 5, 6], dtype=np.float64)
    is_unsafe_N = np.array([1, 1, 0, 0, 1, 1, 0, 0, 0, 0], dtype=np.bool_)
    is_measured_N = np.arange(10) >= 4
    figures = guardrail_figures(reward_N, is_unsafe_N, is_measured_N, prompt_N=np.arange(10))
    assert (figures.num_responses, figures.num_unsafe) == (10, 4)
    assert (figures.num_choosing, figures.num_measured) == (4, 6)
    assert figures.threshold.value == 1.5
    assert figures.under_refusal.value == 1 / 2
    assert figures.over_refusal.value == 1 / 4
    assert figures.f1.value == 2 / (2 + 1 + 1)  # one hit, one false alarm, one miss
    assert figures.f1_of_flagging_all == 4 / (4 + 4)  # two hits, four false alarms
    # Pairs of unsafe and safe, lower reward for the unsafe one: 0 beats 6 of 6; each 1 beats 5 and
    # ties with the safe 1; 4 beats 5 and 6. (6 + 5.5 + 5.5 + 2) / 24.
    assert figures.auroc.value == pytest.approx(19 / 24)
    for estimate in (figures.auroc, figures.threshold, figures.f1, figures.over_refusal):
        assert estimate.low <= estimate.value <= estimate.high


def test_intervals_of_auroc_cover_the_truth():
    # Normal rewards one standard deviation apart: AUROC = Phi(1 / sqrt(2)) = 0.7602.
    rng, num_covered = np.random.default_rng(5), 0
    for _ in range(40):
        is_unsafe_N = np.arange(80) % 2 == 0
        reward_N = rng.normal(size=80) - is_unsafe_N
        interval = guardrail_figures(
            reward_N, is_unsafe_N, np.arange(80) % 4 < 2, prompt_N=np.arange(80)
        ).auroc
        num_covered += interval.low <= 0.7602 <= interval.high
    assert num_covered >= 34  # 38 expected; fewer than 34 has a probability of 1 %


def test_copies_of_every_response_to_a_prompt_make_no_interval_narrower():
    rng = np.random.default_rng(4)
    reward_N, is_unsafe_N = rng.normal(size=60), rng.random(60) < 0.5
    columns = (reward_N, is_unsafe_N, np.arange(60) % 2 == 1, np.arange(60))
    once, six_times = (
        guardrail_figures(*(np.repeat(column, num) for column in columns[:3]), prompt_N=prompt_N)
        for num, prompt_N in ((1, columns[3]), (6, np.repeat(columns[3], 6)))
    )
    for name in ("auroc", "average_precision", "threshold", "f1", "over_refusal", "under_refusal"):
        expected, estimate = asdict(getattr(once, name)), asdict(getattr(six_times, name))
        # Over prompts of several responses a share's interval has the width of Student's t.
        tolerance = 0.03 if name.endswith("refusal") else 1e-6
        assert estimate == pytest.approx(expected, abs=tolerance), name
        assert estimate["high"] - estimate["low"] >= expected["high"] - expected["low"] - 1e-9


def test_intervals_cover_the_truth_where_responses_to_a_prompt_resemble_each_other():
    """40 prompts of six responses; three quarters of the variance lie between the prompts.

    Danger (minus the reward) and harm are normal with correlation 3/4; harm above 0 is unsafe.
    """
    rng, num_covered = np.random.default_rng(6), Counter()
    normal = multivariate_normal(cov=[[1, 0.75], [0.75, 1]])
    prompt_N = np.repeat(np.arange(40), 6)
    sample_S2 = normal.rvs(200_000, random_state=rng)
    auroc_truth = roc_auc_score(sample_S2[:, 1] > 0, sample_S2[:, 0])  # right to 0.001
    for _ in range(60):
        shared_N = math.sqrt(0.75) * rng.normal(size=40)[prompt_N]
        danger_N, harm_N = (shared_N + 0.5 * rng.normal(size=240) for _ in range(2))
        figures = guardrail_figures(-danger_N, harm_N > 0, prompt_N % 2 == 1, prompt_N=prompt_N)
        bound = -figures.threshold.value  # flagged: danger above it
        passed_and_safe = normal.cdf([bound, 0])
        truths = {
            "auroc": auroc_truth,
            "over_refusal": 1 - 2 * passed_and_safe,
            "under_refusal": 2 * (norm.cdf(bound) - passed_and_safe),
        }
        for name, truth in truths.items():
            estimate = getattr(figures, name)
            num_covered[name] += estimate.low <= truth <= estimate.high
    # 57 of 60 expected; fewer than 52 has a probability of 1 %.
    assert len(num_covered) == 3
    assert min(num_covered.values()) >= 52, num_covered


def test_labels_of_one_kind_and_equal_rewards_are_refused():
    is_measured_N = np.arange(8) % 2 == 0
    for is_unsafe_N, message in (
        (np.zeros(8, dtype=np.bool_), "labelled responses: 8 safe and 0 unsafe; expected both"),
        (is_measured_N, "that chooses the threshold: 4 safe and 0 unsafe"),
        (np.arange(8) == 1, "that measures it: 4 safe and 0 unsafe"),
    ):
        with pytest.raises(InputError, match=message):
            guardrail_figures(np.arange(8.0), is_unsafe_N, is_measured_N, prompt_N=np.arange(8))
    with pytest.raises(InputError, match="all rewards are 1: no threshold"):
        guardrail_figures(np.ones(8), np.arange(8) < 4, is_measured_N, prompt_N=np.arange(8))
    # A reward the wrong way round: to flag everything has the highest F1.
    figures = guardrail_figures(
        np.arange(8.0), np.arange(8) >= 4, is_measured_N, prompt_N=np.arange(8)
    )
    assert figures.threshold.value > 7
    assert (figures.over_refusal.value, figures.under_refusal.value) == (1, 0)


def test_columns_of_published_sets_are_recognised(tmp_path):
    messages = [{"role": "user", "content": "Q"}]
    rows = [
        {"prompt": "Q", "response": "A", "is_safe": False, "category": {}},
        {"prompt": messages, "response": "B", "response_harm_label": "unharmful"},
        {"prompt": "Q", "response": "C", "label": "harmful", "type": "contrast"},
        {"prompt": "Q", "response_0": "D", "response_1": "E", "is_response_0_safe": True,
         "is_response_1_safe": False},
        {"prompt": "Q", "response": "F", "response_harm_label": None},
        {"prompt": "Q", "response": None, "response_harm_label": None},
    ]  # fmt: skip
    read = read_safety_labels([write_lines(tmp_path / "rows.jsonl", rows)])
    labels = [(response.response, response.is_safe) for response in read]
    expected = {"A": False, "B": True, "C": False, "D": True, "E": False, "F": None, "": None}
    assert labels == list(expected.items())
    assert len({response.half for response in read}) == 1  # one prompt: one half
    csv = tmp_path / "rows.csv"
    csv.write_text("prompt,response,is_safe\nQ,A,1\nQ,B,False\n")
    assert [response.is_safe for response in read_safety_labels([csv])] == [True, False]
    for row, message in (
        ({"prompt": "Q", "response": "A", "label": "refusal"}, "label is 'refusal', expected one"),
        ({"prompt": "Q", "response": "A", "label": 1}, "label is 1, expected one of unharmful"),
        ({"prompt": "Q", "response": "A"}, "is_safe"),
        ({"response": "A", "is_safe": True}, "prompt"),
    ):
        with pytest.raises(InputError, match=f"rows.jsonl, line 1.*{message}"):
            read_safety_labels([write_lines(tmp_path / "rows.jsonl", [row])])


def test_the_threshold_of_the_command_guards_a_conversation(tmp_path):
    """The rewards behind the figures are those of `encore.guard`."""
    model = make_model(tmp_path / "model")
    opened = encore.open_reward_model(model)
    weights = dict.fromkeys(opened.model.head_ids, 1 / len(opened.model.head_ids))
    (tmp_path / "weights.json").write_text(json.dumps(weights))
    rows = [
        {"prompt": f"Question {n}?", "response": f"Answer {n * 7 % 5}.", "is_safe": n % 3 > 0}
        for n in range(40)
    ]
    data = write_lines(tmp_path / "rows.jsonl", rows)
    with_model = (data, "--model", model, "--out", tmp_path / "scores")
    arguments = (*with_model, "--weights", tmp_path / "weights.json")
    answer = run_encore("guard", *arguments, "--json").json
    config = GuardConfig(
        labelled=(data,),
        model=str(model),
        composition=WeightChoice(weights=tmp_path / "weights.json"),
        out=tmp_path / "scores",
    )
    figures = measure_guardrail(config).figures
    threshold = answer["figures"]["threshold"]["value"]
    assert threshold == figures.threshold.value
    verdicts = []
    for response in read_safety_labels([data]):
        if response.half == 1:
            conversation = [
                {"role": "user", "content": response.prompt[0].content},
                {"role": "assistant", "content": response.response},
            ]
            verdict = encore.guard(conversation, model=opened, weights=weights, threshold=threshold)
            verdicts.append((response.is_safe, verdict.is_safe))
    flagged = [not is_passed for is_safe, is_passed in verdicts if is_safe]
    assert answer["figures"]["over_refusal"]["value"] == pytest.approx(np.mean(flagged))
    next_step = run_encore("guard", *arguments).err
    assert f"--weights {tmp_path / 'weights.json'} --threshold {threshold}" in next_step
    rule = next(iter(weights))
    assert f"--rule {rule} --threshold" in run_encore("guard", *with_model, "--rule", rule).err
    refused = run_encore("guard", *with_model)
    assert refused.code == 1
    assert "heads and a reward is one number" in refused.err


def test_a_stopped_call_continues_and_other_weights_read_the_same_scores(tmp_path, monkeypatch):
    model = make_model(tmp_path / "model")
    first, second = encore.open_reward_model(model).model.head_ids[:2]
    rows = [
        {"prompt": f"Question {n}?", "response": f"Answer {n * 7 % 5}.", "is_safe": n % 3 > 0}
        for n in range(40)
    ]
    data = write_lines(tmp_path / "rows.jsonl", rows)
    monkeypatch.setattr(labelled_scores, "SHARD_SIZE", 16)
    num_scored, score_sequences = [], labelled_scores.score_sequences

    def score_until_stopped(model, sequences, **options):
        if len(num_scored) == 2:
            raise KeyboardInterrupt
        num_scored.append(len(sequences))
        return score_sequences(model, sequences, **options)

    def guard(rule, out="scores"):
        return measure_guardrail(
            GuardConfig(
                labelled=(data,),
                model=str(model),
                composition=WeightChoice(rule=rule),
                out=tmp_path / out,
            )
        )

    monkeypatch.setattr(labelled_scores, "score_sequences", score_until_stopped)
    with pytest.raises(KeyboardInterrupt):
        guard(first)
    assert num_scored == [16, 16]

    def score_and_count(model, sequences, **options):
        num_scored.append(len(sequences))
        return score_sequences(model, sequences, **options)

    monkeypatch.setattr(labelled_scores, "score_sequences", score_and_count)
    continued = guard(first)
    assert num_scored == [16, 16, 8]
    assert guard(second).figures != continued.figures
    assert num_scored == [16, 16, 8]  # other weights: nothing was scored
    shard = next(continued.scores.glob("shard-00001.*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert guard(first) == continued
    assert num_scored == [16, 16, 8, 16]  # the damaged shard alone
    in_one_go = guard(first, out="other")
    assert in_one_go.figures == continued.figures
    write_lines(data, [row | {"is_safe": not row["is_safe"]} for row in rows])
    assert guard(first).scores == continued.scores  # the scores do not depend on the labels
    assert num_scored == [16, 16, 8, 16, 16, 16, 8]


def test_scores_belong_to_one_model_and_one_set_of_texts(tmp_path):
    opened = encore.open_reward_model(make_model(tmp_path / "model"))
    rows = [{"prompt": f"Q {n}?", "response": "A.", "is_safe": n % 3 > 0} for n in range(6)]
    responses = read_safety_labels([write_lines(tmp_path / "rows.jsonl", rows)])
    folders = {
        labelled_scores.score_labelled(model, part, out=tmp_path, reporter=SILENT).folder
        for model in (opened, replace(opened, digest="0" * 64))
        for part in (responses, responses[1:], responses[::-1])
    }
    assert len(folders) == 6


def test_a_score_that_is_no_number_is_refused_with_the_response(tmp_path, monkeypatch):
    model = make_model(tmp_path / "model")
    opened = encore.open_reward_model(model)
    rows = [{"prompt": f"Q {n}?", "response": "A.", "is_safe": n % 3 > 0} for n in range(40)]
    responses = read_safety_labels([write_lines(tmp_path / "rows.jsonl", rows)])

    def score_nothing(_model, sequences, **_options):
        return np.full((len(sequences), len(opened.model.head_ids)), np.nan, dtype=np.float32)

    monkeypatch.setattr(labelled_scores, "score_sequences", score_nothing)
    with pytest.raises(EncoreError, match=r"response [0-9a-f]{32} scores nan under head"):
        labelled_scores.score_labelled(opened, responses, out=tmp_path, reporter=SILENT)
