"""Architectures of the table keep the sequences of a row separate; others are refused."""

from __future__ import annotations

import pytest
import torch

from encore.core.errors import InputError
from encore.model.architectures import TRUNKS, max_positions, trunk_kind
from encore.model.layouts import lay_out
from tests.worlds.models import pair_with_shared_beginning, tiny_config, tiny_model, token_ids


@pytest.mark.parametrize("model_type", sorted(TRUNKS))
def test_packed_scores_equal_those_of_transformers(model_type):
    """The reference is the model on single sequences, with the attention of transformers."""
    model = tiny_model(model_type).eval()
    batch = [*pair_with_shared_beginning(15, 6, 9, seed=1), token_ids(11, seed=2)]
    layouts = ["packed", "prefix-shared"] if model.is_causal else ["packed"]
    common = {"groups": [(0, 1)], "pad_token_id": 1, "is_causal": model.is_causal}
    with torch.no_grad():
        packed = [model(lay_out(batch, layout=layout, **common)) for layout in layouts]
        model.trunk.set_attn_implementation("eager")
        states = [
            model.trunk(torch.from_numpy(ids).long()[None]).last_hidden_state[0] for ids in batch
        ]
        hidden = [state[-1] if model.is_causal else state.mean(0) for state in states]
        expected = model.heads(torch.stack(hidden))
    assert expected.std() > 1e-2
    for scores in packed:
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_another_architecture_is_refused():
    for config, message in (
        ({"model_type": "mamba"}, "architecture 'mamba' is not one"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder True"),
        ({"model_type": "llama", "is_causal": False}, "is_causal False"),
    ):
        with pytest.raises(InputError, match=message):
            trunk_kind(config, name="x")


def test_the_longest_sequence_is_within_the_positions_and_the_window():
    for config, expected in (
        ({"model_type": "mistral", "sliding_window": 4096}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, 32_768),
        ({"model_type": "mistral"}, 4096),  # the default of transformers
        ({"model_type": "qwen2", "sliding_window": 4096}, 32_768),  # off by default
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, 4096),
        ({"model_type": "llama"}, 32_768),
        (tiny_config("bert").to_dict(), 128),
        # RoBERTa does not use positions up to its padding id, 1.
        (tiny_config("roberta").to_dict(), 126),
    ):
        settings = {"max_position_embeddings": 32_768, **config}
        assert max_positions(settings, trunk_kind(settings, name="m")) == expected
