"""Contributions sum to the reward; people see means, rankings do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import InputError
from encore.export.classifier import fold
from encore.export.records import Composition
from encore.serving.composer import make_composer
from tests.serving.models import HEAD_IDS, MEANS, composer

finite = st.floats(-10, 10, allow_subnormal=False)


def test_a_reward_by_hand():
    # Weights in head order: privacy 0.2, no-violence 0.3, honesty 0.5; means 0.9, 0.25, 0.5.
    composed = composer().compose(np.array([[0.1, -0.2, 0.4]]))
    # 0.2*0.1 = 0.02, 0.3*-0.2 = -0.06, 0.5*0.4 = 0.2: together 0.16
    np.testing.assert_allclose(composed.contribution_NR, [[0.02, -0.06, 0.2]])
    np.testing.assert_allclose(composed.reward_N, [0.16])
    # Means weighed: 0.18 + 0.075 + 0.25 = 0.505
    assert composer().reward_mean == pytest.approx(0.505)
    np.testing.assert_allclose(composed.reward_shown_N, [0.665])
    np.testing.assert_allclose(composed.shown_NR, [[1.0, 0.05, 0.9]])


@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=8))
def test_contributions_sum_to_the_reward_and_shown_scores_to_the_shown_one(rows):
    ours = composer()
    composed = ours.compose(np.array(rows))
    np.testing.assert_allclose(composed.contribution_NR.sum(axis=1), composed.reward_N, atol=1e-12)
    np.testing.assert_allclose(
        composed.shown_NR @ ours.weight_R, composed.reward_shown_N, atol=1e-12
    )


def test_the_reward_is_that_of_the_folded_head():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(1)
    weight_RD = torch.randn(3, 16, generator=generator)
    hidden_ND = torch.randn(5, 16, generator=generator)
    ours = composer()
    folded = fold(weight_RD, dict(zip(HEAD_IDS, ours.weight_R.tolist(), strict=True)), HEAD_IDS)
    expected = (hidden_ND.double() @ folded[0]).numpy()
    composed = ours.compose((hidden_ND.double() @ weight_RD.double().T).numpy())
    np.testing.assert_allclose(composed.reward_N, expected, atol=1e-12)


def test_one_head_needs_no_weights_and_several_do():
    only = make_composer(None, head_ids=["reward"], mean_R=[0.0])
    assert only.compose(np.array([[0.5]])).reward_N.tolist() == [0.5]
    with pytest.raises(InputError, match=r"the model has 3 heads .*--weights FILE.*--rule"):
        make_composer(None, head_ids=HEAD_IDS, mean_R=MEANS)


def test_weights_for_other_rules_name_both_sides():
    other = Composition(weights={"privacy": 0.5, "kindness": 0.5}, scheme="given")
    with pytest.raises(InputError, match=r"kindness among the weights.*no-violence, honesty among"):
        make_composer(other, head_ids=HEAD_IDS, mean_R=MEANS)
