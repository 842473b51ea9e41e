"""Requests that a dialect must refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forerun.errors import BadRequestError


def refusals(ask: Callable[..., object]) -> Callable[..., BadRequestError]:
    """A function that sends a request and returns the error that it must raise."""

    def refusal(**body: object) -> BadRequestError:
        with pytest.raises(BadRequestError) as caught:
            ask(**body)
        return caught.value

    return refusal
