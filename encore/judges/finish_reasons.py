"""Meaning of the words with which services say why a reply ended (``finish_reason``).

The protocol has `stop`, `length`, `content_filter`, `tool_calls` and `function_call`. Servers and
gateways add words of their own. Letter case, underscores, hyphens and a prefix such as
``FINISH_REASON_`` make no difference. A word that is not listed, or none, is a complete reply: the
text is read, and the case is counted.
"""

from __future__ import annotations

import re
from typing import Any, Literal

#: ``failed``: the server broke off for a reason of its own; another attempt may succeed.
EndMeaning = Literal["complete", "cut_off", "content_filter", "refusal", "failed", "unknown"]

#: Words by their meaning. Who says which: docs/http-judges.md.
_WORDS: dict[EndMeaning, str] = {
    "complete": """
        stop eos eos_token eos_found eot end end_turn end_of_text end_of_turn endoftext
        stop_sequence stop_token stop_string_found stopped complete completed finish finished done
        success normal tool_calls tool_call tool_use function_call
    """,
    "cut_off": """
        length max_length max_tokens max_new_tokens max_output_tokens max_completion_tokens
        max_predicted_tokens_reached model_length token_limit error_limit limit truncated
        context_length context_length_exceeded context_length_reached context_window_exceeded
        model_context_window_exceeded
    """,
    "content_filter": """
        content_filter content_filtered content_blocked content_policy_violation filtered safety
        image_safety recitation image_recitation blocklist prohibited_content
        image_prohibited_content spii sensitive guardrail_intervened guardrails error_toxic
        model_armor moderation jailbreak
    """,
    "refusal": "refusal refused",
    "failed": """
        error abort aborted cancel cancelled canceled user_cancel interrupted incomplete
        not_finished timeout time_limit network_error server_error internal_error
        insufficient_system_resource malformed_response malformed_model_output
    """,
}
_PREFIX = re.compile(r"^(finish|stop)_?reason[_.:]*", re.IGNORECASE)


def _normalised(finish_reason: str) -> str:
    """Return a word in small letters, without a prefix and without signs between its parts."""
    return re.sub(r"[^a-z0-9]", "", _PREFIX.sub("", finish_reason.strip()).lower())


_MEANING_BY_WORD: dict[str, EndMeaning] = {
    _normalised(finish_reason): meaning
    for meaning, finish_reasons in _WORDS.items()
    for finish_reason in finish_reasons.split()
}


def meaning_of_end(finish_reason: Any) -> EndMeaning:
    """Return what the ``finish_reason`` of a reply means; ``unknown`` if it is none of the words.

    >>> meaning_of_end("MAX_TOKENS"), meaning_of_end("eos_token"), meaning_of_end(None)
    ('cut_off', 'complete', 'unknown')
    """
    if not isinstance(finish_reason, str):
        return "unknown"
    return _MEANING_BY_WORD.get(_normalised(finish_reason), "unknown")
