"""`forerun chat`: a conversation in the terminal with a running server. Knows the wire and the terminal, no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from forerun.chat.line_input import keep_history, read_message
from forerun.chat.transcript import Transcript
from forerun.config import load, state_home
from forerun.errors import ForerunError
from forerun.serve.client import Delta, End, health, stream_chat, url_of
from forerun.values import PrefillProgress

MAX_ANSWER_TOKENS = 8192  # a small model may say the same for ever

HELP = """Ctrl-C ends an answer, Ctrl-D the conversation.
A message goes on after a backslash at the end of a line, and from three quotes to the next three.
/session         the name of this conversation, and how long it is
/session NAME    go on with another one, or begin it
/stats           what the answers cost
/help            this"""


def chat(
    url: Annotated[str, typer.Option(help="address of the server; that of the settings if not given", show_default=False)] = "",
    session: Annotated[str, typer.Option(help="name of the conversation: it is kept, and taken up again by this name")] = "",
) -> None:
    """Talk to a running server. Ctrl-C ends an answer, Ctrl-D the conversation; /help tells the rest."""
    console = Console(highlight=False)
    config = load({})
    url, key = url_of(config, url), config.sent_key
    talk = ChatSession(console, url, key, health(url, key=key)["model"]["id"], Transcript.open(state_home() / "chats", session))
    keep_history(state_home() / "chat_history")
    console.print(f"{talk.model} at {url}. Ctrl-C ends an answer, Ctrl-D the conversation, /help tells the rest.", style="dim")
    if talk.transcript.messages:
        talk.tell_session()
    while asked := _ask(console):
        talk.take(asked)


def _ask(console: Console) -> str:
    """The next message or command; "" at the end of the input."""
    try:
        return read_message(lambda prompt: console.input(f"[bold]{prompt}[/]"))
    except (EOFError, KeyboardInterrupt):
        console.print()
        return ""


@dataclass
class ChatSession:
    """A conversation with a server. ends: of the answers since it was begun."""

    console: Console
    url: str
    key: str
    model: str
    transcript: Transcript
    ends: list[End] = field(default_factory=list)

    def take(self, typed: str) -> None:
        """Do what a command says, or say the rest to the model. An error of the server ends the message and not the conversation."""
        match typed.split():
            case ["/help"]:
                self._tell(HELP)
            case ["/stats"]:
                self._tell(totals(self.ends))
            case ["/session"]:
                self.tell_session()
            case ["/session", name]:
                self._switch(name)
            case [word, *_] if word.startswith("/") and "\n" not in typed:
                self._tell(f"there is no {word}; /help tells what there is")
            case _:
                self._say({"role": "user", "content": typed})

    def tell_session(self) -> None:
        """Print the conversation's name and length."""
        name = self.transcript.name or "no name: it is not kept"
        turns = sum(message["role"] == "user" for message in self.transcript.messages)
        self._tell(f"{name}, {turns} {'turn' if turns == 1 else 'turns'} so far")

    def _switch(self, name: str) -> None:
        try:
            self.transcript, self.ends = Transcript.open(self.transcript.folder, name), []
        except ForerunError as error:
            self._tell(f"{error}. {error.hint}")
        else:
            self.tell_session()

    def _say(self, message: dict[str, Any]) -> None:
        messages = [*self.transcript.messages, message]
        body: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": MAX_ANSWER_TOKENS}
        named = {"forerun": {"session": self.transcript.name}} if self.transcript.name else {}
        try:
            answer = self._show(body | named)
        except ForerunError as error:
            self.console.print(f"{error}. {error.hint}", style="red", markup=False)
        else:
            self.transcript.add(message, answer)

    def _show(self, body: dict[str, Any]) -> dict[str, Any]:
        """Print the answer as it comes, and return it as a message: thoughts too, or the server would have to read the turn again."""
        said = {"content": "", "reasoning": ""}
        try:
            with self.console.status("waiting") as status:
                for piece in stream_chat(self.url, body, key=self.key):
                    match piece:
                        case PrefillProgress():
                            status.update(f"reading {piece.done_tokens:,} of {piece.total_tokens:,} tokens ({piece.reused_tokens:,} known)")
                        case Delta():
                            status.stop()
                            self.console.print(Text(piece.text, style="dim italic" if piece.kind == "reasoning" else ""), end="")
                            said[piece.kind] += piece.text
                        case End():
                            self.ends.append(piece)
                            self._tell(f"\n{summary(piece)}\n")
        except KeyboardInterrupt:
            self._tell("\n(cut off)\n")
        thoughts = {"reasoning_content": said["reasoning"]} if said["reasoning"] else {}
        return {"role": "assistant", "content": said["content"]} | thoughts

    def _tell(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False)


def summary(end: End) -> str:
    """One line on what an answer cost."""
    report = end.report
    speed = report["decode_tok_per_s"]
    parts = [
        f"{report['reused_tokens']:,} of {end.usage['prompt_tokens']:,} tokens known ({report['source']})",
        f"first token after {report['ttft_s']:.2f} s",
        *([f"{speed:.0f} tokens/s"] if speed else []),
        *([f"cut off after {end.usage['completion_tokens']:,} tokens"] if end.finish == "length" else []),
    ]
    return " · ".join(parts)


def totals(ends: list[End]) -> str:
    """What all answers have cost together."""
    if not ends:
        return "no answer yet"
    known, prompt, written = (
        sum(end.report["reused_tokens"] for end in ends),
        sum(end.usage["prompt_tokens"] for end in ends),
        sum(end.usage["completion_tokens"] for end in ends),
    )
    last = ends[-1].report
    return "\n".join(
        [
            f"{len(ends)} answer{'s' * (len(ends) > 1)}: {known:,} of {prompt:,} prompt tokens known, {written:,} tokens written",
            f"last: {summary(ends[-1])}",
            f"      layout {last['layout']}, steps {last['step_kind']}, numerics {last['numerics']}",
            *([f"      not all was known: {last['reason']}"] if last["reason"] else []),
        ]
    )
