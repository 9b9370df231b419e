"""Check how a call refuses bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from encore.core.errors import InputError


def assert_refused(
    pattern: str, call: Callable[..., object], *arguments: object, **options: object
) -> None:
    """Check that a call with these arguments ends with an error of one line.

    Args:
        pattern: Regular expression that occurs in the error's message.
        call: Function that must refuse its input.
        arguments: Arguments of the function.
        options: Keyword arguments of the function.
    """
    with pytest.raises(InputError, match=pattern) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
