"""The transformers judge: where vLLM cannot run. Same interface, same replies, slower."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from encore.config import JudgeConfig
from encore.errors import JudgeUnavailableError
from encore.judges.base import JudgeIdentity, ProgressHook, Reply
from encore.judges.chat import FROZEN_DATE, ChatTokenizer
from encore.judges.model_files import (
    check_loadable,
    find_model,
    resolved_dtype,
    resolved_max_model_len,
)
from encore.judges.tokenizer import load_tokenizer

_BATCH = 16


class TransformersJudge:
    """A judge on `transformers` generation, in length-sorted batches.

    Speed is bounded by prefill without any prefix cache: several times slower than vLLM.
    """

    def __init__(self, config: JudgeConfig) -> None:
        """Find model and tokenizer; the weights are loaded with the first reply."""
        if config.engine_args:
            raise JudgeUnavailableError(
                f"engine arguments {sorted(config.engine_args)} belong to the vLLM backend; leave "
                "them out with --backend transformers"
            )
        self._model_files = find_model(config)
        check_loadable(self._model_files)
        self._dtype = resolved_dtype(config, self._model_files)
        self._max_model_len = resolved_max_model_len(config, self._model_files)
        self._tokenizer = load_tokenizer(self._model_files)
        self._lock = threading.Lock()
        self._model: Any = None

    @property
    def identity(self) -> JudgeIdentity:
        """What goes into the run key."""
        return JudgeIdentity(
            backend="transformers",
            name=self._model_files.name,
            revision=self._model_files.revision,
            dtype=self._dtype,
            chat_template_sha256=self._tokenizer.template_sha256,
            frozen_date=FROZEN_DATE,
            max_model_len=self._max_model_len,
            engine_args=(),
        )

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's own tokenizer and chat template."""
        return self._tokenizer

    @property
    def is_on_cpu(self) -> bool:
        """Whether the loaded model is not on a GPU."""
        return self._model is not None and self._model.device.type == "cpu"

    def start(self) -> None:
        """Load the weights now."""
        with self._lock:
            if self._model is None:
                self._model = self._load()

    def reply(
        self, prompts: Sequence[Sequence[int]], *, max_reply_tokens: int, on_progress: ProgressHook
    ) -> list[Reply]:
        """Greedy replies in prompt order. An interruption leaves nothing behind in the model."""
        with self._lock:
            on_progress(0)
            if self._model is None:
                self._model = self._load()
            on_progress(0)
            order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
            replies: dict[int, Reply] = {}
            for start in range(0, len(order), _BATCH):
                batch = order[start : start + _BATCH]
                texts = self._generate([prompts[index] for index in batch], max_reply_tokens)
                replies.update(zip(batch, texts, strict=True))
                on_progress(len(replies))
            return [replies[index] for index in range(len(prompts))]

    def close(self) -> None:
        """Free the weights."""
        with self._lock:
            self._model = None

    def _load(self) -> Any:
        name = self._model_files.name
        try:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils.logging import disable_progress_bar

            disable_progress_bar()
            model, loaded = AutoModelForCausalLM.from_pretrained(
                self._model_files.location,
                revision=self._model_files.hub_revision,
                dtype=getattr(torch, self._dtype),
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:  # weight files can be wrong in any way
            reason = " ".join(str(error).split())[:300]
            raise JudgeUnavailableError(
                f"judge {name!r}: its weights do not load ({type(error).__name__}: {reason}); "
                "expected complete *.safetensors of the architecture in config.json"
            ) from error
        absent = sorted(map(str, [*loaded["missing_keys"], *loaded["mismatched_keys"]]))
        if absent:
            raise JudgeUnavailableError(
                f"judge {name!r}: {len(absent)} weights are missing or of another shape, first "
                f"{', '.join(absent[:3])}; they would be random, so the judge is refused"
            )
        return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def _generate(self, prompts: Sequence[Sequence[int]], max_reply_tokens: int) -> list[Reply]:
        import torch
        from transformers import GenerationConfig

        ends = self._end_token_ids()
        width = max(map(len, prompts))
        pad = ends[0]
        rows = [[pad] * (width - len(ids)) + list(ids) for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=torch.tensor(rows, device=self._model.device),
                attention_mask=torch.tensor(mask, device=self._model.device),
                # Plain greedy: the penalties of the model's own generation_config are for chat.
                generation_config=GenerationConfig(
                    max_new_tokens=max_reply_tokens,
                    do_sample=False,
                    pad_token_id=pad,
                    eos_token_id=ends,
                ),
            )
        return [self._reply(row[width:].tolist(), ends) for row in output]

    def _reply(self, token_ids: list[int], ends: list[int]) -> Reply:
        stops = [index for index, token in enumerate(token_ids) if token in ends]
        kept = token_ids[: stops[0]] if stops else token_ids
        text = self._tokenizer.hf_tokenizer.decode(kept, skip_special_tokens=True)
        return Reply(text=text, is_complete=bool(stops))

    def _end_token_ids(self) -> list[int]:
        configured = self._model.generation_config.eos_token_id
        if configured is None:
            configured = self._tokenizer.hf_tokenizer.eos_token_id
        return list(configured) if isinstance(configured, list | tuple) else [int(configured)]
