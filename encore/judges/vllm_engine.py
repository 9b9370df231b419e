"""The vLLM judge: one offline engine, greedy, rebuilt after any interruption."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
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
from encore.settings import load_settings, quiet_environment

logger = logging.getLogger(__name__)

#: Engine arguments that change speed or memory but not which model answers: left out of the run
#: key, so that a run may continue on another machine.
SPEED_ARGS = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "enforce_eager",
        "enable_prefix_caching",
        "cpu_offload_gb",
        "disable_custom_all_reduce",
    }
)
#: Arguments the judge sets itself, or that would run or unpickle foreign code.
_OWN_ARGS = frozenset({"model", "tokenizer", "revision", "dtype", "max_model_len", "seed"})
_UNSAFE_ARGS = frozenset(
    {
        "trust_remote_code",
        "load_format",
        "worker_cls",
        "worker_extension_cls",
        "logits_processors",
        "reasoning_parser_plugin",
    }
)


class VllmJudge:
    """A judge on `vllm.LLM`.

    Speed is bounded by the engine's prefill: a reply is four or five tokens, its prompt some
    hundreds. Prompts that share their beginning and stand close together are computed once
    (prefix caching), so callers order them by pair.
    """

    def __init__(self, config: JudgeConfig) -> None:
        """Find model and tokenizer; the engine starts with the first reply."""
        _refuse_engine_args(config)
        _num_devices(config)
        self._config = config
        self._model = find_model(config)
        check_loadable(self._model)
        self._dtype = resolved_dtype(config, self._model)
        self._max_model_len = resolved_max_model_len(config, self._model)
        self._tokenizer = load_tokenizer(self._model)
        self._lock = threading.Lock()
        self._llm: Any = None

    @property
    def identity(self) -> JudgeIdentity:
        """What goes into the run key."""
        return JudgeIdentity(
            backend="vllm",
            name=self._model.name,
            revision=self._model.revision,
            dtype=self._dtype,
            chat_template_sha256=self._tokenizer.template_sha256,
            frozen_date=FROZEN_DATE,
            max_model_len=self._max_model_len,
            engine_args=tuple(
                (name, value)
                for name, value in sorted(self._config.engine_args.items())
                if name not in SPEED_ARGS
            ),
        )

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's own tokenizer and chat template."""
        return self._tokenizer

    @property
    def is_on_cpu(self) -> bool:
        """Whether the started engine is vLLM's build for CPUs."""
        return self._llm is not None and _is_cpu_build()

    def start(self) -> None:
        """Start the engine now."""
        with self._lock:
            if self._llm is None:
                self._llm = self._start_engine()

    def reply(
        self, prompts: Sequence[Sequence[int]], *, max_reply_tokens: int, on_progress: ProgressHook
    ) -> list[Reply]:
        """Greedy replies in prompt order; one generation at a time, whatever the thread."""
        with self._lock:
            on_progress(0)
            if self._llm is None:
                self._llm = self._start_engine()
            try:
                return self._generate(prompts, max_reply_tokens, on_progress)
            except BaseException:
                # Unfinished requests stay in an interrupted engine and its next call never
                # returns, so the engine goes, whatever the reason was.
                self._discard_engine()
                raise

    def close(self) -> None:
        """Stop the engine and free its memory."""
        with self._lock:
            self._discard_engine()

    def _generate(
        self, prompts: Sequence[Sequence[int]], max_reply_tokens: int, on_progress: ProgressHook
    ) -> list[Reply]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        on_progress(0)
        outputs = self._llm.generate(
            [TokensPrompt(prompt_token_ids=list(ids)) for ids in prompts],
            SamplingParams(temperature=0.0, max_tokens=max_reply_tokens),
            use_tqdm=_progress_class(on_progress),
        )
        return [
            Reply(
                text=output.outputs[0].text, is_complete=output.outputs[0].finish_reason == "stop"
            )
            for output in outputs
        ]

    def _start_engine(self) -> Any:
        _engine_environment(num_devices=_num_devices(self._config))
        try:
            with _without_remarks():
                from vllm import LLM
        except ImportError as error:
            raise JudgeUnavailableError(
                f"the vLLM backend needs the package vllm ({error}); install the extra 'judge' "
                "(CUDA) or 'judge-cpu', run `encore doctor`, or use --backend transformers"
            ) from error
        started = time.monotonic()
        try:
            with _without_remarks():
                llm = LLM(**self._engine_args())
        except Exception as error:  # an engine can fail to start in any way
            reason = " ".join(str(error).split())[:300]
            raise JudgeUnavailableError(
                f"judge {self._model.name!r}: vLLM could not start its engine: {reason}; "
                "`encore doctor` checks versions, GPU and memory"
            ) from error
        logger.info("vLLM engine ready in %.1f s", time.monotonic() - started)
        return llm

    def _engine_args(self) -> dict[str, Any]:
        args: dict[str, Any] = {
            "model": self._model.location,
            "revision": self._model.hub_revision,
            "dtype": self._dtype,
            "max_model_len": self._max_model_len,
            "load_format": "safetensors",
            "enable_prefix_caching": True,
            "seed": 0,
            "use_tqdm_on_load": False,
        }
        if _is_cpu_build():
            # Compiling costs most of a minute at start for 1.1-1.4x; the default block of 128
            # tokens halves the gain of prefix caching there.
            args |= {"enforce_eager": True, "block_size": 32}
        return args | self._config.engine_args

    def _discard_engine(self) -> None:
        if self._llm is None:
            return
        llm, self._llm = self._llm, None
        try:
            llm.llm_engine.engine_core.shutdown()
        except Exception:
            logger.warning("the old vLLM engine did not shut down cleanly", exc_info=True)
        del llm
        gc.collect()


def _refuse_engine_args(config: JudgeConfig) -> None:
    for name in config.engine_args:
        if name in _OWN_ARGS:
            raise JudgeUnavailableError(
                f"engine argument {name!r} is set by ENCORE; use the option of that name"
            )
        if name in _UNSAFE_ARGS:
            raise JudgeUnavailableError(
                f"engine argument {name!r} is refused: judges load safetensors weights with the "
                "engine's own code only"
            )


def _is_cpu_build() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _num_devices(config: JudgeConfig) -> int:
    num_devices = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        value = config.engine_args.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise JudgeUnavailableError(
                f"engine argument {name}: {value!r}, expected a whole number of devices"
            )
        num_devices *= value
    return num_devices


def _engine_environment(*, num_devices: int) -> None:
    """Read by vLLM when it is imported and started; what the user has set is kept.

    On one device the engine runs in this process: it starts in seconds and leaves nothing behind
    when the process is killed. Several devices need worker processes.
    """
    quiet_environment()
    if num_devices == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(load_settings().cpu_kv_cache_gib))


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Silence what the import and start of vLLM remark on parts that are not used here."""
    logging.getLogger("vllm.triton_utils.importing").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _progress_class(on_progress: ProgressHook) -> Callable[..., Any]:
    """A tqdm class that prints nothing and tells how many replies are finished."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class SilentProgress(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._started = time.monotonic()
            self._counts_replies = not args  # with an iterable, it counts prompts being added
            kwargs |= {"file": _Discard(), "mininterval": 1e9}
            super().__init__(*args, **kwargs)

        @property
        def format_dict(self) -> dict[str, Any]:
            return {"elapsed": max(time.monotonic() - self._started, 1e-9)}

        def display(self, *_args: Any, **_kwargs: Any) -> bool:
            return True

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            if self._counts_replies:
                on_progress(int(self.n))

    return SilentProgress


class _Discard:
    """A text stream that keeps nothing."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""
