"""A judge whose weights are loaded on this machine: what its backends share."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from encore.core.chat_tokenizer import FROZEN_DATE, load_tokenizer
from encore.core.errors import JudgeUnavailableError
from encore.core.model_files import ModelFiles, ModelFinder
from encore.judges.base import Decoding, JudgeIdentity, ProgressHook, Prompt, Reply
from encore.judges.judge_config import JudgeConfig

_DEFAULT_CONTEXT = 8192
_DTYPES = ("float32", "bfloat16", "float16")
_JUDGE = ModelFinder(name="judge", error=JudgeUnavailableError)


class LocalJudge(ABC):
    """A `encore.judges.base.Judge` on a folder or a hub model. A backend is a subclass.

    Opening it finds the model's files and its tokenizer; the weights are loaded by `start` or with
    the first reply.
    """

    BACKEND: ClassVar[str]
    #: Engine arguments that change speed or memory but not which model answers: left out of the run
    #: key, so that a run may continue on another machine.
    SPEED_ARGS: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: JudgeConfig) -> None:
        """Find the model, and look at its files before an engine takes a minute to do so."""
        self.config = config
        self.model = _JUDGE.find(config.model, revision=config.revision)
        if self.model.hub_revision is None:
            folder = Path(self.model.location).expanduser()
            _refuse_broken_weights(folder, self.model.name)
        self.dtype = resolved_dtype(config, self.model)
        self.max_model_len = resolved_max_model_len(config, self.model)
        self.tokenizer = load_tokenizer(self.model)
        self._lock = threading.Lock()
        self._engine: Any = None

    @property
    def identity(self) -> JudgeIdentity:
        """What goes into the run key."""
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
            },
        )

    @property
    @abstractmethod
    def is_on_cpu(self) -> bool:
        """Whether generation takes the processor's cores; known once the model is loaded."""

    def check(self, decoding: Decoding) -> None:
        """Refuse labels of `expected` that are not one token each."""
        if decoding.kind == "expected":
            self.tokenizer.label_tokens(decoding.labels)

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
        sessions: Sequence[str] = (),  # noqa: ARG002 - one engine
    ) -> list[Reply]:
        """Replies in prompt order; one generation at a time, whatever the thread."""
        token_ids = [prompt for prompt in prompts if not isinstance(prompt, str)]
        assert len(token_ids) == len(prompts), "encoded by this judge's tokenizer"
        with self._lock:
            on_progress(0)
            if self._engine is None:
                self._engine = self._load()
            try:
                on_progress(0)
                return self._generate(token_ids, decoding, on_progress)
            except BaseException:
                # Unfinished requests stay in an interrupted vLLM and its next call never returns,
                # so the engine goes, whatever the reason was.
                self._discard()
                raise

    def close(self) -> None:
        """Release the engine's memory and processes."""
        with self._lock:
            self._discard()

    @abstractmethod
    def _load(self) -> Any:
        """The loaded model or engine."""

    @abstractmethod
    def _generate(
        self, prompts: Sequence[Sequence[int]], decoding: Decoding, on_progress: ProgressHook
    ) -> list[Reply]:
        """Replies of the loaded engine."""

    def _discard(self) -> None:
        self._engine = None

    def _unavailable(self, what: str, error: Exception, advice: str) -> JudgeUnavailableError:
        reason = " ".join(str(error).split())[:300]
        return JudgeUnavailableError(f"judge {self.model.name!r}: {what}: {reason}; {advice}")


def _refuse_broken_weights(folder: Path, name: str) -> None:
    """Open every weight file: safetensors compares its length with its header."""
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
    """The number format to load: the config's, or the one the weights were saved for.

    vLLM's own ``auto`` quietly turns float32 into bfloat16; a judge is loaded as it declares.
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
    """The context length in tokens: the config's, else the model's own up to 8,192.

    The cap keeps a 128K-context judge's KV cache within one GPU; preference data is far shorter,
    and what is longer is counted, not lost.

    Raises:
        JudgeUnavailableError: The config asks for more than the model has.
    """
    own = model.config.get("max_position_embeddings") or model.config.get("n_positions")
    if not isinstance(own, int):
        return config.max_model_len or _DEFAULT_CONTEXT
    if config.max_model_len is not None and config.max_model_len > own:
        raise JudgeUnavailableError(
            f"judge {model.name!r}: max_model_len {config.max_model_len} is more than the model's "
            f"own {own}; give at most that"
        )
    return config.max_model_len or min(own, _DEFAULT_CONTEXT)
