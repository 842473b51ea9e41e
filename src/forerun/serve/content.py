"""The content of a message as the text that a model takes: parts of other kinds become a line of text in their place, or their text.

What stands for a part depends on its kind, media type and name alone, not on ids or addresses, so that it is the same in every later turn.
Knows the parts of all dialects; knows no messages and no templates.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from pydantic import BeforeValidator

TEXTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
REASONING = frozenset({"thinking", "reasoning", "redacted_thinking"})
# Other kinds of parts, by the type that clients write.
KINDS: Mapping[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
    **dict.fromkeys(("video", "input_video", "video_url"), "video"),
    **dict.fromkeys(("file", "input_file"), "file"),
    "document": "document",
}
SOURCES = ("source", "file", "image_url", "input_audio", "video_url", "file_data", "data", "url")  # where a part holds its bytes or address
READABLE = re.compile(r"text/.*|application/(json|xml|yaml|toml|javascript|x-sh)")
MEDIA_TYPE = re.compile(r"[\w.+/-]{1,60}")


@dataclass(frozen=True, slots=True)
class MessageContent:
    """The text of a message or part, and the reasoning in it. notes: what is not in it as it was sent, for people. is_block: stands
    on lines of its own.
    """

    text: str = ""
    reasoning: str = ""
    notes: tuple[str, ...] = ()
    is_block: bool = False


def content_of(value: Any) -> MessageContent:
    """The content that a client sent as a string or a list of parts; null is empty. Raises ValueError."""
    if not isinstance(value, list):
        return _part([] if isinstance(value, dict) else value, "content")
    return joined(_part(part, f"part {index}") for index, part in enumerate(value))


PartList = str | list[str | dict[str, Any] | None] | None
ContentField = Annotated[MessageContent | None, BeforeValidator(content_of, json_schema_input_type=PartList)]


def joined(contents: Iterable[MessageContent]) -> MessageContent:
    """One content: texts are concatenated, since how a client splits its text must not change the prompt; blocks get lines of their own."""
    parts = list(contents)
    reasoning, notes = "".join(part.reasoning for part in parts), dict.fromkeys(note for part in parts for note in part.notes)
    return MessageContent("".join(_with_breaks(part for part in parts if part.text)), reasoning, tuple(notes))


def left_out(kind: str) -> str:
    """The note on a part or item that is left out."""
    return f"{kind}: left out"


def part_content(part: Mapping[str, Any]) -> MessageContent:
    """What stands for a part with a type, other than a text."""
    kind = str(part["type"])
    if kind == "refusal":
        return MessageContent(str(part.get("refusal") or ""))
    if kind in REASONING:
        thoughts = next((part[name] for name in ("thinking", "reasoning", "text") if part.get(name)), None)
        return MessageContent(reasoning=content_of(thoughts).text)
    if kind in KINDS:
        return _medium(part, KINDS[kind])
    inner = next((part[name] for name in ("text", "content") if isinstance(part.get(name), str | list)), None)
    return _placeholder(kind, "") if inner is None else _as_text(kind, (*_strings(part, "title", "source"),), content_of(inner))


def _part(part: Any, where: str) -> MessageContent:
    match part:
        case None:
            return MessageContent()
        case str():
            return MessageContent(part)
        case {"type": str(kind)} if kind not in TEXTS:
            return part_content(part)
        case {"text": str(text)}:
            return MessageContent(text)
        case {"type": str(), **rest} if rest.get("text") is None:
            return MessageContent()
        case {**fields} if "type" not in fields and "text" not in fields:
            return MessageContent(json.dumps(fields, ensure_ascii=False), is_block=True) if fields else MessageContent()
    raise ValueError(f"{where} is {part!r:.60}: send a string, or parts with a type")


def _with_breaks(parts: Iterable[MessageContent]) -> Iterator[str]:
    """The texts, with a line break before and after each block."""
    before = MessageContent("\n")
    for part in parts:
        if (part.is_block or before.is_block) and not before.text.endswith("\n"):
            yield "\n"
        yield part.text
        before = part


def _medium(part: Mapping[str, Any], kind: str) -> MessageContent:
    """The text of a document or file, if it is one; a line that names it otherwise."""
    media_type, text = _source(part)
    if kind not in ("document", "file"):
        return _placeholder(kind, media_type)
    names = (*_strings(part, "title", "filename"), *_strings(part.get("file"), "filename"))
    inner = part["source"].get("content") if isinstance(part.get("source"), dict) else None
    said = inner if isinstance(inner, str | list) else text
    return _placeholder(kind, (*names, media_type)[0]) if said is None else _as_text(kind, names, content_of(said))


def _as_text(kind: str, names: Sequence[str], inner: MessageContent) -> MessageContent:
    """What the part says, after its names."""
    text = "\n".join(each for each in (*names, inner.text) if each)
    return MessageContent(text, notes=(f"{kind}: rendered as its text", *inner.notes), is_block=True)


def _placeholder(kind: str, detail: str) -> MessageContent:
    text = f"[{kind} omitted: {detail}]" if detail else f"[{kind} omitted]"
    return MessageContent(text, notes=(f"{kind}: the model takes only text; a line is in its place",), is_block=True)


def _strings(value: Any, *names: str) -> Iterator[str]:
    """The fields of these names that are texts."""
    yield from (value[name] for name in names if isinstance(value, dict) and isinstance(value.get(name), str))


def _source(part: Mapping[str, Any]) -> tuple[str, str | None]:
    """The media type of what a part holds, "" if it is unknown; and its text, None if it is none."""
    holder = next((part[name] for name in SOURCES if isinstance(part.get(name), dict)), part)
    data = next((holder[name] for name in SOURCES if isinstance(holder.get(name), str)), "")
    media_type = next((str(holder[name]) for name in ("media_type", "mime_type", "format") if holder.get(name)), "")
    is_text = holder.get("type") == "text"
    if data.startswith("data:"):
        head, _, data = data[len("data:") :].partition(",")
        media_type, *options = head.split(";")
        if "base64" not in options:
            data, is_text = unquote_to_bytes(data).decode(errors="replace"), bool(READABLE.fullmatch(media_type))
    media_type = media_type if MEDIA_TYPE.fullmatch(media_type) else ""
    return media_type, data if is_text else _decoded(media_type, data)


def _decoded(media_type: str, data: str) -> str | None:
    """The text in base64, None if it is none."""
    try:
        return b64decode(data).decode() if READABLE.fullmatch(media_type) else None
    except ValueError:
        return None
