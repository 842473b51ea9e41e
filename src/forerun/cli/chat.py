"""`forerun chat`: a conversation in the terminal with a running server. Knows the API and the terminal, no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from forerun.chat.line_input import message_reader
from forerun.chat.transcript import Transcript
from forerun.config import load, state_home
from forerun.errors import ForerunError
from forerun.serve.client import Delta, End, health, stream_chat, url_of
from forerun.values import PrefillProgress, QueuePosition

MAX_ANSWER_TOKENS = 8192  # a small model may repeat itself without end

QUIT = "/quit"
HELP = """Ctrl-C ends an answer or clears what is typed, Ctrl-D ends the conversation.
A paste of several lines is one message. A backslash at the end of a line continues the message;
three quotes begin and end a message of several lines.
/session         name and length of this conversation
/session NAME    switch to this conversation, or begin it
/stats           cached and computed tokens, and speeds
/help            this
/quit            end the conversation"""


def chat(
    url: Annotated[str, typer.Option(help="address of the server; default: from the settings", show_default=False)] = "",
    session: Annotated[str, typer.Option(help="name of the conversation: it is saved, and resumed by this name")] = "",
) -> None:
    """Talk to a running server. Ctrl-C ends an answer, Ctrl-D the conversation; /help shows the rest."""
    console = Console(highlight=False)
    config = load({})
    url, key = url_of(config, url), config.sent_key
    talk = ChatSession(console, url, key, health(url, key=key)["model"]["id"], Transcript.open(state_home() / "chats", session))
    console.print(f"{talk.model} at {url}. Ctrl-C ends an answer, Ctrl-D the conversation, /help shows the commands.", style="dim")
    if talk.transcript.messages:
        talk.show_session()
    read = message_reader(state_home() / "chat_history", lambda: console.print(f"Ctrl-D or {QUIT} ends the conversation.", style="dim"))
    while (typed := read()).strip() not in ("", QUIT):
        talk.take(typed)


@dataclass
class ChatSession:
    """A conversation with a server. ends: of the answers since it was opened. num_cut: of those that ended early."""

    console: Console
    url: str
    key: str
    model: str
    transcript: Transcript
    ends: list[End] = field(default_factory=list)
    num_cut: int = 0

    def take(self, typed: str) -> None:
        """Run a command, or send a message to the model. An error of the server ends the answer and not the conversation."""
        match typed.split() if "\n" not in typed else []:
            case ["/help"]:
                self._print(HELP)
            case ["/stats"]:
                self._print(totals(self.ends, self.num_cut))
            case ["/session"]:
                self.show_session()
            case ["/session", name]:
                self._switch(name)
            case [word, *_] if word.startswith("/"):
                self._print(f"there is no {word}; /help lists the commands")
            case _:
                self._send({"role": "user", "content": typed})

    def show_session(self) -> None:
        """Print the conversation's name and length."""
        name = self.transcript.name or "no name: it is not saved"
        turns = sum(message["role"] == "user" for message in self.transcript.messages)
        self._print(f"{name}, {turns} {'turn' if turns == 1 else 'turns'} so far")

    def _switch(self, name: str) -> None:
        try:
            self.transcript, self.ends, self.num_cut = Transcript.open(self.transcript.folder, name), [], 0
        except ForerunError as error:
            self._print(in_one_line(error))
        else:
            self.show_session()

    def _send(self, message: dict[str, Any]) -> None:
        messages = [*self.transcript.messages, message]
        body: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": MAX_ANSWER_TOKENS}
        named = {"forerun": {"session": self.transcript.name}} if self.transcript.name else {}
        answer = {"content": "", "reasoning": ""}
        try:
            self._stream(body | named, answer)
        except KeyboardInterrupt:
            self._end_early("(stopped)")
        except ForerunError as error:
            if not any(answer.values()):
                self.console.print(in_one_line(error), style="yellow", markup=False)
                return
            self._end_early(in_one_line(error))
        thoughts = {"reasoning_content": answer["reasoning"]} if answer["reasoning"] else {}
        self.transcript.add(message, {"role": "assistant", "content": answer["content"]} | thoughts)

    def _stream(self, body: dict[str, Any], answer: dict[str, str]) -> None:
        """Print the answer as it comes, and add it to `answer`, with the thoughts: without them its tokens would not be cached."""
        with self.console.status("waiting") as status:
            for piece in stream_chat(self.url, body, key=self.key):
                match piece:
                    case QueuePosition() | PrefillProgress():
                        status.update(waits_for(piece))
                    case Delta():
                        status.stop()
                        self.console.print(Text(piece.text, style="dim italic" if piece.kind == "reasoning" else ""), end="")
                        answer[piece.kind] += piece.text
                    case End():
                        self.ends.append(piece)
                        self._print(f"\n{summary(piece)}\n")

    def _end_early(self, reason: str) -> None:
        """Note an answer that is stored as far as it came."""
        self.num_cut += 1
        self.console.print(f"\n{reason}\n", style="dim", markup=False)

    def _print(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False)


_ENDINGS = {"length": "cut off after {:,} tokens", "loop": "ended after {:,} tokens, since it repeats itself"}


def summary(end: End) -> str:
    """One line on the cost of an answer."""
    report = end.report
    speed = report["decode_tok_per_s"]
    parts = [
        f"{report['reused_tokens']:,} of {end.usage['prompt_tokens']:,} tokens cached ({report['source']})",
        f"first token after {report['ttft_s']:.2f} s",
        *([f"{speed:.0f} tokens/s"] if speed else []),
        *([_ENDINGS[report["finish"]].format(end.usage["completion_tokens"])] if report["finish"] in _ENDINGS else []),
    ]
    return " · ".join(parts)


def waits_for(piece: QueuePosition | PrefillProgress) -> str:
    """What an answer waits for."""
    if isinstance(piece, QueuePosition):
        return f"waiting in the queue, {piece.ahead} ahead"
    return f"prefill {piece.done_tokens:,} of {piece.total_tokens:,} tokens ({piece.reused_tokens:,} cached)"


def in_one_line(error: ForerunError) -> str:
    """What happened, and what can be done about it."""
    return f"{error}. {error.hint}" if error.hint else f"{error}"


def totals(ends: list[End], num_cut: int) -> str:
    """The cost of all answers. num_cut: of those that ended early, whose cost is not known."""
    cut = f"{num_cut} ended early" if num_cut else ""
    if not ends:
        return cut or "no answer yet"
    cached, prompt, written = (
        sum(end.report["reused_tokens"] for end in ends),
        sum(end.usage["prompt_tokens"] for end in ends),
        sum(end.usage["completion_tokens"] for end in ends),
    )
    last = ends[-1].report
    return "\n".join(
        [
            f"{len(ends)} answer{'s' * (len(ends) > 1)}: {cached:,} of {prompt:,} prompt tokens cached, {written:,} tokens written",
            *([cut] if cut else []),
            f"last: {summary(ends[-1])}",
            f"      layout {last['layout']}, steps {last['step_kind']}, numerics {last['numerics']}",
            *([f"      not all was cached: {last['reason']}"] if last["reason"] else []),
        ]
    )
