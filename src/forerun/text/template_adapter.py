"""Conversations adapted to what a chat template supports, which is probed once by rendering short conversations.

A template that supports less than the API must not refuse what a client sends, and must render it to the same text whenever it is sent: the
result depends on the template and the request alone. Knows JSON and templates; no tokens and no dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from forerun.text.template import Template
from forerun.values import Chat

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
THINKING = ("enable_thinking", "thinking")  # names of the switch in templates
PROBE = "forerun-probe"
NO_PREFILL = "the last message is the assistant's: the answer begins a message of its own and does not continue that one"
LATE_SYSTEM = (("assistant", "system", "user"), ("system", "assistant", "user"), ("assistant", "user", "system"))
CALLED = ("user", "call", "tool")
USER: Mapping[str, Any] = {"role": "user", "content": "u"}
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


class TemplateAdapter:
    """Adapts conversations to one template.

    supports_system, supports_more_system, supports_late_system: renders a system message at the start, several there, one after a turn, all
    in their places and with their texts unchanged, whatever follows. supports_users: user messages may follow each other.
    supports_user_after_tool: one may follow a tool's result and leaves what is before that as it was. needs_object_arguments: arguments of
    calls are objects, not JSON strings. thinking_switch: the template's name for it, "" if it has none. efforts: the reasoning efforts that
    it accepts, least first.
    """

    def __init__(self, template: Template) -> None:
        self._template = template
        called = self._render(USER, _calling({PROBE: "x"}), _result({"role": "tool", "content": "t"}, _id(0), "f"), USER)
        self.needs_object_arguments = PROBE in called and f"{{'{PROBE}'" not in called
        has_tools = self._keeps(*CALLED)
        self.supports_system = self._keeps("system", "user", "assistant", "user") and (not has_tools or self._keeps("system", *CALLED))
        self.supports_more_system = self._keeps("system", "system", "user")
        late = all(self._keeps(*start, "user", *more) for start in ((), ("system",)) for more in LATE_SYSTEM)
        self.supports_late_system = late and (not has_tools or self._keeps_before(*CALLED, after="system"))
        self.supports_users = any(self._keeps(*start, "user", "user", "assistant") for start in ((), ("system",)))
        self.supports_user_after_tool = not has_tools or self._keeps_before(*CALLED, after="user")
        switches = (name for name in THINKING if self._render_with(**{name: False}) != self._render_with(**{name: True}))
        self.thinking_switch = next(switches, "")
        has_effort = self._render_with(reasoning_effort="low") != self._render_with() or not self._render_with(reasoning_effort=PROBE)
        self.efforts = tuple(effort for effort in EFFORTS if has_effort and self._render_with(reasoning_effort=effort))

    def adapt(self, chat: Chat) -> tuple[Chat, tuple[str, ...]]:
        """The conversation as the template supports it, and notes for people on what the template cannot express."""
        args, notes = self._args(chat.template_args)
        messages, moved = self._place(_with_ids(chat.messages))
        for index, message in enumerate(messages):
            if calls := message.get("tool_calls"):
                messages[index] = message | {"tool_calls": [self._call(call) for call in calls]}
        prefill = [NO_PREFILL] if messages and messages[-1]["role"] == "assistant" else []
        return replace(chat, messages=tuple(messages), template_args=args), (*chat.notes, *notes, *moved, *prefill)

    def _place(self, messages: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        """The messages, with each system text in a role and at a place where the template renders it, and notes."""
        placed: list[dict[str, Any]] = []
        tagged, joined, is_start = list[int](), list[int](), True
        for index, message in enumerate(messages):
            is_start = is_start and message["role"] == "system"
            if message["role"] == "system" and not self._supports_system_at(index, is_start):
                message = message | {"role": "user", "content": f"<system>\n{message['content']}\n</system>"}
                tagged.append(index)
            if message["role"] == "user" and placed and self._is_joined(placed[-1]["role"], is_system=index in tagged[-1:]):
                placed[-1] = placed[-1] | {"content": f"{placed[-1]['content']}\n\n{message['content']}"}
                joined.append(index)
            else:
                placed.append(message)
        return placed, [
            *_note(tagged, "the template takes no system message here; rendered as a user message in <system> tags"),
            *_note(joined, "the template takes no user message here; joined to the message before it"),
        ]

    def _supports_system_at(self, index: int, is_start: bool) -> bool:
        if not is_start:
            return self.supports_late_system
        return self.supports_more_system if index else self.supports_system

    def _is_joined(self, before: str, *, is_system: bool) -> bool:
        """Whether a user message is made part of the message before it, which has this role."""
        return (before == "user" and not self.supports_users) or (before == "tool" and is_system and not self.supports_user_after_tool)

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """The call with its arguments as an object or a JSON string. What is no JSON object is passed as it is or as the only argument."""
        sent = call["function"]["arguments"]
        arguments = _parsed(sent) if isinstance(sent, str) else sent
        if self.needs_object_arguments:
            adapted: Any = arguments if isinstance(arguments, dict) else {"arguments": sent}
        else:
            adapted = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else sent
        return {"id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": adapted}}

    def _args(self, args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The switches under the template's names, and a note for each that it does not have."""
        rest, notes = dict(args), []
        effort, thinks = rest.pop("reasoning_effort", None), rest.pop("enable_thinking", None)
        if effort in ("none", "minimal") and effort not in self.efforts and thinks is None and self.thinking_switch:
            effort, thinks = None, False
        if thinks is not None and self.thinking_switch:
            rest[self.thinking_switch] = thinks
        elif thinks is not None:
            notes.append("enable_thinking: the template has no such switch")
        if effort is not None and self.efforts:
            rest["reasoning_effort"] = _nearest(effort, self.efforts)
        elif effort is not None:
            notes.append("reasoning_effort: the template has no such switch")
        return rest, notes

    def _keeps(self, *roles: str) -> bool:
        """Whether the texts of messages in these roles are rendered in their order, those of system messages unchanged."""
        probes = self._probes(roles)
        text = self._render(*probes)
        starts = [0, *(text.find(probe["content"]) for probe in probes if probe["content"])]
        return starts == sorted(starts)

    def _keeps_before(self, *roles: str, after: str) -> bool:
        """Whether a message in the role `after` follows those in the other roles and leaves what is before the last of them as it was."""
        last = self._probes(roles)[-1]["content"]
        without, with_it = (self._render(*self._probes(each)).partition(last) for each in (roles, (*roles, after)))
        return self._keeps(*roles, after) and without[0] == with_it[0]

    def _probes(self, roles: Sequence[str]) -> list[dict[str, Any]]:
        """A conversation with a text of its own in each message: several lines in system messages."""
        texts = [f"{PROBE} {index}" + "\n  'a'\t<&> é" * (role == "system") for index, role in enumerate(roles)]
        return [self._probe(role, text) for role, text in zip(roles, texts, strict=True)]

    def _probe(self, role: str, text: str) -> dict[str, Any]:
        if role == "call":
            call = self._call(_calling({})["tool_calls"][0])
            return {"role": "assistant", "content": "", "reasoning_content": text, "tool_calls": [call]}
        return _result({"role": role, "content": text}, _id(0), "f") if role == "tool" else {"role": role, "content": text}

    def _render(self, *messages: Mapping[str, Any]) -> str:
        """The messages with a tool, rendered; "" if the template refuses them."""
        return self._template.attempt(Chat(messages, (TOOL,), {}), add_generation_prompt=True)

    def _render_with(self, **args: Any) -> str:
        """A user message, rendered with these template arguments."""
        return self._template.attempt(Chat((USER,), (), args), add_generation_prompt=True)


def _note(indices: Sequence[int], what: str) -> list[str]:
    """A note on these messages, if there are any."""
    more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
    return [f"messages[{indices[0]}]{more}: {what}"] if indices else []


def _with_ids(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages, with calls numbered in place of the client's ids. Results of parallel calls are put in the order of the calls and get
    the names of the tools: most templates render no ids.
    """
    called: dict[str, tuple[str, str]] = {}
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            results = [_result(each, *called.get(str(each.get("tool_call_id")), (_id(len(called)), ""))) for each in group]
            yield from sorted(results, key=lambda result: str(result["tool_call_id"]))
            continue
        for message in group:
            calls = [call | {"id": _id(len(called) + i)} for i, call in enumerate(message.get("tool_calls") or ())]
            named = zip(message.get("tool_calls") or (), calls, strict=True)
            called |= {str(sent.get("id")): (call["id"], call["function"]["name"]) for sent, call in named}
            yield {**message, **({"tool_calls": calls} if calls else {})}


def _result(message: Mapping[str, Any], id: str, name: str) -> dict[str, Any]:
    return {**message, "tool_call_id": id, "name": message.get("name") or name}


def _id(number: int) -> str:
    """Nine digits: some templates refuse any other length."""
    return f"{number:09}"


def _parsed(text: str) -> Any:
    """The text parsed as JSON; the text itself if it is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _nearest(effort: str, supported: Sequence[str]) -> str:
    """The nearest supported effort, the greater of two; an effort outside EFFORTS is passed on, for the template to refuse."""
    if effort in supported or effort not in ("none", *EFFORTS):
        return effort
    rank = EFFORTS.index(effort) if effort in EFFORTS else -1
    return min(reversed(supported), key=lambda each: abs(EFFORTS.index(each) - rank))


def _calling(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    call = {"id": _id(0), "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
