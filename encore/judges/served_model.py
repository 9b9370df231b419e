"""Is it the judge's model that a server has, and that answers?"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from encore.core.chat_tokenizer import ChatTokenizer
from encore.core.errors import JudgeUnavailableError
from encore.judges import http_protocol as protocol
from encore.judges.http_protocol import OtherModelError, first_words
from encore.judges.http_server import HttpServer
from encore.judges.judge_options import JudgeConfig
from encore.judges.model_names import advice_on_name, is_name_of
from encore.judges.server_options import ServerOptions

logger = logging.getLogger(__name__)

#: Text that another vocabulary, or other rules for digits and spaces, cut into other tokens.
_TOKENIZER_PROBE = "Rate 0.75 of 12,345:  naïve 文字 🙂\n\n\tEnd."


@dataclass(slots=True, kw_only=True)
class ServedModel:
    """The model of a judge on servers, as far as they tell.

    Attributes:
        config: Options with the judge's name.
        how: Options of the servers with their addresses.
        tokenizer: The judge's tokenizer; None if texts are sent.
        listed: The first server's list of models, by name; empty if it has none.
        answering_name: Name of the model in the first answer.
    """

    config: JudgeConfig
    how: ServerOptions
    tokenizer: ChatTokenizer | None
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    answering_name: str | None = None

    @property
    def context(self) -> int:
        """Return the context length that the server's list of models has for the judge.

        Raises:
            JudgeUnavailableError: It has none.
        """
        context = self.listed.get(self.config.model, {}).get("max_model_len")
        if not isinstance(context, int):
            raise self.refusal("does not say how long its context is; give --max-model-len")
        return context

    async def check_server(self, server: HttpServer) -> None:
        """Check that a server has the judge's model, with the context and tokenizer of the others.

        Raises:
            ServerAwayError: It is away.
            EncoreError: It has not.
        """
        models = await server.request(protocol.MODELS, None, protocol.read_models)
        config = self.config
        if models and {config.model, *config.served_models}.isdisjoint(models):
            names = first_words(", ".join(sorted(models)))
            raise self.refusal(
                f"has no such model; it has {names}: give one as --judge, or, if "
                f"{config.model!r} is a deployment of one, this one as --served-model",
                server,
            )
        self.listed = self.listed or models
        context, first_context = (
            listed.get(config.model, {}).get("max_model_len") for listed in (models, self.listed)
        )
        if context != first_context:
            raise self.refusal(
                f"has a context of {context} tokens, another server has {first_context}; start "
                "them with the same --max-model-len",
                server,
            )
        if self.tokenizer is not None and "n_ctx" in (
            models.get(config.model, {}).get("meta") or {}
        ):
            raise self.refusal(
                "is llama.cpp, and --tokenizer is for vLLM; leave it out: the server makes the "
                "tokens",
                server,
            )
        if self.tokenizer is not None:
            [own_ids] = self.tokenizer.encode_text([_TOKENIZER_PROBE])
            if await server.tokens_of(_TOKENIZER_PROBE) not in (None, own_ids):
                raise self.refusal(
                    f"makes other tokens of a text than {config.tokenizer} does; give the judge's "
                    "own tokenizer as --tokenizer",
                    server,
                )

    def check_answer(self, answer: Any) -> None:
        """Refuse an answer of another model than the judge.

        A server may answer with a prefix or a dated name of the model, as long as it stays the
        same, and with every name that the user accepts.

        Raises:
            OtherModelError: The answer is of another model.
        """
        config = self.config
        name = answer.get("model") if isinstance(answer, dict) else None
        if name is None or name in config.served_models:
            return
        if self.answering_name is None and is_name_of(name, config.model):
            self.answering_name = name
            if name != config.model:
                logger.warning("judge %s: the server answers as %r", config.model, name)
        if name != self.answering_name:
            expected = self.answering_name or config.model
            raise OtherModelError(
                f"judge {config.model!r}: {self.how.host} answers as another model, {name!r} "
                f"instead of {expected!r}; {advice_on_name(name, config)}",
                answer=answer,
            )

    def refusal(self, problem: str, server: HttpServer | None = None) -> JudgeUnavailableError:
        """Return the error of a server that cannot be used."""
        is_one_of_several = server is not None and len(self.how.base_urls) > 1
        address = server.url if server and is_one_of_several else self.how.host
        judge = f"judge {self.config.model!r}"
        return JudgeUnavailableError(f"{judge}: the server at {address} {problem}")
