"""Messages of one line and of several."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forerun.chat.line_input import printable, read_message


def lines(*typed: str) -> Callable[[str], str]:
    remaining = list(typed)

    def read(prompt: str) -> str:
        if not remaining:
            raise EOFError
        return remaining.pop(0)

    return read


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hello"], "hello"),
        (["", "  ", "hello"], "hello"),
        (["one\\", "two\\", "three", "four"], "one\ntwo\nthree"),
        (['"""', "def f():", "    return 1", '"""', "rest"], "def f():\n    return 1"),
        (['"""one', "", 'two"""'], "one\n\ntwo"),
        (['"""one"""'], "one"),
        (["def f():\n    return 1\n", "rest"], "def f():\n    return 1"),
        (["one\ntwo\\", "rest"], "one\ntwo\\"),
        (['"""one\ntwo', "rest"], '"""one\ntwo'),
        (["hello\n", "rest"], "hello"),
        (['"""', "one\ntwo", '"""'], "one\ntwo"),
    ],
)
def test_messages(typed: list[str], message: str) -> None:
    assert read_message(lines(*typed)) == message


@pytest.mark.parametrize("typed", [[], [" "], ["a\\"], ['"""', "a"]])
def test_the_end_of_the_input(typed: list[str]) -> None:
    with pytest.raises(EOFError):
        read_message(lines(*typed))


@pytest.mark.parametrize(
    ("typed", "text"), [("caf\udce9", "caf\ufffd"), ("a\udcff\udcfeb", "a\ufffd\ufffdb"), ("é", "é"), ("\udcc3\udca9", "é")]
)
def test_what_is_not_utf_8(typed: str, text: str) -> None:
    assert printable(typed) == text
