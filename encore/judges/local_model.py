"""Base class of the judges whose weights are loaded on this machine."""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from encore.core.chat_tokenizer import FROZEN_DATE, load_tokenizer
from encore.core.errors import JudgeUnavailableError
from encore.core.model_files import ModelFiles, ModelFinder, local_path
from encore.core.number_formats import is_imitated
from encore.judges.base import (
    Decoding,
    JudgeIdentity,
    ProgressHook,
    Prompt,
    Reply,
    ReplyHook,
    ignore_reply,
)
from encore.judges.judge_options import JudgeConfig

logger = logging.getLogger(__name__)

_DEFAULT_CONTEXT = 8192
_DTYPES = ("float32", "bfloat16", "float16")
_JUDGE = ModelFinder(name="judge", error=JudgeUnavailableError)


class LocalJudge(ABC):
    """Judge (`encore.judges.base.Judge`) on a folder or a hub model. A backend is a subclass.

    Opening it finds the model's files and loads the tokenizer. The weights are loaded by `start`
    or by the first reply.
    """

    BACKEND: ClassVar[str]
    #: Engine arguments that change speed or memory but no reply. The run key leaves them out, so
    #: that a run may continue on another machine.
    SPEED_ARGS: ClassVar[frozenset[str]] = frozenset()
    is_remote = False
    num_engines = 1
    wait_seconds = 0.0

    def __init__(self, config: JudgeConfig, *, is_here: bool = True) -> None:
        """Find the model and check its files, which an engine would do a minute later.

        Args:
            config: The judge.
            is_here: False if engines of other machines load the weights, whose processors and GPUs
                are not known here.
        """
        self.config = config
        self.model = _JUDGE.find(config.model, revision=config.revision)
        if self.model.hub_revision is None:
            folder = local_path(self.model.location)
            _refuse_broken_weights(folder, self.model.name)
        self.dtype = resolved_dtype(config, self.model)
        if is_here:
            self._use_native_format()
        self.max_model_len = resolved_max_model_len(config, self.model)
        self.tokenizer = load_tokenizer(self.model, config.chat)
        self._lock = threading.Lock()
        self._engine: Any = None

    @property
    def identity(self) -> JudgeIdentity:
        """Part of the run key."""
        return JudgeIdentity(
            backend=self.BACKEND,
            name=self.model.name,
            revision=self.model.revision,
            dtype=self.dtype,
            chat_template_sha256=self.tokenizer.template_sha256,
            frozen_date=FROZEN_DATE,
            max_model_len=self.max_model_len,
            engine_args={
                name: value
                for name, value in sorted(self.config.engine_args.items())
                if name not in self.SPEED_ARGS
            }
            | self.tokenizer.options.keyed,
        )

    @property
    @abstractmethod
    def is_on_cpu(self) -> bool:
        """True if generation runs on the processor's cores; known once the model is loaded."""

    def check(self, decoding: Decoding) -> None:
        """Refuse labels of decoding ``expected`` that are not one token each."""
        if decoding.kind == "expected":
            self.tokenizer.label_tokens(decoding.labels)

    def _use_native_format(self) -> None:
        """Load float32 if the number format is the model's own, and this machine imitates it."""
        if self.config.dtype == "auto" and self.dtype != "float32" and is_imitated(self.dtype):
            logger.warning(
                "judge %s: it is loaded in float32, because this processor has no units for %s; "
                "--dtype %s takes that all the same",
                *(self.model.name, self.dtype, self.dtype),
            )
            self.dtype = "float32"

    def start(self) -> None:
        """Load the model now."""
        with self._lock:
            if self._engine is None:
                self._engine = self._load()

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        decoding: Decoding,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        **_options: Any,
    ) -> list[Reply]:
        """Return the replies in prompt order. Threads wait for each other.

        The other options are for servers: there is one engine, and no prompt fails alone.
        """
        token_ids = [prompt for prompt in prompts if not isinstance(prompt, str)]
        assert len(token_ids) == len(prompts), "encode_prompts returns token ids for this judge"
        replies: dict[int, Reply] = {}
        with self._lock:
            on_progress(0)
            if self._engine is None:
                self._engine = self._load()
            try:
                on_progress(0)
                for finished in self._generate(token_ids, decoding):
                    replies |= finished
                    for index, reply in finished.items():
                        on_reply(index, reply)
                    on_progress(len(replies))
            except BaseException:
                # An interrupted vLLM keeps its unfinished requests and its next call never
                # returns, so the engine is discarded after every error.
                self._discard()
                raise
        return [replies[index] for index in range(len(prompts))]

    def close(self) -> None:
        """Release the engine's memory and processes."""
        with self._lock:
            self._discard()

    @abstractmethod
    def _load(self) -> Any:
        """Load and return the model or engine."""

    @abstractmethod
    def _generate(
        self, prompts: Sequence[Sequence[int]], decoding: Decoding
    ) -> Iterator[Mapping[int, Reply]]:
        """Yield the replies of the loaded engine as they are finished, by their prompt's index."""

    def _discard(self) -> None:
        """Release the engine."""
        self._engine = None


def _refuse_broken_weights(folder: Path, name: str) -> None:
    """Refuse incomplete weight files: opening one compares its length with its header."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        return  # loading the tokenizer names the missing packages
    paths = set(folder.glob("*.safetensors"))
    for index in folder.glob("*.safetensors.index.json"):
        names = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values()
        paths |= {folder / part for part in names}
    for path in sorted(paths):
        try:
            with safe_open(path, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise JudgeUnavailableError(
                f"judge {name!r}: {path.name} is missing, cut short or no safetensors file "
                f"({error}); copy or download the weights again"
            ) from error


def resolved_dtype(config: JudgeConfig, model: ModelFiles) -> str:
    """Return the number format to load: the option's, or else the one in the model's config.json.

    vLLM's own ``auto`` converts float32 to bfloat16 without notice.

    Raises:
        JudgeUnavailableError: The model declares a format that is not supported.
    """
    if config.dtype != "auto":
        return config.dtype
    declared = model.config.get("dtype") or model.config.get("torch_dtype") or "float32"
    dtype = str(declared).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise JudgeUnavailableError(
            f"judge {model.name!r}: its config.json says dtype {dtype!r}, expected one of "
            f"{', '.join(_DTYPES)}; give --dtype"
        )
    return dtype


def resolved_max_model_len(config: JudgeConfig, model: ModelFiles) -> int:
    """Return the context length in tokens: the option's, or else the model's up to 8,192.

    The limit keeps the KV cache of a judge with a context of 128K tokens within one GPU.
    Preference data is far shorter; prompts that are longer are counted. What vLLM's
    ``hf_overrides`` changes in the model's config.json counts instead.

    Raises:
        JudgeUnavailableError: The option asks for more than the model has.
    """
    overrides = config.engine_args.get("hf_overrides")
    values = model.config | (overrides if isinstance(overrides, dict) else {})
    model_len = values.get("max_position_embeddings") or values.get("n_positions")
    if not isinstance(model_len, int):
        return config.max_model_len or _DEFAULT_CONTEXT
    if config.max_model_len is not None and config.max_model_len > model_len:
        raise JudgeUnavailableError(
            f"judge {model.name!r}: max_model_len {config.max_model_len} is more than the model's "
            f"own {model_len}; give at most that"
        )
    return config.max_model_len or min(model_len, _DEFAULT_CONTEXT)
