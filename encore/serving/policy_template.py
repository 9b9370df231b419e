"""Read a conversation back from the text that a policy's chat template rendered.

Nothing is known about families of templates. The template is rendered around markers once, and the
text between the markers is what separates turns. A text that these separators do not cut into turns
in one way is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from encore.core.errors import InputError
from encore.core.model_files import refuse_missing_folder
from encore.core.transformers_loading import loading_errors
from encore.data.records import Message, Role

_MARKER = "ENCORE-TURN-{}-MARKER"
_MARKERS = re.compile(r"ENCORE-TURN-\d+-MARKER")
#: Stands for the date that some templates print. Any text of one line is read in its place.
_DATE = "ENCORE-DATE-MARKER"
_DATE_PATTERN = r"[^\n<>|]{4,40}"
#: Conversations that must be read back as they are; the last content is the response.
_TEST_CONTENTS = (("Hi.", "Yes.\n\nNo."), ("Hi.\n\nHow?", "é", "Human: a", "b\n  c"))
_TEST_ROLES: tuple[Role, ...] = ("user", "assistant", "user")


class ParsedText(NamedTuple):
    """A rendered text as messages. ``has_ended`` is False if no end token follows the response."""

    prompt: tuple[Message, ...]
    response: str
    has_ended: bool


class PolicyTemplate:
    """Parser of the texts that one chat template renders.

    A system message that the template puts into the first user turn stays part of that turn.

    Args:
        hf_tokenizer: Tokenizer of the policy, with its chat template.

    Raises:
        InputError: There is no chat template, or its texts cannot be read back.
    """

    def __init__(self, hf_tokenizer: Any) -> None:
        self._hf_tokenizer = hf_tokenizer
        self._name = str(hf_tokenizer.name_or_path)
        try:
            begin, to_reply, to_user, _ = self._frame("user", "assistant", "user")
            *_, tail = self._frame("user", "assistant", is_complete=True)
            # Some templates end the header of a reply in two ways, with thinking and without.
            generations = {
                self._frame("user", enable_thinking=thinks)[-1] for thinks in (True, False)
            }
        except ValueError as error:
            raise self._unusable(str(error)) from error
        try:
            system_begin, system_end, _ = self._frame("system", "user")
        except ValueError:
            system_begin, system_end = begin, ""  # the template has no system message
        # The longer beginning says more: it is tried first. If both are equal, there is no telling.
        starts = {system_begin: system_end} | {begin: ""}
        self._starts = [
            (_pattern(start), _pattern(starts[start]) if starts[start] else None)
            for start in sorted(starts, key=len, reverse=True)
        ]
        self._reply, self._generation = _pattern(to_reply), _pattern(*generations)
        replies = _pattern(to_reply, *generations).pattern
        self._separators = re.compile(f"(?P<reply>{replies})|(?P<user>{_pattern(to_user).pattern})")
        special = [str(t) for t in hf_tokenizer.added_tokens_decoder.values() if t.special]
        frame = "".join([begin, to_reply, to_user, *generations])
        self._frame_tokens = [token for token in special if token in frame]
        self._end_tokens = {token for token in special if token in tail} | {hf_tokenizer.eos_token}
        self._padding = {hf_tokenizer.pad_token, *self._end_tokens} - {None}
        self._check(tail)

    def parse(self, text: str) -> ParsedText:
        """Return the messages of a rendered text that ends with an assistant's turn.

        Raises:
            ValueError: The text cannot be read in one way; the message says why.
        """
        body, has_ended = self._without_padding(text)
        prompt, position = self._read_system(body)
        separators = list(self._separators.finditer(body, position))
        kinds = [separator.lastgroup for separator in separators]
        if kinds != ["reply", "user"] * (len(kinds) // 2) + ["reply"]:
            raise ValueError("its turns do not alternate and end with the assistant's")
        for index, separator in enumerate(separators):
            header: re.Match[str] | None = separator
            if separator.lastgroup == "reply":
                is_last = index == len(separators) - 1
                pattern = self._generation if is_last else self._reply
                header = pattern.match(body, separator.start())
            if header is None:
                raise ValueError("an assistant's turn does not begin as in that template")
            role: Role = "user" if separator.lastgroup == "reply" else "assistant"
            prompt.append(Message(role=role, content=body[position : separator.start()]))
            position = header.end()
        response = body[position:]
        for content in (*(message.content for message in prompt), response):
            for token in self._frame_tokens:
                if token in content:
                    raise ValueError(f"token {token!a} is within a message")
        return ParsedText(tuple(prompt), response, has_ended)

    def _read_system(self, body: str) -> tuple[list[Message], int]:
        """Return the system message, if there is one, and where the first user turn begins."""
        for start, system_end in self._starts:
            if (begin := start.match(body)) is None:
                continue
            if system_end is None:
                return [], begin.end()
            if (end := system_end.search(body, begin.end())) is not None:
                content = body[begin.end() : end.start()]
                return [Message(role="system", content=content)], end.end()
        raise ValueError("it does not begin as that template begins")

    def _without_padding(self, text: str) -> tuple[str, bool]:
        """Return the text between its padding, and True if an end token follows it."""
        start, stop, has_ended = 0, len(text), False
        # The token that begins a text may also be the one that pads it.
        while not any(begin.match(text, start) for begin, _ in self._starts):
            token = next((token for token in self._padding if text.startswith(token, start)), None)
            if token is None:
                break
            start += len(token)
        while True:
            last = stop
            while last > start and text[last - 1].isspace():
                last -= 1
            tokens = (token for token in self._padding if text.endswith(token, start, last))
            token = next(tokens, None)
            if token is None:
                return text[start:stop], has_ended
            stop = last - len(token)
            has_ended |= token in self._end_tokens

    def _frame(self, *roles: str, **options: bool) -> list[str]:
        """Return the text before, between and after messages of these roles.

        Unless the conversation ``is_complete``, the text after them begins the assistant's turn.
        """
        markers = [_MARKER.format(index) for index in range(len(roles))]
        text = self._render(markers, roles, **options)
        if _MARKERS.findall(text) != markers:
            raise ValueError(f"it changes or drops a message of roles {' '.join(roles)}")
        return _MARKERS.split(text)

    def _render(
        self,
        contents: Sequence[str],
        roles: Sequence[str],
        *,
        is_complete: bool = False,
        **options: bool,
    ) -> str:
        messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
        try:
            text: str = self._hf_tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=not is_complete,
                date_string=_DATE,
                strftime_now=lambda _format: _DATE,
                **options,
            )
        except Exception as error:  # a template is a program
            reason = f"it does not render roles {' '.join(roles)} ({type(error).__name__}: {error})"
            raise ValueError(reason) from error
        return text

    def _check(self, tail: str) -> None:
        """Read some rendered conversations back, and refuse a template that loses any."""
        for *contents, response in _TEST_CONTENTS:
            roles = _TEST_ROLES[: len(contents)]
            turns = zip(roles, contents, strict=True)
            prompt = tuple(Message(role=role, content=content) for role, content in turns)
            text = self._render(contents, roles) + response + tail
            try:
                parsed = self.parse(text)
            except ValueError as error:
                raise self._unusable(str(error)) from error
            if parsed[:2] != (prompt, response):
                raise self._unusable("a rendered conversation is read back with other messages")

    def _unusable(self, reason: str) -> InputError:
        return InputError(
            f"--policy-tokenizer {self._name!r}: its chat template cannot be read back ({reason}); "
            "send messages to /score instead of rendered texts"
        )


def load_policy_template(model: str) -> PolicyTemplate:
    """Load the tokenizer of a policy from a folder or the hub. No code of the model is run.

    Raises:
        InputError: There is no such tokenizer, or its template cannot be read back.
    """
    from transformers import AutoTokenizer

    refuse_missing_folder("policy's tokenizer", model)
    problem = f"--policy-tokenizer {model}: no tokenizer that loads; expected a folder or a hub id"
    with loading_errors(problem, InputError):
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    return PolicyTemplate(tokenizer)


def _pattern(*texts: str) -> re.Pattern[str]:
    """Return a pattern of one of the texts, the longest that fits, with any date."""
    escaped = map(re.escape, sorted(texts, key=len, reverse=True))
    return re.compile("|".join(escaped).replace(re.escape(_DATE), _DATE_PATTERN))
