"""Conversations brought into the form that a chat template takes. What it takes is found out by rendering short conversations once.

A template that knows less than the API must not refuse what a client sends, and must render it to the same text whenever it is sent: all
of this is a function of the template and the request. Knows JSON and templates; no tokens and no dialect.
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
THINKING = ("enable_thinking", "thinking")  # what templates call the switch
PROBE = "forerun-probe"
USER: Mapping[str, Any] = {"role": "user", "content": "u"}
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
ASSISTANT: Mapping[str, Any] = {"role": "assistant", "content": "a"}


class TemplateAdapter:
    """What one template takes, and conversations made so.

    takes_system: a system message may stand in mid-dialogue. parses_arguments: arguments of calls are objects, not strings of JSON.
    switch: what the template calls the switch for thinking, "" if it has none. efforts: those that it accepts, least first.
    """

    def __init__(self, template: Template) -> None:
        self._template = template
        self.takes_system = PROBE in self._said(USER, ASSISTANT, {"role": "system", "content": PROBE}, USER)
        called = self._said(USER, _calling({PROBE: "x"}), {"role": "tool", "content": "t", "tool_call_id": _id(0), "name": "f"}, USER)
        self.parses_arguments = PROBE in called and f"{{'{PROBE}'" not in called
        self.switch = next((name for name in THINKING if self._asks(**{name: False}) != self._asks(**{name: True})), "")
        tried = EFFORTS if self._asks(reasoning_effort="low") != self._asks() or not self._asks(reasoning_effort=PROBE) else ()
        self.efforts = tuple(effort for effort in tried if self._asks(reasoning_effort=effort))

    def adapt(self, chat: Chat) -> tuple[Chat, tuple[str, ...]]:
        """The conversation as the template takes it, and what was changed besides the form, in words for people."""
        messages = list(_with_ids(chat.messages))
        args, notes = self._args(chat.template_args)
        for index, message in enumerate(messages):
            if message["role"] == "system" and index and not self.takes_system:
                messages[index] = message | {"role": "user", "content": f"<system>\n{message['content']}\n</system>"}
                notes.append(f"messages[{index}]: the template takes no system message here; rendered as a user message marked <system>")
            if calls := message.get("tool_calls"):
                messages[index] = message | {"tool_calls": [self._call(call) for call in calls]}
        return replace(chat, messages=tuple(messages), template_args=args), tuple(notes)

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """The call with its arguments as the template takes them. What is no JSON object is passed on as it is, or as an only argument."""
        written = call["function"]["arguments"]
        arguments = _parsed(written) if isinstance(written, str) else written
        if self.parses_arguments:
            given: Any = arguments if isinstance(arguments, dict) else {"arguments": written}
        else:
            given = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else written
        return {"id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": given}}

    def _args(self, args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The switches under the template's names, and a note for each that it does not have."""
        rest, notes = dict(args), []
        effort, thinks = rest.pop("reasoning_effort", None), rest.pop("enable_thinking", None)
        if effort in ("none", "minimal") and effort not in self.efforts and thinks is None and self.switch:
            effort, thinks = None, False
        if thinks is not None and self.switch:
            rest[self.switch] = thinks
        elif thinks is not None:
            notes.append("enable_thinking: the template has no such switch")
        if effort is not None and self.efforts:
            rest["reasoning_effort"] = _nearest(effort, self.efforts)
        elif effort is not None:
            notes.append("reasoning_effort: the template has no such switch")
        return rest, notes

    def _said(self, *messages: Mapping[str, Any]) -> str:
        """What the template makes of the messages, "" if it refuses them."""
        return self._template.attempt(Chat(messages, (TOOL,), {}), add_generation_prompt=True)

    def _asks(self, **args: Any) -> str:
        """What it makes of a question under these switches."""
        return self._template.attempt(Chat((USER,), (), args), add_generation_prompt=True)


def _with_ids(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages, with ids of calls that say which call it is and nothing else. Results of parallel calls are in the order of the calls,
    and have the names of the tools: most templates render no ids.
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
    """The JSON value that the text is; the text itself if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _nearest(effort: str, known: Sequence[str]) -> str:
    """The known effort that is nearest, of two equally near the greater; an effort that nobody knows is passed on, to be refused."""
    if effort in known or effort not in ("none", *EFFORTS):
        return effort
    place = EFFORTS.index(effort) if effort in EFFORTS else -1
    return min(reversed(known), key=lambda each: abs(EFFORTS.index(each) - place))


def _calling(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    call = {"id": _id(0), "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
