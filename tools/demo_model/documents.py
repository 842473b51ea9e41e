"""From a source's files to the documents of the corpus: files as they are, and conversations derived from them, as rendered text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import jinja2

import questions
from agent import Session
from exercises import exercise, small_talk
from facts import Function, SourceFile, read_source
from messages import AGENT_SYSTEMS, SYSTEMS, TOOLS, Exchange, Message, message, tool_specs
from sources import Source, chance, texts_of

MODEL_FOLDER = Path(__file__).parents[2] / "src" / "forerun" / "data" / "demo-model"
HELD_OUT_SHARE = 0.006
LONG_FILE_CHARACTERS = 24_000

SECTION = re.compile(r"(?m)^([A-Z][^\n]{6,70})\n([=\-~^*\"])\2{5,}\n+(.+?)(?=\n\n\n|\n[^\n]{4,70}\n[=\-~^*\"]{6,}|\Z)", re.DOTALL)
ROLE = re.compile(r":\w+(?::\w+)*:`~?\.?!?([^`<]+?)(?: *<[^`]+>)?`")
ROLE_IN_TITLE = re.compile(r":\w+(?::\w+)*:`~?([^`]+)`|`+")

Conversation = dict[str, Any]
Folders = Mapping[str, Sequence[str]]


@dataclass
class Documents:
    """Rendered documents by stream; the field names are the streams' file names."""

    base: list[str] = field(default_factory=list)
    chat: list[str] = field(default_factory=list)
    long: list[str] = field(default_factory=list)
    heldout_base: list[str] = field(default_factory=list)
    heldout_chat: list[str] = field(default_factory=list)


def chat_template() -> jinja2.Template:
    """The model's chat template, with the filter that the usual runtimes give it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((MODEL_FOLDER / "chat_template.jinja").read_text())


def documents_of(source: Source, root: Path) -> Documents:
    """All documents of one source; they depend on its files and name alone."""
    rng, template, made = Random(source.name), chat_template(), Documents()
    texts = list(texts_of(source, root))
    folders = folders_of(path for path, _ in texts)
    for_long: list[SourceFile] = []
    for path, text in texts:
        is_held_out = source.kind == "heldout" or chance("held" + source.name + path) < HELD_OUT_SHARE
        base, chat = (made.heldout_base, made.heldout_chat) if is_held_out else (made.base, made.chat)
        base.append(_headed(rng, path, text))
        file = read_source(path, text if path.endswith(".py") else "")
        chat += [template.render(**conversation) for conversation in _conversations(rng, source, file, text, folders)]
        if path.endswith(".py") and not is_held_out and len(text) < LONG_FILE_CHARACTERS:
            for_long.append(file)
    made.long = [template.render(**conversation) for conversation in _long_conversations(rng, source, for_long, folders)]
    return made


def folders_of(paths: Iterable[str]) -> dict[str, list[str]]:
    """File names by folder."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder or ".", []).append(name)
    return folders


def small_chats(count: int) -> list[str]:
    """`count` rendered conversations of small talk and exercises."""
    rng, template = Random(7), chat_template()
    return [template.render(**_small_chat(rng)) for _ in range(count)]


def code_conversations(rng: Random, package: str, file: SourceFile, folders: Folders) -> Iterator[Conversation]:
    """All conversations derived from one Python file; none if it defines no function."""
    if not file.functions:
        return
    size = len(file.text)
    exchanges = [made for function in file.functions if _is_handy(function) and (made := _draw_exchange(rng, function))]
    rng.shuffle(exchanges)
    while exchanges:
        taken = rng.choice([1, 1, 1, 2, 2, 3])
        yield {"messages": _chat(rng, exchanges[:taken])}
        exchanges = exchanges[taken:]
    if size < 9_000 and len(file.functions) >= 2 and rng.random() < 0.3:
        yield {"messages": _chat(rng, [questions.ask_overview(rng, file)])}
    if size < 60_000 and rng.random() < (0.65 if size < 16_000 else 0.35):
        yield from _agent_conversation(rng, package, file, folders)


def manual_conversations(rng: Random, text: str) -> Iterator[Conversation]:
    """Sections of a reStructuredText manual as question and answer."""
    for section in SECTION.finditer(text):
        title, body = section.group(1).strip(), section.group(3).strip()
        paragraphs = [paragraph for paragraph in body.split("\n\n") if paragraph.strip() and not paragraph.lstrip().startswith("..")]
        if not paragraphs or len(paragraphs[0]) < 80:
            continue
        answer = ROLE.sub(r"`\1`", "\n\n".join(paragraphs[:3]))[:1500].replace("``", "`")
        title = ROLE_IN_TITLE.sub(r"\1", title)
        asked = rng.choice([f"Tell me about this: {title}", f"Explain: {title}", f"{title}?", f'What do the docs say about "{title}"?'])
        yield {"messages": [message("user", asked), message("assistant", answer)]}


def _conversations(rng: Random, source: Source, file: SourceFile, text: str, folders: Folders) -> Iterator[Conversation]:
    if file.path.endswith(".py"):
        return code_conversations(rng, source.name, file, folders)
    return manual_conversations(rng, text) if source.kind == "prose" else iter(())


def _headed(rng: Random, path: str, text: str) -> str:
    """The file as a document, sometimes under a comment with its path."""
    head = f"# {path}\n" if path.endswith(".py") and rng.random() < 0.3 else ""
    return f"{head}{text.rstrip()}\n"


def _is_handy(function: Function) -> bool:
    return 3 <= function.num_lines <= 45 and len(function.code) < 4_000 and not function.name.startswith("test")


def _draw_exchange(rng: Random, function: Function) -> Exchange | None:
    """One exchange about the function, or none; what has a docstring is drawn far more often."""
    drawn = rng.random()
    if function.doc and len(function.summary) > 15:
        shares = [(0.30, questions.ask_write), (0.50, questions.ask_explain), (0.58, questions.ask_docstring)]
        shares += [(0.66, questions.ask_returns)] if function.returns else []
        shares += [(0.74, questions.ask_complete)]
    else:
        shares = [(0.05, questions.ask_returns)] if function.returns else []
        shares += [(0.10, questions.ask_complete)]
    return next((ask(rng, function) for below, ask in shares if drawn < below), None)


def _chat(rng: Random, exchanges: Iterable[Exchange], keep_thought: float = 0.45) -> list[Message]:
    """The exchanges as messages, half of the time after a system prompt; `keep_thought` is the share of thoughts that stay."""
    messages = [message("system", rng.choice(SYSTEMS))] if rng.random() < 0.5 else []
    for question, thought, answer in exchanges:
        kept = thought if thought and rng.random() < keep_thought else None
        messages += [message("user", question), message("assistant", answer, kept)]
    return messages


def _small_chat(rng: Random) -> Conversation:
    messages = _chat(rng, _small_exchanges(rng), keep_thought=0.4)
    return {"messages": messages, "tools": tool_specs(rng.sample(list(TOOLS), rng.randint(1, 5))) if rng.random() < 0.25 else []}


def _small_exchanges(rng: Random) -> Iterator[Exchange]:
    for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
        yield small_talk(rng) if rng.random() < 0.35 else exercise(rng)


def _agent_conversation(rng: Random, package: str, file: SourceFile, folders: Folders) -> Iterator[Conversation]:
    """Agent work on one file, with the tools that it calls and some others declared; none if no task fitted."""
    declared = rng.sample(list(TOOLS), rng.randint(3, 6))
    session = Session(rng, folders)
    session.work_on(file, rng.choice([1, 1, 2, 2, 3, 4, 6]))
    called = {made["function"]["name"] for turn in session.messages for made in turn.get("tool_calls", [])}
    declared = list(dict.fromkeys([*declared, *sorted(called)]))
    rng.shuffle(declared)
    system = _agent_system(rng, package)
    turns = _without_thoughts(session.messages) if rng.random() < 0.4 else session.messages
    if turns:
        yield {"messages": [system, *turns], "tools": tool_specs(declared)}


def _long_conversations(rng: Random, source: Source, files: list[SourceFile], folders: Folders) -> Iterator[Conversation]:
    """Agent work over several files of a package each, for some 35 % of its files."""
    rng.shuffle(files)
    start, limit = 0, len(files) * 0.35
    while start < limit:
        stop = start + rng.randint(2, 6)
        yield _long_conversation(rng, source.name, files[start:stop], folders)
        start = stop


def _long_conversation(rng: Random, package: str, files: Sequence[SourceFile], folders: Folders) -> Conversation:
    session = Session(rng, folders)
    for file in files:
        if file.functions:
            session.work_on(file, rng.randint(2, 4))
    turns = _without_thoughts(session.messages) if rng.random() < 0.5 else session.messages
    return {"messages": [_agent_system(rng, package), *turns], "tools": tool_specs(TOOLS)}


def _agent_system(rng: Random, package: str) -> Message:
    return message("system", rng.choice(AGENT_SYSTEMS).format(package=package))


def _without_thoughts(messages: Sequence[Message]) -> list[Message]:
    return [{key: value for key, value in turn.items() if key != "reasoning_content"} for turn in messages]
