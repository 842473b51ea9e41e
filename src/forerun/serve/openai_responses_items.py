"""The items of a response while they are written, and their events, without sequence numbers. Pure.

Knows the OpenAI Responses dialect; knows nothing of the response around the items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forerun.serve.custom_tools import input_of
from forerun.serve.fields import arguments_of
from forerun.serve.openai_logprobs import entries
from forerun.values import CallArguments, CallEnd, CallStart, Content, Done, Event, OutputFormat, Reasoning

Value = dict[str, Any]
CUT_OFF = ("length", "loop")  # finish of an answer that is not complete


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool that the model may call. tool: in the form of chat templates; namespace: the one that it belongs to. input: the format of a
    custom tool's input, None for any text.
    """

    kind: Literal["function", "custom", "tool_search"]
    namespace: str | None
    tool: Value
    is_strict: bool = False
    input: OutputFormat | None = None


FUNCTION = DeclaredTool("function", None, {})


class Items:
    """The items so far. One is open until another begins or the answer ends. id: the items' ids end in it; declared: by name;
    summarises: thoughts go into the summary.
    """

    def __init__(self, id: str, declared: Mapping[str, DeclaredTool], *, summarises: bool) -> None:
        self.items: list[Value] = []
        self._id, self._declared, self._summarises = id, declared, summarises
        self._open: _OpenItem | None = None

    def take(self, event: Event) -> Iterator[Value]:
        """Add an event. Yields the dialect's events, without sequence numbers."""
        match event:
            case Reasoning(text):
                yield from self._write(ReasoningItem, text)
            case Content(text, logprobs):
                yield from self._write(Message, text, entries(logprobs))
            case CallStart(_, id, name):
                yield from self._close("completed")
                declared = self._declared.get(name, FUNCTION)
                yield from self._begin((Call if declared.kind == "function" else BufferedCall)(self._position("call"), id, name, declared))
            case CallArguments(_, text) if self._open:
                yield from self._open.add(text)
            case CallEnd(_, is_complete):
                yield from self._close("completed" if is_complete else "incomplete")
            case Done(finish):
                yield from self._close("incomplete" if finish in CUT_OFF else "completed")

    def _write(self, kind: type[ReasoningItem] | type[Message], text: str, logprobs: Sequence[Value] = ()) -> Iterator[Value]:
        if not isinstance(self._open, kind):
            yield from self._close("completed")
            yield from self._begin(
                ReasoningItem(self._position("rs"), self._summarises) if kind is ReasoningItem else Message(self._position("msg"))
            )
        if self._open:
            yield from self._open.add(text, logprobs)

    def _begin(self, opened: _OpenItem) -> Iterator[Value]:
        self._open = opened
        yield from opened.begin()

    def _close(self, status: str) -> Iterator[Value]:
        if self._open is not None:
            yield from self._open.end(status)
            self.items.append(self._open.item(status))
            self._open = None

    def _position(self, prefix: str) -> ItemPosition:
        return ItemPosition(f"{prefix}_{self._id}_{len(self.items)}", len(self.items))


@dataclass(frozen=True, slots=True)
class ItemPosition:
    """An item's id and its index in the output."""

    id: str
    index: int


class _OpenItem:
    """An item while it is written: `begin`, `add`, `end` yield its events, `item` is its value."""

    def __init__(self, position: ItemPosition) -> None:
        self._position = position
        self._text = ""

    def begin(self) -> Iterator[Value]:
        """The events that open it."""
        yield {"type": "response.output_item.added", "output_index": self._position.index, "item": self.item("in_progress")}

    def add(self, text: str, logprobs: Sequence[Value] = ()) -> Iterator[Value]:
        """Add text. logprobs: of its tokens, if requested."""
        self._text += text
        yield from self._added(text)

    def end(self, status: str) -> Iterator[Value]:
        """The events that close it."""
        yield from self._ended()
        yield {"type": "response.output_item.done", "output_index": self._position.index, "item": self.item(status)}

    def item(self, status: str) -> Value:
        """The item so far."""
        raise NotImplementedError

    def _added(self, text: str) -> Iterator[Value]:
        raise NotImplementedError

    def _ended(self) -> Iterator[Value]:
        raise NotImplementedError

    def _event(self, kind: str, **fields: Any) -> Value:
        return {"type": f"response.{kind}", "item_id": self._position.id, "output_index": self._position.index, **fields}


class Message(_OpenItem):
    """The text of the answer, in one part."""

    def __init__(self, position: ItemPosition) -> None:
        super().__init__(position)
        self._logprobs: list[Value] = []

    def begin(self) -> Iterator[Value]:
        yield from super().begin()
        yield self._event("content_part.added", content_index=0, part=self._part())

    def item(self, status: str) -> Value:
        content = [] if status == "in_progress" else [self._part()]
        return {"type": "message", "id": self._position.id, "status": status, "role": "assistant", "content": content}

    def add(self, text: str, logprobs: Sequence[Value] = ()) -> Iterator[Value]:
        self._text += text
        self._logprobs += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=list(logprobs))

    def _ended(self) -> Iterator[Value]:
        yield self._event("output_text.done", content_index=0, text=self._text, logprobs=self._logprobs)
        yield self._event("content_part.done", content_index=0, part=self._part())

    def _part(self) -> Value:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": list(self._logprobs)}


class ReasoningItem(_OpenItem):
    """The model's thoughts in full: as summary if that was requested, otherwise as content."""

    def __init__(self, position: ItemPosition, summarises: bool) -> None:
        super().__init__(position)
        self._summarises = summarises
        self._at = {"summary_index": 0} if summarises else {"content_index": 0}
        self._part_kind = "reasoning_summary_part" if summarises else "content_part"
        self._text_kind = "reasoning_summary_text" if summarises else "reasoning_text"

    def begin(self) -> Iterator[Value]:
        yield from super().begin()
        yield self._event(f"{self._part_kind}.added", **self._at, part=self._part())

    def item(self, status: str) -> Value:
        parts = [] if status == "in_progress" else [self._part()]
        fields = {"summary": parts} if self._summarises else {"summary": [], "content": parts}
        return {"type": "reasoning", "id": self._position.id, **fields, "encrypted_content": None}

    def _added(self, text: str) -> Iterator[Value]:
        yield self._event(f"{self._text_kind}.delta", **self._at, delta=text)

    def _ended(self) -> Iterator[Value]:
        yield self._event(f"{self._text_kind}.done", **self._at, text=self._text)
        yield self._event(f"{self._part_kind}.done", **self._at, part=self._part())

    def _part(self) -> Value:
        return {"type": "summary_text" if self._summarises else "reasoning_text", "text": self._text}


class Call(_OpenItem):
    """A call of a function; its arguments are a JSON string."""

    def __init__(self, position: ItemPosition, call_id: str, name: str, declared: DeclaredTool) -> None:
        super().__init__(position)
        self._head = {"id": position.id, "call_id": call_id}
        self._name, self._declared = name, declared

    def item(self, status: str) -> Value:
        namespace = {} if self._declared.namespace is None else {"namespace": self._declared.namespace}
        return {"type": "function_call", **self._head, "name": self._name, **namespace, "arguments": self._text, "status": status}

    def _added(self, text: str) -> Iterator[Value]:
        yield self._event("function_call_arguments.delta", delta=text)

    def _ended(self) -> Iterator[Value]:
        yield self._event("function_call_arguments.done", name=self._name, arguments=self._text)


class BufferedCall(Call):
    """A call of a custom tool, whose input is free text, or of the client's tool search: sent when the call is complete."""

    def item(self, status: str) -> Value:
        if self._declared.kind == "custom":
            return {"type": "custom_tool_call", **self._head, "name": self._name, "input": input_of(self._text), "status": status}
        return {"type": "tool_search_call", **self._head, "execution": "client", "arguments": arguments_of(self._text), "status": status}

    def _added(self, text: str) -> Iterator[Value]:
        yield from ()

    def _ended(self) -> Iterator[Value]:
        if self._declared.kind == "custom":
            yield self._event("custom_tool_call_input.delta", delta=input_of(self._text))
            yield self._event("custom_tool_call_input.done", input=input_of(self._text))
