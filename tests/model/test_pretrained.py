"""A real pretrained encoder, with real text: the same states as transformers alone gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encore.data.records import Message
from encore.model.config import BackboneConfig
from encore.model.layouts import lay_out
from encore.model.loading import load_reward_model, load_tokenizer
from tests.training.minilm import minilm_folder

pytestmark = pytest.mark.full

TURNS = [
    ("How do I boil an egg?", "Seven minutes in boiling water, then cold water."),
    ("Tell me a joke.\n\nA short one 🙂", "No."),
    ("Why is the sky blue?", "Because air scatters blue light more than red light. " * 20),
]


def test_packed_states_are_those_of_transformers_alone(tmp_path):
    folder = minilm_folder(tmp_path / "minilm")
    config = BackboneConfig(model=str(folder), max_length=128)
    tokenizer = load_tokenizer(config)
    model = load_reward_model(config, head_ids=["a"]).eval()
    encoded = [
        tokenizer.encode([Message(role="user", content=question)], answer)
        for question, answer in TURNS
    ]
    assert [one.num_cut > 0 for one in encoded] == [False, False, True]
    batch = [one.token_ids for one in encoded]
    for ids in batch:  # [CLS] … [SEP], as the encoder was trained
        assert (ids[0], ids[-1]) == (
            tokenizer.hf_tokenizer.cls_token_id,
            tokenizer.hf_tokenizer.sep_token_id,
        )

    from transformers import AutoModel

    alone = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = torch.stack(
            [
                alone(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0].mean(0)
                for ids in batch
            ]
        )
        for layout in ("packed", "sorted"):
            microbatch = lay_out(
                batch, layout=layout, pad_token_id=tokenizer.pad_token_id, is_causal=False
            )
            torch.testing.assert_close(model.embed(microbatch), expected, atol=1e-5, rtol=0)
