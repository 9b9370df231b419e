"""A judge may say that a rule does not apply: a null of its own, which is no failure."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from encore.data.rating_runs import null_reasons, run_status
from encore.judges.base import Decoding, Reply
from encore.rating.null_watch import NoRatingsError, NullWatch
from encore.rating.prompts import RATING_TEMPLATE, RatingPrompt
from encore.rating.rating_options import RatingConfig
from encore.rating.replies import read_answers, read_reply
from encore.runs.worker import work_through
from tests.golden.command_line import encore
from tests.rating.conftest import NUM_PAIRS
from tests.rating.test_rating_run import RULES, config, opened, rate, ratings
from tests.worlds.judges import ScriptedJudge

NUM_RATINGS = NUM_PAIRS * 20
WORDS = "If the criterion is about something that does not occur in the conversation"


def answer_of(text: str, decoding: Decoding) -> tuple[float | None, str | None]:
    answer = read_reply(Reply(text=text, is_complete=True), decoding, min_label_mass=0.5)
    return answer.rating, answer.null_reason


@pytest.mark.parametrize("layout", ["paper", "conversation-first", "demand-first"])
@pytest.mark.parametrize(("labels", "answer"), [((), "n/a"), (("0", "1"), "N")])
def test_each_layout_says_once_when_to_answer_and_allows_it_in_the_demand(layout, labels, answer):
    prompt = RatingPrompt(layout=layout, labels=labels, not_applicable=answer)
    text = "".join(prompt.parts("Human: a", rating_rule="and nothing else."))
    assert (
        text.count(f"{WORDS}, so that it says nothing about the response, respond with {answer} i")
        == 1
    )
    assert f"between 0 and 1, or {answer} if the criterion does not apply, and nothing else" in text
    # Without both the prompt is the paper's.
    plain = RatingPrompt(layout=layout, labels=labels)
    added = text.replace(f", or {answer} if the criterion does not apply,", "")
    begin = added.index(f" {WORDS}")
    added = added[:begin] + added[added.index("a score.", begin) + len("a score.") :]
    assert added == "".join(plain.parts("Human: a", rating_rule="and nothing else."))
    assert prompt.digest != plain.digest


def test_the_paper_s_prompt_is_as_it_was():
    assert "n/a" not in RATING_TEMPLATE
    paper = RATING_TEMPLATE.format(rule="r", QA="c")
    assert "".join(RatingPrompt().parts("c", rating_rule="r")) == paper


@pytest.mark.parametrize("text", ["n/a", "N/A", " n/a.\n", "Score: N/A", "Not applicable.", "NA"])
def test_the_answer_is_read_in_the_forms_that_judges_write(text):
    decoding = Decoding(max_reply_tokens=16, not_applicable="n/a")
    assert answer_of(text, decoding) == (None, "does_not_apply")
    # A judge that was not asked may not say so.
    assert answer_of(text, Decoding(max_reply_tokens=16)) == (None, "not_a_single_number")


def test_other_replies_are_read_as_before():
    decoding = Decoding(max_reply_tokens=16, not_applicable="n/a")
    assert answer_of("0.5", decoding) == (0.5, None)
    assert answer_of("n/a 0.5", decoding) == (None, "not_a_single_number")
    assert answer_of("", decoding) == (None, "empty_reply")


def test_a_choice_has_one_more_label_that_does_not_move_the_scale():
    labels = ("bad", "middling", "good", "n/a")
    decoding = Decoding(kind="choice", max_reply_tokens=16, labels=labels, not_applicable="n/a")
    answers = [answer_of(label, decoding) for label in labels]
    assert answers == [(0.0, None), (0.5, None), (1.0, None), (None, "does_not_apply")]


def expected(*shares: float) -> tuple[float | None, ...]:
    decoding = Decoding(
        kind="expected", max_reply_tokens=16, labels=("0", "1", "N"), not_applicable="N"
    )
    logprobs = tuple(map(math.log, shares))
    reply = Reply(text="0", is_complete=True, label_logprobs=logprobs)
    answer = read_reply(reply, decoding, min_label_mass=0.5)
    assert (answer.rating is None) == (answer.null_reason == "does_not_apply")
    return answer.rating, answer.expected_rating, answer.label_mass, answer.reply_entropy


def test_an_expected_rating_is_of_the_numbers_alone():
    rating, mean, mass, entropy = expected(0.1, 0.3, 0.2)
    # Of the numbers' 0.4 three quarters are on 1; the mass is that of all three labels.
    assert (rating, mean) == (1.0, pytest.approx(0.75))
    assert mass == pytest.approx(0.6)
    assert entropy == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_the_most_likely_label_says_that_the_rule_does_not_apply():
    assert expected(0.3, 0.2, 0.4) == (None, None, pytest.approx(0.9), None)


def test_in_a_list_of_all_rules_each_value_may_be_the_answer():
    decoding = Decoding(max_reply_tokens=64, num_scores=3, not_applicable="n/a")
    text = json.dumps({"1": 0.5, "2": "n/a", "3": "safe"})
    answers = read_answers(Reply(text=text, is_complete=True), decoding, min_label_mass=0.5)
    reasons = [answer.null_reason for answer in answers]
    assert reasons == [None, "does_not_apply", "not_a_single_number"]
    bare = Reply(text=text.replace('"n/a"', "n/a"), is_complete=True)  # which is no JSON
    answers = read_answers(bare, decoding, min_label_mass=0.5)
    assert [answer.null_reason for answer in answers] == ["not_an_object_of_scores"] * 3
    prompt = RatingPrompt(layout="all-rules", not_applicable="n/a")
    text = "".join(prompt.parts("Human: a", rating_rule=prompt.rules_text(RULES[:2])))
    assert 'its value is "n/a" instead of a score.' in text
    assert 'a score between 0 and 1, or "n/a", for the number of each criterion' in text


def test_a_scale_may_not_have_the_answer_as_a_label():
    with pytest.raises(ValidationError, match="take another label"):
        config(decode="expected", scale="Y,N", ask_applies=True)
    assert config(decode="expected", scale="Y,N").labels == ("Y", "N")


def test_a_decision_model_has_no_such_answer():
    judge = {"model": "m", "backend": "http", "api": "systemone"}
    options = {"judge": judge, "decode": "expected"}
    assert RatingConfig(**options).question_kind == "predicate"
    with pytest.raises(ValidationError, match="has no answer for a rule that does not apply"):
        RatingConfig(**options, ask_applies=True)


@pytest.mark.parametrize("decode", ["text", "choice"])
def test_most_replies_may_say_so_and_the_run_goes_on_without_a_failure(study, decode):
    # Nine of ten rules never apply: far more than half of the replies are null.
    rule = RULES[0].rating_rule
    judge = ScriptedJudge(lambda prompt: "0.5" if rule in prompt else "n/a", is_on_cpu=True)
    run = opened(study, judge, ask_applies=True, decode=decode)
    assert run.manifest.settings["ask_applies"] is True
    report = work_through(run.job())
    rows = ratings(run)
    assert {row["null_reason"] for row in rows if row["rating"] is None} == {"does_not_apply"}
    numbers = ("num_ratings", "num_nulls", "num_not_applicable")
    counts = (NUM_RATINGS // 10, 0, 9 * NUM_RATINGS // 10)
    assert tuple(report.total(name) for name in numbers) == counts
    status = run_status(run.run_dir)
    assert null_reasons(status) == {"does_not_apply": counts[2]}
    assert opened(study, judge, ask_applies=True, decode=decode).manifest.key == run.manifest.key
    assert opened(study, judge, decode=decode).manifest.key != run.manifest.key
    # Nothing failed, so nothing is asked again.
    num_asked = judge.num_asked
    rate(study, judge, ask_applies=True, decode=decode, retry_failed_prompts=True)
    assert judge.num_asked == num_asked
    output = encore("status", study.path)
    assert f"{counts[0]} ratings, 0 nulls, {counts[2]} do not apply" in output.out
    assert "null:" not in output.out


def test_a_reply_to_all_rules_that_says_so_of_one_rule_is_no_null(study):
    scores = {str(number): "prose" for number in range(1, 10)} | {"10": "n/a"}
    judge = ScriptedJudge(lambda _: json.dumps(scores), is_on_cpu=True)
    report = rate(study, judge, layout="all-rules", ask_applies=True)  # the watch does not stop it
    assert report.total("num_not_applicable") == NUM_PAIRS * 2


def test_failures_are_still_counted_beside_it():
    watch = NullWatch(is_on=True)
    for reason in 24 * ["does_not_apply"] + 26 * ["not_a_single_number"]:
        watch.count(reason, "")
    with pytest.raises(NoRatingsError, match=r"26 of 50 replies hold no rating \(26 not_a_single"):
        watch.check()
