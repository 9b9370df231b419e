"""Load a judge's tokenizer: no remote code, one clear error."""

from __future__ import annotations

from encore.errors import JudgeUnavailableError
from encore.judges.chat import ChatTokenizer
from encore.judges.model_files import ModelFiles


def load_tokenizer(model: ModelFiles) -> ChatTokenizer:
    """The tokenizer of a judge with its chat template.

    Raises:
        JudgeUnavailableError: transformers is missing, or the model has no tokenizer or no chat
            template.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise JudgeUnavailableError(
            f"a judge needs the package transformers ({error}); install the extra 'judge', "
            "'judge-cpu' or 'train', then run `encore doctor`"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model.location, revision=model.hub_revision, trust_remote_code=False
        )
    except Exception as error:  # a tokenizer file can be wrong in any way
        reason = " ".join(str(error).split())[:200]
        raise JudgeUnavailableError(
            f"judge {model.name!r}: its tokenizer does not load ({reason}); expected "
            "tokenizer.json and tokenizer_config.json beside the weights"
        ) from error
    return ChatTokenizer(tokenizer)
