"""The judge on transformers, for machines without vLLM: the same replies, but slower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from encore.core.errors import JudgeUnavailableError
from encore.core.transformers_loading import load_weights
from encore.judges.base import Decoding, Reply, Usage, label_reply
from encore.judges.judge_options import JudgeConfig
from encore.judges.local_model import LocalJudge
from encore.judges.thinking import Thought, after_thinking, thinking_step, thoughts_of

_BATCH = 16


class TransformersJudge(LocalJudge):
    """Judge that generates with `transformers`, in batches of prompts of similar length.

    It is several times slower than vLLM, because it has no prefix cache.
    """

    BACKEND = "transformers"

    def __init__(self, config: JudgeConfig) -> None:
        """Find model and tokenizer."""
        if config.engine_args:
            raise JudgeUnavailableError(
                f"engine arguments {sorted(config.engine_args)} belong to the vLLM backend; leave "
                "them out with --backend transformers"
            )
        super().__init__(config)

    @property
    def is_on_cpu(self) -> bool:
        """True if the loaded model is not on a GPU."""
        return self._engine is not None and self._engine.device.type == "cpu"

    def _load(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        model, _ = load_weights(
            AutoModelForCausalLM,
            self.model.location,
            name=f"judge {self.model.name!r}",
            error=JudgeUnavailableError,
            revision=self.model.hub_revision,
            dtype=getattr(torch, self.dtype),
        )
        return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def check(self, decoding: Decoding) -> None:
        """Refuse decoding ``choice``, which needs an engine with grammars."""
        if decoding.kind == "choice":
            raise JudgeUnavailableError(
                "--decode choice: the transformers backend cannot hold a reply to a list; use "
                "--backend vllm, or --decode expected"
            )
        super().check(decoding)

    def _generate(
        self, prompts: Sequence[Sequence[int]], decoding: Decoding
    ) -> Iterator[dict[int, Reply]]:
        order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
        answer = self._label_batch if decoding.kind == "expected" else self._generate_batch
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            batch_prompts = [prompts[index] for index in batch]
            thoughts = self._think(batch_prompts, decoding)
            replies = answer([thought.prompt for thought in thoughts] or batch_prompts, decoding)
            if thoughts:
                replies = [*map(after_thinking, thoughts, replies)]
            yield dict(zip(batch, replies, strict=True))

    def _think(self, prompts: Sequence[Sequence[int]], decoding: Decoding) -> list[Thought]:
        """Return the thinking about each prompt; empty if the answer is the only step."""
        if decoding.think_tokens is None:
            return []
        replies = self._generate_batch(prompts, thinking_step(decoding))
        return thoughts_of(self.tokenizer, prompts, replies, decoding)

    def _padded(self, prompts: Sequence[Sequence[int]], pad_id: int) -> dict[str, Any]:
        """Pad prompts on the left, so that the last token of each is in the last column."""
        import torch

        width, device = max(map(len, prompts)), self._engine.device
        rows = [[pad_id] * (width - len(ids)) + list(ids) for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        return {
            "input_ids": torch.tensor(rows, device=device),
            "attention_mask": torch.tensor(mask, device=device),
        }

    def _label_batch(self, prompts: Sequence[Sequence[int]], decoding: Decoding) -> list[Reply]:
        """Return the replies of decoding ``expected``."""
        import torch

        batch = self._padded(prompts, 0)
        position_ids = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        with torch.inference_mode():
            logits = self._engine(**batch, position_ids=position_ids, logits_to_keep=1).logits[
                :, -1
            ]
        label_ids = list(self.tokenizer.label_tokens(decoding.labels))
        logprobs = torch.log_softmax(logits.double(), dim=-1)[:, label_ids].tolist()
        return [
            label_reply(decoding, row, Usage(prompt_tokens=len(ids), output_tokens=1))
            for ids, row in zip(prompts, logprobs, strict=True)
        ]

    def _generate_batch(self, prompts: Sequence[Sequence[int]], decoding: Decoding) -> list[Reply]:
        """Return the replies of decoding ``text``, or those up to a stop."""
        import torch
        from transformers import GenerationConfig

        hf_tokenizer = self.tokenizer.hf_tokenizer
        end_ids = self._engine.generation_config.eos_token_id
        end_ids = hf_tokenizer.eos_token_id if end_ids is None else end_ids
        end_ids = list(end_ids) if isinstance(end_ids, list | tuple) else [int(end_ids)]
        batch = self._padded(prompts, end_ids[0])
        with torch.inference_mode():
            output = self._engine.generate(
                **batch,
                # Greedy: the penalties of the model's generation_config are for chat.
                generation_config=GenerationConfig(
                    max_new_tokens=decoding.max_reply_tokens,
                    do_sample=False,
                    pad_token_id=end_ids[0],
                    eos_token_id=end_ids,
                    stop_strings=[decoding.stop] if decoding.stop else None,
                ),
                tokenizer=hf_tokenizer,
            )
        replies = []
        for prompt, row in zip(prompts, output, strict=True):
            token_ids = row[batch["input_ids"].shape[1] :].tolist()
            stop = next((i for i, token_id in enumerate(token_ids) if token_id in end_ids), None)
            text = hf_tokenizer.decode(token_ids[:stop], skip_special_tokens=True)
            written_ids = token_ids if stop is None else token_ids[: stop + 1]
            if decoding.stop and decoding.stop in hf_tokenizer.decode(token_ids[:stop]):
                written_ids = token_ids[:stop]  # what follows a stop fills the row
            replies.append(
                Reply(
                    text=text,
                    is_complete=stop is not None,
                    usage=Usage(prompt_tokens=len(prompt), output_tokens=len(written_ids)),
                    token_ids=tuple(written_ids) if decoding.stop else (),
                )
            )
        return replies
