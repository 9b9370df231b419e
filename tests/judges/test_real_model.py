"""A real model that is no good as a judge: what is said of it, on vLLM and on llama.cpp."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from encore.core.errors import JudgeUnavailableError
from encore.data.rating_runs import note_on_label_mass, ratings_of, run_status
from encore.data.study import open_study
from encore.judges import open_judge
from encore.judges.base import Decoding, Judge
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_options import ServerOptions
from encore.rating import null_watch
from encore.rating.null_watch import NoRatingsError
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import RatingRun, open_run
from encore.runs.worker import work_through
from tests.judges.asking import rating_prompts, replies_to
from tests.worlds.real_model import llama_server, model_folder
from tests.worlds.studies import numbered_pairs, study_of

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

TENTHS = {tenth / 10 for tenth in range(11)}
DIGITS = tuple("0123456789")


@pytest.fixture(scope="module", params=["vllm", "llama.cpp"])
def judge(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Judge]:
    """Open the model on an engine in this process, or on a llama.cpp server."""
    if request.param == "vllm":
        with closing(open_judge(JudgeConfig(model=str(model_folder())))) as engine:
            yield engine
        return
    with llama_server(tmp_path_factory.mktemp("llama")) as url:
        config = JudgeConfig(model="smollm2", backend="http")
        server = ServerOptions(base_url=url, concurrency=2)
        with closing(open_judge(config, server)) as client:
            client.check(Decoding(kind="choice", max_reply_tokens=8, labels=DIGITS))
            yield client


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a study of one pair: 20 prompts under ten rules."""
    return study_of(numbered_pairs(1), tmp_path_factory.mktemp("real") / "study")


@pytest.fixture(autouse=True)
def _early_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run judged after 15 replies and not 50, which take a minute."""
    monkeypatch.setattr(null_watch, "_MIN_REPLIES", 15)


def opened(study: Path, judge: Judge, **options: Any) -> RatingRun:
    # The ten rules of a response share their prompt, which is computed once.
    judge_config = JudgeConfig(model="smollm2")
    config = RatingConfig(judge=judge_config, layout="demand-first", **options)
    return open_run(open_study(study), config, judge=judge)


def test_prose_ends_the_run_with_some_of_it_and_a_remedy(study, judge):
    run = opened(study, judge, max_reply_tokens=12)
    with pytest.raises(NoRatingsError, match=r"of (1[5-9]|20) replies hold no rating") as caught:
        work_through(run.job())
    assert "--decode choice" in str(caught.value)


def test_a_choice_is_always_on_the_scale(study, judge):
    run = opened(study, judge, decode="choice")
    assert not work_through(run.job()).failures
    ratings = [*ratings_of(run_status(run.run_dir), ["pair_id", "rule_id", "response"]).values()]
    assert len(ratings) == 20
    assert {*ratings} <= TENTHS


def test_labels_that_are_no_answer_are_told_by_their_probability(study, judge):
    with pytest.raises(NoRatingsError, match=r"low_label_mass.*% on the labels.*--scale"):
        work_through(opened(study, judge, decode="expected").job())
    run = opened(study, judge, decode="expected", min_label_mass=0.001)
    assert not work_through(run.job()).failures
    note = note_on_label_mass(run.manifest, run_status(run.run_dir).paths)
    assert re.match(r"\d\d? % of the judge's probability is on the labels", note)


@pytest.mark.parametrize("judge", ["vllm"], indirect=True)
def test_label_probabilities_are_those_of_plain_transformers(judge):
    texts = rating_prompts(num_conversations=1)[:4]
    decoding = Decoding(kind="expected", max_reply_tokens=1, labels=DIGITS)
    replies = replies_to(judge, texts, decoding)
    model = AutoModelForCausalLM.from_pretrained(model_folder()).eval()
    label_ids = judge.tokenizer.label_tokens(DIGITS)
    for reply, token_ids in zip(replies, judge.tokenizer.encode(texts), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([token_ids])).logits[0, -1]
        expected = torch.softmax(logits, dim=-1)[list(label_ids)].numpy()
        np.testing.assert_allclose(np.exp(reply.label_logprobs), expected, atol=1e-4)


def test_a_tokenizer_for_llama_cpp_is_refused(tmp_path):
    config = JudgeConfig(model="smollm2", backend="http", tokenizer=str(model_folder()))
    with (
        llama_server(tmp_path) as url,
        closing(open_judge(config, ServerOptions(base_url=url))) as judge,
        pytest.raises(JudgeUnavailableError, match=r"is llama\.cpp.*leave it out"),
    ):
        judge.start()
