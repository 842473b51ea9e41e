"""Conversations adapted to several kinds of templates. The templates here are short, with the habits of real ones."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.template_adapter import TemplateAdapter
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat

USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "Be brief."}
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
STRICT = """{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System first.') }}{% endif %}
{{ m.role }}:{{ m.content }}
{% endfor %}"""
FORGETFUL = """{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"""
TURNS = "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
EACH_SYSTEM = "{% for m in messages if m.role == 'system' %}BODY{% endfor %}"
HOISTING = EACH_SYSTEM.replace("BODY", "system:{{ m.content }}\n") + TURNS
COLLECT = "{% set ns = namespace(text='') %}" + EACH_SYSTEM
MERGING = COLLECT.replace("BODY", "{% set ns.text = ns.text + m.content + '\n' %}") + "{{ ns.text }}" + TURNS
LAST_WINS = COLLECT.replace("BODY", "{% set ns.text = m.content + '\n' %}") + "{{ ns.text }}" + TURNS
FIRST_WINS = COLLECT.replace("BODY", "{% set ns.text = ns.text or m.content + '\n' %}") + "{{ ns.text }}" + TURNS
SHORTENING = "{% for m in messages %}{{ m.role }}:{{ m.content.split('\n')[0] if m.role == 'system' else m.content }}\n{% endfor %}"
WITH_THE_LAST = """{% for m in messages if m.role != 'system' %}
{%- if m.role == 'user' and loop.last and messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}{{ m.role }}:{{ m.content }}
{% endfor %}"""
ALTERNATING = """{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}
{%- for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}
{{- m.role }}:{{ m.content }}
{% endfor %}"""
FORGETS_REASONING = """{% set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System first.') }}{% endif %}
{{- m.role }}:{% if loop.index0 > ns.last %}{{ m.reasoning_content }} {% endif %}{{ m.content }}
{% endfor %}"""
HOISTS = [FORGETFUL, HOISTING, MERGING, LAST_WINS, FIRST_WINS, SHORTENING, WITH_THE_LAST, ALTERNATING]
CALLING = PLAIN.replace("{% endfor %}", "{% for c in m.tool_calls or [] %}{{ ARGUMENTS }}{% endfor %}{% endfor %}")
ITEMS = CALLING.replace("ARGUMENTS", "c.id }}{{ c.function.arguments | items | list")
JSON = CALLING.replace("ARGUMENTS", "c.function.arguments | tojson")
TEXT = CALLING.replace("ARGUMENTS", "'' + c.function.arguments")
EFFORT = """{% if reasoning_effort is defined and reasoning_effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('?') }}{% endif %}
{{- reasoning_effort }}"""


def chat(*messages: dict[str, Any], **args: Any) -> Chat:
    return Chat(messages, (), args)


def adapted(source: str, conversation: Chat) -> tuple[str, tuple[str, ...]]:
    """The rendered conversation, and the notes."""
    template = Template(source, {})
    chat, notes = TemplateAdapter(template).adapt(conversation)
    return template.render(chat, add_generation_prompt=False), notes


def calls(*calls: tuple[str, Any]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": text}} for id, text in calls],
    }


@pytest.mark.parametrize("source", [STRICT, FORGETFUL])
def test_a_system_message_in_mid_conversation_keeps_its_place(source: str) -> None:
    text, notes = adapted(source, chat(SYSTEM, USER, {"role": "system", "content": "Hurry."}, USER))
    assert text.count("Be brief.") == text.count("<system>\nHurry.\n</system>") == 1
    assert text.index("hello") < text.index("Hurry.") < text.rindex("hello")
    assert [note.split(":")[0] for note in notes] == ["messages[2]"]


def texts(*contents: str) -> list[dict[str, Any]]:
    """Messages of these texts, the role being the text's first word."""
    return [{"role": text.split()[0], "content": text} for text in contents]


LATER = [
    "user one",
    "assistant two",
    "system three\n\n  'x' <&>",
    "user four",
    "assistant five",
    "user six",
    "system seven",
    "assistant end",
]
STARTS = [["system first"], [], ["system first", "system second"]]


@pytest.mark.parametrize("source", [*HOISTS, STRICT, PLAIN])
@pytest.mark.parametrize("start", STARTS, ids=len)
def test_system_texts_stay_where_they_were_sent_and_every_turn_begins_with_the_last(source: str, start: list[str]) -> None:
    messages, before = texts(*start, *LATER), ""
    ends = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for end in ends:
        text = adapted(source, chat(*messages[:end]))[0]
        assert text.startswith(before.rstrip())
        found = [text.find(message["content"]) for message in messages[:end]]
        assert -1 not in found
        assert found == sorted(found)
        before = text


@pytest.mark.parametrize("source", HOISTS)
def test_what_is_carried_in_another_role_is_noted_once(source: str) -> None:
    notes = adapted(source, chat(*texts("system first", *LATER[:-1])))[1]
    (note,) = (note for note in notes if "<system>" in note)
    assert note.startswith("messages[0] and 2 more: " if source in (SHORTENING, WITH_THE_LAST, ALTERNATING) else "messages[3] and 1 more: ")


def test_a_system_text_after_a_result_does_not_change_what_is_before() -> None:
    called = [USER, {**calls(("x", "{}")), "reasoning_content": "Hm."}, result("x", "done")]
    text, notes = adapted(FORGETS_REASONING, chat(*called))
    later, more = adapted(FORGETS_REASONING, chat(*called, {"role": "system", "content": "Hurry."}))
    assert "Hm." in text
    assert later == text.rstrip() + "\n\n<system>\nHurry.\n</system>\n"
    assert (notes, [note.split(":")[0] for note in more]) == ((), ["messages[3]", "messages[3]"])


def test_user_messages_in_a_row_are_joined_where_the_template_refuses_them() -> None:
    text, notes = adapted(ALTERNATING, chat(*texts("user one", "user two", "assistant three", "user four")))
    assert text == "user:user one\n\nuser two\nassistant:assistant three\nuser:user four\n"
    assert [note.split(":")[0] for note in notes] == ["messages[1]"]


def test_a_template_without_tools_loses_no_system_text() -> None:
    source = STRICT.replace("{{ m.role }}", "{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.role }}")
    assert (
        "<system>\nHurry.\n</system>"
        in adapted(source, chat(USER, calls(("x", "{}")), result("x", "1"), {**SYSTEM, "content": "Hurry."}))[0]
    )


def test_a_template_that_supports_it_gets_it_unchanged() -> None:
    assert adapted(PLAIN, chat(USER, SYSTEM)) == ("user:hello\nsystem:Be brief.\n", ())
    assert adapted(STRICT, chat(SYSTEM, USER))[1] == ()


@pytest.mark.parametrize("arguments", ['{"z": 1, "a": {"y": "\\u00fc"}}', '{"z":1,"a":{"y":"ü"}}', {"z": 1, "a": {"y": "ü"}}])
@pytest.mark.parametrize(
    ("source", "rendered"), [(ITEMS, "[('z', 1), ('a', {'y': 'ü'})]"), *[(s, '{"z": 1, "a": {"y": "ü"}}') for s in (JSON, TEXT)]]
)
def test_arguments_have_the_templates_type_and_their_order(source: str, rendered: str, arguments: Any) -> None:
    assert rendered in adapted(source, chat(USER, calls(("x", arguments))))[0]


@pytest.mark.parametrize("arguments", ['{"path": "x', "[1]", "", "nonsense"])
@pytest.mark.parametrize("source", [ITEMS, JSON, TEXT])
def test_malformed_arguments_are_not_lost(source: str, arguments: str) -> None:
    text, _ = adapted(source, chat(USER, calls(("x", arguments))))
    assert arguments in text.replace('\\"', '"')


def test_ids_of_the_client_never_reach_the_prompt() -> None:
    first, second = (
        adapted(ITEMS, chat(USER, calls((a, "{}"), (b, "{}")), result(a, "1"), result(b, "2"))) for a, b in [("x1", "x2"), ("toolu_7", "9")]
    )
    assert first == second
    assert "000000001" in first[0]


def result(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def test_results_stand_in_the_order_of_their_calls() -> None:
    text, _ = adapted(
        PLAIN.replace("m.role", "m.name or m.role"),
        chat(calls(("b", "{}"), ("a", "{}")), result("a", "2"), result("b", "1"), USER, result("?", "3")),
    )
    assert text.split("\n")[1:3] == ["f:1", "f:2"]
    assert text.split("\n")[4] == "tool:3"


@pytest.mark.parametrize(
    ("source", "args", "expected", "num_notes"),
    [
        ("{{ enable_thinking }}", {"enable_thinking": False}, "False", 0),
        ("{{ thinking }}", {"enable_thinking": False}, "False", 0),
        ("{{ enable_thinking }}", {"reasoning_effort": "none"}, "False", 0),
        ("{{ enable_thinking }}", {"reasoning_effort": "high"}, "", 1),
        ("x", {"enable_thinking": False, "reasoning_effort": "low"}, "x", 2),
        ("{{ other }}", {"other": 5}, "5", 0),
        *[
            (EFFORT, {"reasoning_effort": requested}, rendered, 0)
            for requested, rendered in [("high", "xhigh"), ("max", "xhigh"), ("minimal", "low"), ("medium", "medium")]
        ],
    ],
)
def test_switches_have_the_templates_names_and_values(source: str, args: dict[str, Any], expected: str, num_notes: int) -> None:
    text, notes = adapted(source, chat(USER, **args))
    assert (text, len(notes)) == (expected, num_notes)


def test_what_the_bundled_model_supports(template: Template) -> None:
    adapter = TemplateAdapter(template)
    assert (adapter.supports_system, adapter.supports_more_system, adapter.supports_late_system) == (True, True, True)
    assert (adapter.supports_users, adapter.supports_user_after_tool, adapter.needs_object_arguments) == (True, True, True)
    assert (adapter.thinking_switch, adapter.efforts) == ("enable_thinking", ())


def test_the_prompt_has_the_notes(tokenizer: Tokenizer) -> None:
    assert len(Prompter(tokenizer, Template(STRICT, {})).encode(chat(USER, SYSTEM, USER), tenant="").notes) == 1


def test_the_date_is_defined_only_for_a_template_that_needs_it() -> None:
    guarded = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}no date{% endif %}"
    assert adapted(guarded, chat(USER))[0] == "no date"
