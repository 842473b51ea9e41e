"""The items of a response while they are written: what each event adds, as events without numbers. Pure.

Knows the OpenAI Responses dialect; knows nothing of the response around the items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forerun.serve.fields import arguments_of
from forerun.serve.openai_logprobs import entries
from forerun.values import CallArguments, CallEnd, CallStart, Content, Done, Event, Reasoning

Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """Something that the model may call. tool: as chat templates know it; namespace: of the tools that it belongs to."""

    kind: Literal["function", "custom", "tool_search"]
    namespace: str | None
    tool: Value


FUNCTION = DeclaredTool("function", None, {})


class Items:
    """The items so far. One is open until another begins or the answer ends. id: the items' ids end in it; declared: by name;
    summarises: thoughts go into the summary.
    """

    def __init__(self, id: str, declared: Mapping[str, DeclaredTool], *, summarises: bool) -> None:
        self.items: list[Value] = []
        self._id, self._declared, self._summarises = id, declared, summarises
        self._open: _Open | None = None

    def take(self, event: Event) -> Iterator[Value]:
        """What the event adds, as events without numbers."""
        match event:
            case Reasoning(text):
                yield from self._write(ReasoningItem, text)
            case Content(text, logprobs):
                yield from self._write(Message, text, entries(logprobs))
            case CallStart(_, id, name):
                yield from self._close("completed")
                made = self._declared.get(name, FUNCTION)
                yield from self._begin((Call if made.kind == "function" else BufferedCall)(self._place("call"), id, name, made))
            case CallArguments(_, text) if self._open:
                yield from self._open.add(text)
            case CallEnd(_, is_complete):
                yield from self._close("completed" if is_complete else "incomplete")
            case Done(finish):
                yield from self._close("incomplete" if finish == "length" else "completed")

    def _write(self, kind: type[ReasoningItem] | type[Message], text: str, told: Sequence[Value] = ()) -> Iterator[Value]:
        if not isinstance(self._open, kind):
            yield from self._close("completed")
            yield from self._begin(
                ReasoningItem(self._place("rs"), self._summarises) if kind is ReasoningItem else Message(self._place("msg"))
            )
        if self._open:
            yield from self._open.add(text, told)

    def _begin(self, opened: _Open) -> Iterator[Value]:
        self._open = opened
        yield from opened.begin()

    def _close(self, status: str) -> Iterator[Value]:
        if self._open is not None:
            yield from self._open.end(status)
            self.items.append(self._open.item(status))
            self._open = None

    def _place(self, prefix: str) -> ItemPosition:
        return ItemPosition(f"{prefix}_{self._id}_{len(self.items)}", len(self.items))


@dataclass(frozen=True, slots=True)
class ItemPosition:
    """An item's id and its index in the output."""

    id: str
    index: int


class _Open:
    """An item that is being written: `begin`, `add`, `end` give its events, `item` is its value."""

    def __init__(self, place: ItemPosition) -> None:
        self._place = place
        self._text = ""

    def begin(self) -> Iterator[Value]:
        """The events that open it."""
        yield {"type": "response.output_item.added", "output_index": self._place.index, "item": self.item("in_progress")}

    def add(self, text: str, told: Sequence[Value] = ()) -> Iterator[Value]:
        """More of it. told: its tokens, if they were asked for."""
        self._text += text
        yield from self._added(text)

    def end(self, status: str) -> Iterator[Value]:
        """The events that close it."""
        yield from self._ended()
        yield {"type": "response.output_item.done", "output_index": self._place.index, "item": self.item(status)}

    def item(self, status: str) -> Value:
        """The item so far."""
        raise NotImplementedError

    def _added(self, text: str) -> Iterator[Value]:
        raise NotImplementedError

    def _ended(self) -> Iterator[Value]:
        raise NotImplementedError

    def _event(self, kind: str, **fields: Any) -> Value:
        return {"type": f"response.{kind}", "item_id": self._place.id, "output_index": self._place.index, **fields}


class Message(_Open):
    """What the model says: one part of text."""

    def __init__(self, place: ItemPosition) -> None:
        super().__init__(place)
        self._told: list[Value] = []

    def begin(self) -> Iterator[Value]:
        yield from super().begin()
        yield self._event("content_part.added", content_index=0, part=self._part())

    def item(self, status: str) -> Value:
        content = [] if status == "in_progress" else [self._part()]
        return {"type": "message", "id": self._place.id, "status": status, "role": "assistant", "content": content}

    def add(self, text: str, told: Sequence[Value] = ()) -> Iterator[Value]:
        self._text += text
        self._told += told
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=list(told))

    def _ended(self) -> Iterator[Value]:
        yield self._event("output_text.done", content_index=0, text=self._text, logprobs=self._told)
        yield self._event("content_part.done", content_index=0, part=self._part())

    def _part(self) -> Value:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": list(self._told)}


class ReasoningItem(_Open):
    """What the model thinks: in full, as the summary that was asked for or as content."""

    def __init__(self, place: ItemPosition, summarises: bool) -> None:
        super().__init__(place)
        self._summarises = summarises
        self._at = {"summary_index": 0} if summarises else {"content_index": 0}
        self._part_kind = "reasoning_summary_part" if summarises else "content_part"
        self._text_kind = "reasoning_summary_text" if summarises else "reasoning_text"

    def begin(self) -> Iterator[Value]:
        yield from super().begin()
        yield self._event(f"{self._part_kind}.added", **self._at, part=self._part())

    def item(self, status: str) -> Value:
        parts = [] if status == "in_progress" else [self._part()]
        written = {"summary": parts} if self._summarises else {"summary": [], "content": parts}
        return {"type": "reasoning", "id": self._place.id, **written, "encrypted_content": None}

    def _added(self, text: str) -> Iterator[Value]:
        yield self._event(f"{self._text_kind}.delta", **self._at, delta=text)

    def _ended(self) -> Iterator[Value]:
        yield self._event(f"{self._text_kind}.done", **self._at, text=self._text)
        yield self._event(f"{self._part_kind}.done", **self._at, part=self._part())

    def _part(self) -> Value:
        return {"type": "summary_text" if self._summarises else "reasoning_text", "text": self._text}


class Call(_Open):
    """A call of a function; its arguments are a string of JSON."""

    def __init__(self, place: ItemPosition, call_id: str, name: str, made: DeclaredTool) -> None:
        super().__init__(place)
        self._head = {"id": place.id, "call_id": call_id}
        self._name, self._made = name, made

    def item(self, status: str) -> Value:
        where = {} if self._made.namespace is None else {"namespace": self._made.namespace}
        return {"type": "function_call", **self._head, "name": self._name, **where, "arguments": self._text, "status": status}

    def _added(self, text: str) -> Iterator[Value]:
        yield self._event("function_call_arguments.delta", delta=text)

    def _ended(self) -> Iterator[Value]:
        yield self._event("function_call_arguments.done", name=self._name, arguments=self._text)


class BufferedCall(Call):
    """A call of a custom tool, whose input is free text, or of the client's search for tools: known once the call is complete."""

    def item(self, status: str) -> Value:
        if self._made.kind == "custom":
            return {"type": "custom_tool_call", **self._head, "name": self._name, "input": self._input(), "status": status}
        return {"type": "tool_search_call", **self._head, "execution": "client", "arguments": arguments_of(self._text), "status": status}

    def _added(self, text: str) -> Iterator[Value]:
        yield from ()

    def _ended(self) -> Iterator[Value]:
        if self._made.kind == "custom":
            yield self._event("custom_tool_call_input.delta", delta=self._input())
            yield self._event("custom_tool_call_input.done", input=self._input())

    def _input(self) -> str:
        """The tool's input; of a call that does not keep to the one parameter it was declared with, all that the model wrote."""
        given = arguments_of(self._text).get("input")
        return given if isinstance(given, str) else self._text
