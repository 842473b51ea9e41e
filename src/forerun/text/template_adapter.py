"""Conversations adapted to what a chat template supports, which is probed once by rendering short conversations.

A template that supports less than the API must not refuse what a client sends, and must render it to the same text whenever it is sent: the
result depends on the template and the request alone. Knows JSON and templates; no tokens and no dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from forerun.text.template import Template
from forerun.values import Chat

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
THINKING = ("enable_thinking", "thinking")  # names of the switch in templates
PROBE = "forerun-probe"
USER: Mapping[str, Any] = {"role": "user", "content": "u"}
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
ASSISTANT: Mapping[str, Any] = {"role": "assistant", "content": "a"}


class TemplateAdapter:
    """Adapts conversations to one template.

    supports_late_system: a system message need not be the first. needs_object_arguments: arguments of calls are objects, not JSON strings.
    thinking_switch: the template's name for it, "" if it has none. efforts: the reasoning efforts that it accepts, least first.
    """

    def __init__(self, template: Template) -> None:
        self._template = template
        self.supports_late_system = PROBE in self._render(USER, ASSISTANT, {"role": "system", "content": PROBE}, USER)
        result = {"role": "tool", "content": "t", "tool_call_id": _id(0), "name": "f"}
        called = self._render(USER, _calling({PROBE: "x"}), result, USER)
        self.needs_object_arguments = PROBE in called and f"{{'{PROBE}'" not in called
        switches = (name for name in THINKING if self._render_with(**{name: False}) != self._render_with(**{name: True}))
        self.thinking_switch = next(switches, "")
        has_effort = self._render_with(reasoning_effort="low") != self._render_with() or not self._render_with(reasoning_effort=PROBE)
        self.efforts = tuple(effort for effort in EFFORTS if has_effort and self._render_with(reasoning_effort=effort))

    def adapt(self, chat: Chat) -> tuple[Chat, tuple[str, ...]]:
        """The conversation as the template supports it, and notes for people on what the template cannot express."""
        messages = list(_with_ids(chat.messages))
        args, notes = self._args(chat.template_args)
        for index, message in enumerate(messages):
            if message["role"] == "system" and index and not self.supports_late_system:
                messages[index] = message | {"role": "user", "content": f"<system>\n{message['content']}\n</system>"}
                notes.append(f"messages[{index}]: the template takes no system message here; rendered as a user message in <system> tags")
            if calls := message.get("tool_calls"):
                messages[index] = message | {"tool_calls": [self._call(call) for call in calls]}
        return replace(chat, messages=tuple(messages), template_args=args), tuple(notes)

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

    def _render(self, *messages: Mapping[str, Any]) -> str:
        """The messages with a tool, rendered; "" if the template refuses them."""
        return self._template.attempt(Chat(messages, (TOOL,), {}), add_generation_prompt=True)

    def _render_with(self, **args: Any) -> str:
        """A user message, rendered with these template arguments."""
        return self._template.attempt(Chat((USER,), (), args), add_generation_prompt=True)


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
