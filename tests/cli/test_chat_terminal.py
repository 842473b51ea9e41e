"""`forerun chat` in a terminal: pastes, Ctrl-C, what is not UTF-8, output that is not."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S
from tests.wire import Wire, frame, report, serving, stream

# The terminal becomes the process's own, so that Ctrl-C in it interrupts the process.
START = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from forerun.cli import main; main()"
READS = b"\x1b[?2004h"  # written when a line can be typed: versions of prompt-toolkit draw the prompt's own characters differently
PASTE, END, CTRL_C, CTRL_D, ENTER = b"\x1b[200~", b"\x1b[201~", b"\x03", b"\x04", b"\r"


class Terminal:
    """A process in a terminal. shown: the bytes that it has written; those before `_expected` were waited for."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self._process, self._descriptor, self.shown, self._expected = process, descriptor, b"", 0

    def type(self, *keys: bytes) -> None:
        os.write(self._descriptor, b"".join(keys))

    def expect(self, text: bytes) -> None:
        """Wait for the text, after what was waited for before."""
        while (at := self.shown.find(text, self._expected)) < 0:
            more = self._read()
            assert more, f"{text!r} did not come: {self.shown[self._expected :]!r}"
            self.shown += more
        self._expected = at + len(text)

    def ends(self) -> int:
        """The exit code, after the rest of the output."""
        while more := self._read():
            self.shown += more
        return self._process.wait(LIMIT_S)

    def _read(self) -> bytes:
        """What comes next, b"" at the end."""
        assert select.select([self._descriptor], [], [], LIMIT_S)[0], f"nothing more came: {self.shown!r}"
        try:
            return os.read(self._descriptor, 1 << 16)
        except OSError:  # Linux: the process has ended
            return b""


@contextmanager
def chatting(folder: Path, url: str, **environment: str) -> Iterator[Terminal]:
    """`forerun chat` at its first prompt, in a terminal of 80 columns."""
    own, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 80))
    more = {"XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    command = [sys.executable, "-c", START, "chat", "--url", url]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True, env=os.environ | more | environment)
    os.close(its)
    try:
        terminal = Terminal(process, own)
        terminal.expect(READS)
        yield terminal
    finally:
        process.kill()
        process.wait()
        os.close(own)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving() as wire:
        wire.answers.extend(stream("good day", report()) for _ in range(3))
        yield wire


def sent(wire: Wire) -> list[str]:
    return [body["messages"][-1]["content"] for body in wire.bodies]


@pytest.mark.parametrize("pasted", ["def f():\n    return 1\n", "/stats\nis a command", '"""\ntwo\n\nthree\n', "ends\\\nthus\\", "é\r\n漢"])
def test_a_paste_of_several_lines_is_one_message(tmp_path: Path, wire: Wire, pasted: str) -> None:
    with chatting(tmp_path, wire.url) as terminal:
        terminal.type(PASTE, pasted.encode(), END, ENTER)
        terminal.expect(b"tokens/s")
        terminal.expect(READS)
        terminal.type(b"next", ENTER)
        terminal.expect(b"tokens/s")
        terminal.expect(READS)
        terminal.type(CTRL_D)
        assert terminal.ends() == 0
    assert sent(wire) == [pasted.replace("\r\n", "\n").strip("\n"), "next"]


def test_a_paste_within_a_line_and_within_quotes(tmp_path: Path, wire: Wire) -> None:
    with chatting(tmp_path, wire.url) as terminal:
        terminal.type(b"look: ", PASTE, b"a\nb", END, b" here", ENTER)
        terminal.expect(b"tokens/s")
        terminal.expect(READS)
        terminal.type(b'"""', ENTER)
        terminal.expect(READS)
        terminal.type(PASTE, b"c\nd", END, b'"""', ENTER)
        terminal.expect(b"tokens/s")
        terminal.expect(READS)
    assert sent(wire) == ["look: a\nb here", "c\nd"]


def test_interrupting_clears_what_is_typed(tmp_path: Path, wire: Wire) -> None:
    with chatting(tmp_path, wire.url) as terminal:
        terminal.type(b"half a li", CTRL_C)
        terminal.expect(READS)
        terminal.type(b'"""', ENTER)
        terminal.expect(READS)
        terminal.type(b"more", CTRL_C)
        terminal.expect(READS)
        terminal.type(b"whole", ENTER)
        terminal.expect(b"tokens/s")
        terminal.expect(READS)
        terminal.type(CTRL_C)
        terminal.expect(b"/quit ends the conversation")
        terminal.expect(READS)
        terminal.type(b"/quit", ENTER)
        assert terminal.ends() == 0
    assert sent(wire) == ["whole"]
    assert b"Traceback" not in terminal.shown


def test_bytes_that_are_not_utf_8(tmp_path: Path, wire: Wire) -> None:
    with chatting(tmp_path, wire.url) as terminal:
        terminal.type(b"caf\xe9 au lait", ENTER)
        terminal.expect(b"tokens/s")
        terminal.expect(READS)
        terminal.type(b"/quit", ENTER)
        assert terminal.ends() == 0
    assert sent(wire) == ["caf\ufffd au lait"]
    assert "caf\ufffd" in (tmp_path / "forerun" / "chat_history").read_text(encoding="utf-8")


def test_an_ascii_terminal(tmp_path: Path, wire: Wire) -> None:
    thought = frame({"choices": [{"index": 0, "delta": {"reasoning_content": "漢 "}, "finish_reason": None}]})
    wire.answers[0] = [thought, *stream("café", report())]
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    with chatting(tmp_path, wire.url, **ascii_only) as terminal:
        terminal.type("hé".encode(), ENTER)
        terminal.expect(b"tokens/s")
        terminal.expect(READS)
        terminal.type(b"/quit", ENTER)
        assert terminal.ends() == 0
    assert sent(wire) == ["hé"]
    assert b"caf?" in terminal.shown
    assert b"Traceback" not in terminal.shown


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_input_that_is_no_terminal_and_not_utf_8(tmp_path: Path, wire: Wire, encoding: str) -> None:
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "forerun.cli", "chat", "--url", wire.url]
    ran = subprocess.run(command, input="é\n".encode() + b"caf\xe9\n", capture_output=True, env=environment, check=False)
    assert (ran.returncode, sent(wire)) == (0, ["é", "caf\ufffd"]), ran.stderr
