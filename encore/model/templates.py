"""Chat templates that render the same on every day: what a reward model is trained and saved with.

A template is a program, and stock Llama-3.1's prints a date. A reward model must give one score to
one conversation, so the template is frozen before anything is tokenised, and the frozen text is the
one that is saved beside the weights.
"""

from __future__ import annotations

from encore.judges.chat import FROZEN_DATE

#: For a backbone that brings no template. ``{begin}`` and ``{end}`` are its own special tokens.
_PLAIN = (
    "{{{{- '{begin}' -}}}}"
    "{{%- for message in messages -%}}"
    "{{%- if message['role'] == 'user' -%}}{{{{- 'Human: ' -}}}}"
    "{{%- elif message['role'] == 'assistant' -%}}{{{{- 'Assistant: ' -}}}}"
    "{{%- elif message['role'] == 'system' -%}}{{{{- 'System: ' -}}}}"
    "{{%- else -%}}{{{{- raise_exception('roles are system, user and assistant') -}}}}"
    "{{%- endif -%}}"
    "{{{{- message['content'] | trim -}}}}"
    "{{%- if not loop.last -%}}{{{{- '\\n\\n' -}}}}{{%- endif -%}}"
    "{{%- endfor -%}}"
    "{{%- if add_generation_prompt -%}}{{{{- '\\n\\nAssistant:' -}}}}"
    "{{%- else -%}}{{{{- '{end}' -}}}}{{%- endif -%}}"
)

#: Llama-3's format without the knowledge and today dates its 3.1 and later templates print.
_LLAMA_3 = (
    "{{- '<|begin_of_text|>' -}}"
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' "
    "+ message['content'] | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}"
    "{%- endif -%}"
)

#: What templates ask the day with: a variable the caller may set, a function of the renderer.
_DATE_WORDS = ("date_string", "strftime_now")

_PIN = (
    f"{{%- set date_string = '{FROZEN_DATE}' -%}}"
    f"{{%- macro strftime_now(format) -%}}{FROZEN_DATE}{{%- endmacro -%}}"
)


def plain_template(*, begin: str, end: str) -> str:
    """Turns as ``Human: …`` and ``Assistant: …``, separated by blank lines.

    Args:
        begin: The token a text of this backbone begins with ('' for none).
        end: The token it ends with.
    """
    return _PLAIN.format(begin=_quoted(begin), end=_quoted(end))


def freeze_template(template: str) -> str:
    """The template if it prints no date, else one that prints none or always the same.

    Llama-3's is replaced by its own format without dates; any other keeps its text, with the day
    pinned to one date.
    """
    prints_a_date = any(word in template for word in _DATE_WORDS)
    if prints_a_date and "<|start_header_id|>" in template and "<|eot_id|>" in template:
        return _LLAMA_3
    return pin_template(template)


def pin_template(template: str) -> str:
    """The template as it is, but for the day, which is one date."""
    if template.startswith(_PIN) or not any(word in template for word in _DATE_WORDS):
        return template
    return _PIN + template


def _quoted(token: str) -> str:
    return token.replace("\\", "\\\\").replace("'", "\\'")
