"""`forerun chat`: a conversation in the terminal with a running server. Knows the wire and the terminal, no engine."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from forerun.config import Config
from forerun.serve.client import Delta, End, health, stream_chat
from forerun.values import Reading

DEFAULT_URL = f"http://{Config.model_fields['host'].default}:{Config.model_fields['port'].default}"


def chat(
    url: Annotated[str, typer.Option(help="address of the server")] = DEFAULT_URL,
    session: Annotated[str | None, typer.Option(help="name under which the server keeps this conversation")] = None,
) -> None:
    """Talk to a running server. Ctrl-C ends an answer, Ctrl-D the conversation."""
    console = Console(highlight=False)
    url = url.rstrip("/").removesuffix("/v1")
    model = health(url)["model"]["id"]
    console.print(f"{model} at {url}. Ctrl-C ends an answer, Ctrl-D the conversation.", style="dim")
    messages: list[dict[str, Any]] = []
    while asked := _ask(console):
        messages.append({"role": "user", "content": asked})
        body: dict[str, Any] = {"model": model, "messages": messages}
        messages.append(_show(console, url, body | ({"forerun": {"session": session}} if session else {})))


def _ask(console: Console) -> str:
    """The next line that is not blank; "" at the end of the input."""
    try:
        while not (line := console.input("[bold]> [/]")).strip():
            pass
        return line
    except (EOFError, KeyboardInterrupt):
        console.print()
        return ""


def _show(console: Console, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Print the answer as it comes, and return it as a message: thoughts too, or the server would have to read the turn again."""
    said = {"content": "", "reasoning": ""}
    try:
        with console.status("waiting") as status:
            for piece in stream_chat(url, body):
                match piece:
                    case Reading():
                        status.update(f"reading {piece.done_tokens:,} of {piece.total_tokens:,} tokens ({piece.reused_tokens:,} known)")
                    case Delta():
                        status.stop()
                        console.print(Text(piece.text, style="dim italic" if piece.kind == "reasoning" else ""), end="")
                        said[piece.kind] += piece.text
                    case End():
                        console.print(f"\n{summary(piece)}\n", style="dim")
    except KeyboardInterrupt:
        console.print("\n(cut off)\n", style="dim")
    thoughts = {"reasoning_content": said["reasoning"]} if said["reasoning"] else {}
    return {"role": "assistant", "content": said["content"]} | thoughts


def summary(end: End) -> str:
    """One line on what an answer cost."""
    report = end.report
    speed = report["decode_tok_per_s"]
    parts = [
        f"{report['reused_tokens']:,} of {end.usage['prompt_tokens']:,} tokens known ({report['source']})",
        f"first token after {report['ttft_s']:.2f} s",
        *([f"{speed:.0f} tokens/s"] if speed else []),
        *(["cut off: no room left"] if end.finish == "length" else []),
    ]
    return " · ".join(parts)
