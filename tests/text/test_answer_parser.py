"""Answers in real formats, parsed in one piece and in any number of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.text.conftest import no_logprobs

from forerun.text.answer_parser import AnswerFormat, AnswerParser, detect_answer_format
from forerun.text.calls.call_format import CallFormat
from forerun.text.calls.gemma import FUNCTION_GEMMA, GEMMA_4, Gemma
from forerun.text.calls.json_calls import Hermes, Llama
from forerun.text.calls.tagged import GLM, QWEN
from forerun.text.calls.tools import Tools
from forerun.text.message import AssistantMessage
from forerun.text.prompt import call_id
from forerun.text.reasoning import THINK
from forerun.values import CallArguments, CallEnd, CallStart, Content, Piece, TokenLogprob

PROPERTIES = {
    "path": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "force": {"type": "boolean"},
    "edits": {"type": "array", "items": {"type": "object"}},
    "range": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    "mode": {"enum": ["a", "b"]},
    "port": {"type": ["integer", "string"]},
    "loop": {"$ref": "#/properties/loop"},
    "free": {},
    "odd": {"enum": 5},
}
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": PROPERTIES}}}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = Tools([READ, STOP])


def parse(calls: CallFormat, chunks: list[str], *, opens: bool = False, tools: Tools = TOOLS, is_cut: bool = False) -> list[Piece]:
    """All pieces; the span that logprobs are requested for is where each piece of content stands in the answer."""
    spans = list[tuple[int, int]]()

    def logprobs_of(start: int, stop: int) -> tuple[TokenLogprob, ...]:
        spans.append((start, stop))
        return ()

    parser = AnswerParser(AnswerFormat(THINK, calls), tools, partial(call_id, "job"), opens_reasoning=opens, logprobs_of=logprobs_of)
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)] + parser.flush(is_cut=is_cut)
    answer = "".join(chunks)
    assert [answer[start:stop] for start, stop in spans] == [piece.text for piece in pieces if isinstance(piece, Content)]
    return pieces


def joined(pieces: list[Piece]) -> dict[str, Any]:
    """The message, and which of its calls are complete."""
    message = AssistantMessage()
    for piece in pieces:
        message.take(piece)
    value = message.value()
    calls = [(each["function"]["name"], each["function"]["arguments"]) for each in value.get("tool_calls", [])]
    ends = [piece.is_complete for piece in pieces if isinstance(piece, CallEnd)]
    return {"content": value["content"] or "", "reasoning": value.get("reasoning_content", ""), "calls": calls, "ends": ends}


def check(pieces: list[Piece]) -> None:
    """Invariants of all answers: a call's pieces stand together, complete calls are JSON objects, ids and indices are unique."""
    open_call: int | None = None
    for piece in pieces:
        if isinstance(piece, CallStart):
            assert open_call is None
            open_call = piece.index
        elif isinstance(piece, CallArguments | CallEnd):
            assert piece.index == open_call
            open_call = None if isinstance(piece, CallEnd) else open_call
        else:
            assert open_call is None
            assert piece.text
    assert open_call is None
    starts = [piece for piece in pieces if isinstance(piece, CallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    assert len({start.id for start in starts}) == len(starts)
    message = joined(pieces)
    assert all(isinstance(json.loads(text), dict) for (_, text), done in zip(message["calls"], message["ends"], strict=True) if done)


def hermes(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def qwen(name: str, **arguments: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def glm(name: str, **arguments: str) -> str:
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{inner}</tool_call>"


def gemma(name: str, arguments: str) -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>".replace("<|Q|>", '<|"|>')


OPEN = "<tool_call>\n<function=read>\n<parameter=path>\na"
ENDS = "a\n</function>\n</tool_call>\n</tool_call>\n<tool_call>\nb"
EXAMPLE = f"So:\n{qwen('read', path='b')}\nEnd."
CASES = [
    # calls, answer, content, calls with arguments, completeness
    ("hermes: two", Hermes(), f"Look.\n\n{hermes('read', path='x', count=2)}\n{hermes('stop')}",
     "Look.", [{"path": "x", "count": 2}, {}], [1, 1]),
    ("hermes: unknown tool", Hermes(), hermes("nope", a=1), "", [{"a": 1}], [1]),
    ("hermes: other order", Hermes(), '<tool_call>{"arguments": {"path": "x"}, "name": "read"}</tool_call>', "", [{"path": "x"}], [1]),
    ("hermes: twice JSON", Hermes(), '<tool_call>{"name": "read", "arguments": "{\\"path\\": 1}"}</tool_call>', "", [{"path": 1}], [1]),
    ("hermes: no arguments", Hermes(), '<tool_call>{"name": "stop"}</tool_call>', "", [{}], [1]),
    ("hermes: bracket missing", Hermes(), '<tool_call>{"name": "read", "arguments": {"path": "x"}</tool_call>', "", [{"path": "x"}], [1]),
    ("hermes: tag missing", Hermes(), '<tool_call>{"name": "read", "arguments": {"path": "x"}}', "", [{"path": "x"}], [1]),
    ("hermes: raw lines", Hermes(), '<tool_call>{"name": "read", "arguments": {"path": "a\nb\t"}}</tool_call>',
     "", [{"path": "a\nb\t"}], [1]),
    ("hermes: no call", Hermes(), "Write <tool_call> and </tool_call>.", "Write <tool_call> and </tool_call>.", [], []),
    ("hermes: no JSON", Hermes(), "<tool_call>\nread x\n</tool_call>", "<tool_call>\nread x\n</tool_call>", [], []),
    ("hermes: cut", Hermes(), '<tool_call>\n{"name": "read", "arguments": {"path": "x', "", ['{"path": "x'], [0]),
    ("hermes: broken", Hermes(), '<tool_call>{"name": "read", "arguments": {"a": <b>}}</tool_call>ok', "ok", ['{"a": <b>}}'], [0]),
    ("hermes: a key alone", Hermes(), '<tool_call>{"name": "read", "arguments": {"a"}}</tool_call>', "", ['{"a"}'], [0]),
    ("hermes: text behind", Hermes(), hermes("stop") + "\n\nDone.", "\n\nDone.", [{}], [1]),
    ("hermes: tags in text", Hermes(), hermes("read", path="</tool_call>{"), "", [{"path": "</tool_call>{"}], [1]),
    ("qwen: two", QWEN, f"Look.\n{qwen('read', path='x', count='2')}\n{qwen('stop')}\n", "Look.", [{"path": "x", "count": 2}, {}], [1, 1]),
    ("qwen: types", QWEN, qwen("read", count="3.0", ratio="2", force="True", edits='[{"a": 1}]', range="null"), "",
     [{"count": 3, "ratio": 2, "force": True, "edits": [{"a": 1}], "range": None}], [1]),
    ("qwen: text stays text", QWEN, qwen("read", path="123", mode="null", port="0x1", loop="5", free='{"a": 1}', more="[1"), "",
     [{"path": "123", "mode": "null", "port": "0x1", "loop": 5, "free": {"a": 1}, "more": "[1"}], [1]),
    ("qwen: wrong type", QWEN, qwen("read", count="many"), "", [{"count": "many"}], [1]),
    ("qwen: no schema", QWEN, qwen("read", odd="5"), "", [{"odd": 5}], [1]),
    ("qwen: lines", QWEN, qwen("read", path='\na "b"\\\n\n'), "", [{"path": '\na "b"\\\n\n'}], [1]),
    ("qwen: empty", QWEN, qwen("read", path=""), "", [{"path": ""}], [1]),
    ("qwen: tags in text", QWEN, qwen("read", path="</parameter>\nx</function>y</parameter>"), "",
     [{"path": "</parameter>\nx</function>y</parameter>"}], [1]),
    ("qwen: naked", QWEN, "Now.\n" + qwen("read", path="x").removeprefix("<tool_call>\n"), "Now.", [{"path": "x"}], [1]),
    ("qwen: no envelope's end", QWEN, qwen("read", path="x").removesuffix("\n</tool_call>") + "\nSo.", "\nSo.", [{"path": "x"}], [1]),
    ("qwen: naked and unknown", QWEN, "Use <function=nope> <b>", "Use <function=nope> <b>", [], []),
    ("qwen: no call", QWEN, "A <tool_call> is\n\n<tool_call>text", "A <tool_call> is\n\n<tool_call>text", [], []),
    ("qwen: cut", QWEN, "<tool_call>\n<function=read>\n<parameter=path>\nab\ncd", "", ['{"path": "ab\\ncd'], [0]),
    ("qwen: broken", QWEN, "<tool_call>\n<function=read>\npath=x\n</function>\n</tool_call>ok", "ok", ["\npath=x\n"], [0]),
    ("qwen: no function's end", QWEN, OPEN + "\n</parameter>\n</tool_call>", "", [{"path": "a"}], [1]),
    ("qwen: no parameter's end", QWEN, OPEN + "\n</function>\n</tool_call>", "", [{"path": "a"}], [1]),
    ("qwen: neither", QWEN, OPEN + "\n</tool_call>\nSo.", "\nSo.", [{"path": "a"}], [1]),
    ("qwen: naked and no parameter's end", QWEN, OPEN.removeprefix("<tool_call>\n") + "\n</function>", "", [{"path": "a"}], [1]),
    ("qwen: in one line", QWEN, OPEN + "</function></tool_call>", "", [{"path": "a"}], [1]),
    ("qwen: empty and no parameter's end", QWEN, OPEN.removesuffix("a") + "</function>\n</tool_call>", "", [{"path": ""}], [1]),
    ("qwen: no arguments and no function's end", QWEN, "<tool_call>\n<function=stop>\n</tool_call>", "", [{}], [1]),
    ("qwen: another after no function's end", QWEN, f"{OPEN}\n</parameter>\n</tool_call>\n{qwen('read', path='b')}", "",
     [{"path": "a"}, {"path": "b"}], [1, 1]),
    ("qwen: others after no parameter's end", QWEN, f"{OPEN}\n</function>\n</tool_call>\n{qwen('read', path='b')}\n{qwen('stop')}", "",
     [{"path": "a"}, {"path": "b"}, {}], [1, 1, 1]),
    ("qwen: another after no end at all", QWEN, f"{OPEN}\n{qwen('read', path='b')}", "", [{"path": "a"}, {"path": "b"}], [1, 1]),
    ("qwen: another after a value's end alone", QWEN, f"{OPEN}\n</parameter>\n{qwen('read', path='b')}", "",
     [{"path": "a"}, {"path": "b"}], [1, 1]),
    ("qwen: thrice no parameter's end", QWEN, f"{OPEN}\n</function>\n</tool_call>\n" * 3, "", [{"path": "a"}] * 3, [1, 1, 1]),
    ("qwen: another argument after no end", QWEN, f"{OPEN}\n<parameter=count>\n2\n</parameter>\n</function>\n</tool_call>", "",
     [{"path": "a", "count": 2}], [1]),
    ("qwen: no argument's end", QWEN, f"{OPEN}\n<parameter=count>\n2\n<parameter=force>\ntrue\n</function>\n</tool_call>", "",
     [{"path": "a", "count": 2, "force": True}], [1]),
    ("qwen: a number without end", QWEN, OPEN.replace("path", "count").replace("\na", "\n7") + "\n</tool_call>", "", [{"count": 7}], [1]),
    ("qwen: broken and another", QWEN, f"<tool_call>\n<function=read>\npath=x\n{qwen('read', path='b')}", "",
     ["\npath=x\n", {"path": "b"}], [0, 1]),
    ("qwen: a call in text", QWEN, qwen("read", path=EXAMPLE, count="2"), "", [{"path": EXAMPLE, "count": 2}], [1]),
    ("qwen: a call in text without end", QWEN, qwen("read", path=EXAMPLE).replace(".\n</parameter>", "."), "",
     [{"path": EXAMPLE}], [1]),
    ("qwen: ends in text", QWEN, qwen("read", path=ENDS, count="2"), "", [{"path": ENDS, "count": 2}], [1]),
    ("qwen: beginnings in text", QWEN, qwen("read", path="a <function=x><parameter=y> b"), "",
     [{"path": "a <function=x><parameter=y> b"}], [1]),
    ("qwen: other parameters in text", QWEN, qwen("read", path="a\n<parameter=other>\nb"), "", [{"path": "a\n<parameter=other>\nb"}], [1]),
    ("glm: no value's end", GLM, glm("read", path="a", count="2").replace("</arg_value>", ""), "", [{"path": "a", "count": 2}], [1]),
    ("glm: no value's end in one line", GLM, glm("read", path="a").replace("</arg_value>\n", ""), "", [{"path": "a"}], [1]),
    ("glm: no last value's end, and another", GLM, f"{glm('read', path='a').replace('</arg_value>', '')}\n{glm('read', path='b')}", "",
     [{"path": "a"}, {"path": "b"}], [1, 1]),
    ("glm: no end at all, and another", GLM, f"<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a\n{glm('read', path='b')}", "",
     [{"path": "a"}, {"path": "b"}], [1, 1]),
    ("glm: a call in text", GLM, glm("read", path=f"So: {glm('read', path='b')}."), "", [{"path": f"So: {glm('read', path='b')}."}], [1]),
    ("hermes: two without end", Hermes(), hermes("read", path="a").removesuffix("</tool_call>") * 2, "", [{"path": "a"}] * 2, [1, 1]),
    ("hermes: text behind no end", Hermes(), hermes("stop").removesuffix("</tool_call>") + "So.", "So.", [{}], [1]),
    ("hermes: two of other order without end", Hermes(), '<tool_call>{"arguments": {"path": "<tool_call>"}, "name": "read"}\n' * 2, "",
     [{"path": "<tool_call>"}] * 2, [1, 1]),
    ("hermes: broken and another", Hermes(), '<tool_call>{"name": "read", "arguments": {"a": <b>}\n' + hermes("stop"), "",
     ['{"a": <b>}\n', {}], [0, 1]),
    ("hermes: a tag, and a call", Hermes(), f"Write <tool_call> so: {hermes('stop')}", "Write <tool_call> so:", [{}], [1]),
    ("gemma: two without end", GEMMA_4, gemma("read", "count:2").removesuffix("<tool_call|>") * 2, "", [{"count": 2}] * 2, [1, 1]),
    ("glm: two", GLM, f"Look.\n{glm('read', path=' x ', count='2')}\n{glm('stop')}", "Look.", [{"path": " x ", "count": 2}, {}], [1, 1]),
    ("glm: one line", GLM, glm("read", path="x").replace("\n", ""), "", [{"path": "x"}], [1]),
    ("glm: no call", GLM, "A <tool_call>I think", "A <tool_call>I think", [], []),
    ("gemma: two", GEMMA_4, f"Look.{gemma('read', 'path:<|Q|>{x}<|Q|>,count:2')}{gemma('stop', '')}",
     "Look.", [{"path": "{x}", "count": 2}, {}], [1, 1]),
    ("gemma: nested", GEMMA_4, gemma("read", 'a:[1,{b:true,<|Q|>c d<|Q|>:<|Q|>"\\\n<|Q|>}],d:-1.5e3,e:word,f:null'), "",
     [{"a": [1, {"b": True, "c d": '"\\\n'}], "d": -1500.0, "e": "word", "f": None}], [1]),
    ("gemma: tags in text", GEMMA_4, gemma("read", "path:<|Q|><tool_call|>}<|<|Q|>"), "", [{"path": "<tool_call|>}<|"}], [1]),
    ("gemma: cut", GEMMA_4, '<|tool_call>call:read{path:<|"|>x', "", ['{"path": "x'], [0]),
    ("gemma: broken", GEMMA_4, "<|tool_call>call:read{a:1]}<tool_call|>ok", "ok", ['{"a": 1}'], [0]),
    ("gemma: a key alone", GEMMA_4, gemma("read", "a"), "", ['{"a"}'], [0]),
    ("gemma: no call", GEMMA_4, "A <|tool_call> is", "A <|tool_call> is", [], []),
    ("function gemma: one", FUNCTION_GEMMA, "<start_function_call>call:read{path:<escape>x<escape>}<end_function_call>",
     "", [{"path": "x"}], [1]),
    ("llama: one", Llama(), '{"name": "read", "parameters": {"path": "x"}}', "", [{"path": "x"}], [1]),
    ("llama: several", Llama(),
     '<|python_tag|>{"type": "function", "name": "read", "parameters": {"a": {}} }; {"name": "stop", "parameters": {}}',
     "", [{"a": {}}, {}], [1, 1]),
    ("llama: JSON", Llama(), '{"name": "x", "parameters": {"a": 1}}', '{"name": "x", "parameters": {"a": 1}}', [], []),
    ("llama: text", Llama(), 'Call {"name": "read", "parameters": {}}', 'Call {"name": "read", "parameters": {}}', [], []),
]  # fmt: skip
NAMED = [pytest.param(*case[1:], id=case[0]) for case in CASES]


@pytest.mark.parametrize(("calls", "answer", "content", "arguments", "ends"), NAMED)
def test_an_answer_in_one_piece_and_character_by_character(
    calls: CallFormat, answer: str, content: str, arguments: list[Any], ends: list[int]
) -> None:
    pieces = parse(calls, [answer])
    check(pieces)
    message = joined(pieces)
    assert message["content"] == content
    assert [json.loads(text) if done else text for (_, text), done in zip(message["calls"], message["ends"], strict=True)] == arguments
    assert message["ends"] == ends
    assert joined(parse(calls, list(answer))) == message


WAYS: list[CallFormat] = [Hermes(), Llama(), QWEN, GLM, GEMMA_4, FUNCTION_GEMMA]
SCRAPS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=read>", "<function=", "</function>", "<parameter=path>", "<parameter=count>"),
        *("</parameter>", "read", "<arg_key>", "path", "</arg_key>", "<arg_value>", "</arg_value>", '{"name": "read", "arguments": ', "{"),
        *('{"name": "stop", "parameters": {', "}", '"', "\\", ": ", "12", "true", "\n", " ", "a", "<", "</", "<think>", "</think>", ";"),
        *("<|tool_call>call:read{", "path:", '<|"|>', "<|", "},", "[", "]", "<tool_call|>", gemma("read", "count:2")),
        *("<start_function_call>call:read{", "<escape>", "<end_function_call>", "<|channel>thought\n", "<channel|>"),
        '<tool_call>{"arguments": {"path": "x"}, "name": "read"}</tool_call>',
        *("<tool_call>\n<function=read>\n<parameter=path>\na", "\n<parameter=count>\n", "\n</function>\n</tool_call>\n", "\n</think>\n\n"),
        *("<|python_tag|>", hermes("read", path="x"), qwen("read", path="x", count="1"), glm("read", path="x")),
    ]
)


@given(st.lists(SCRAPS, max_size=14), st.data(), st.sampled_from(WAYS), st.booleans(), st.booleans())
@example(["<tool_call>", "\n", "<function=read>", "</function>"], None, QWEN, False, False)
@example(['<tool_call>{"name": "read", "arguments": ', "{", '"', "\\", '"', '"', "}"], None, Hermes(), False, False)
@example(['<tool_call>{"arguments": {"path": "x"}, "name": "read"}</tool_call>'], None, Hermes(), False, False)
def test_any_chunking_is_parsed_like_the_whole(scraps: list[str], data: Any, calls: CallFormat, opens: bool, is_cut: bool) -> None:
    answer = "".join(scraps)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6))) if data else []
    chunks = [answer[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    whole = parse(calls, [answer], opens=opens, is_cut=is_cut)
    check(whole)
    assert joined(parse(calls, chunks, opens=opens, is_cut=is_cut)) == joined(whole)
    assert joined(parse(calls, list(answer), opens=opens, is_cut=is_cut)) == joined(whole)


def llama(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "parameters": arguments})


def quoted(quote: str, **arguments: str) -> str:
    return ",".join(f"{key}:{quote}{value}{quote}" for key, value in arguments.items())


WRITERS: dict[CallFormat, Callable[..., str]] = {
    Hermes(): hermes,
    Llama(): llama,
    QWEN: qwen,
    GLM: glm,
    GEMMA_4: lambda name, **arguments: gemma(name, quoted('<|"|>', **arguments)),
    FUNCTION_GEMMA: lambda name, **arguments: f"<start_function_call>call:{name}{{{quoted('<escape>', **arguments)}}}<end_function_call>",
}


@given(st.dictionaries(st.sampled_from(["path", "other"]), st.text(max_size=20), max_size=2), st.sampled_from(WAYS))
def test_any_text_survives_as_an_argument(arguments: dict[str, str], calls: CallFormat) -> None:
    assume(not isinstance(calls, Gemma) or all(calls.quote not in text for text in arguments.values()))  # it cannot write that
    strings = Tools([{"name": "read", "parameters": {"properties": {name: {"type": "string"} for name in ("path", "other")}}}])
    written = WRITERS[calls]("read", **arguments)
    assert [json.loads(text) for _, text in joined(parse(calls, list(written), tools=strings))["calls"]] == [arguments]


@pytest.mark.parametrize(
    "end", ["\n</parameter>", "\nx</function>\n", "\n</function>\n</tool_call>\nmore", f"\n{qwen('read', path='b')}\nmore"]
)
def test_a_call_in_a_cut_answer_is_whole_only_with_all_its_tags(end: str) -> None:
    assert joined(parse(QWEN, [OPEN + end], is_cut=True))["ends"] == [False]
    assert joined(parse(QWEN, [qwen("read", path="a")], is_cut=True))["ends"] == [True]


def test_a_missing_tag_is_noticed_where_another_call_follows() -> None:
    parser = AnswerParser(AnswerFormat(THINK, QWEN), TOOLS, partial(call_id, "job"), opens_reasoning=False, logprobs_of=no_logprobs)
    parser.push(f"{OPEN}\n</function>\n</tool_call>\n")
    pieces = parser.push(f"{OPEN}b")
    assert [piece for piece in pieces if isinstance(piece, CallEnd)] == [CallEnd(0, is_complete=True)]
    assert pieces[-1] == CallArguments(1, "ab")


@pytest.mark.parametrize("lead", ["", "I look.\n", "I look.\n</parameter> "])
def test_calls_without_end_are_parsed_one_by_one(lead: str) -> None:
    """A model that repeats itself must not make the parser search the rest of the answer for each of its calls."""
    answer = f"{lead}{OPEN}\n</function>\n</tool_call>\n" * 200 + f"{OPEN}\n" * 200
    message = joined(parse(QWEN, [answer + "</tool_call>"]))
    assert len(message["calls"]) == 400
    assert all(message["ends"])


def test_without_tools_nothing_is_a_call() -> None:
    answer = hermes("read", path="x")
    assert joined(parse(Hermes(), [answer], tools=Tools([])))["content"] == answer


def test_arguments_are_streamed() -> None:
    parser = AnswerParser(AnswerFormat(THINK, QWEN), TOOLS, partial(call_id, "job"), opens_reasoning=False, logprobs_of=no_logprobs)
    assert parser.push("Hi") != []
    assert parser.push(" <tool_call>\n<function=read>\n<parameter=path>\nab") != []
    assert parser.push("c") == [CallArguments(0, "c")]
    assert parser.push("\n") == []
    assert parser.push("d") == [CallArguments(0, "\\nd")]


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("<tool_call>\n<function=example>", QWEN),
        ("<tool_call>{function-name}\n<arg_key>", GLM),
        ('<tool_call>\n{"name": ', Hermes()),
        ("<|channel>thought {{ '<|tool_call>call:' }}<channel|>", GEMMA_4),
        ('{"name": "f", "parameters": {', Llama()),
        ("{{ messages }}", None),
    ],
)
def test_the_template_decides_the_call_format(source: str, calls: CallFormat | None) -> None:
    assert detect_answer_format(source).calls == calls


def test_gemmas_reasoning_has_other_tags() -> None:
    parser = AnswerParser(
        detect_answer_format("<|tool_call> <channel|>"), TOOLS, partial(call_id, "job"), opens_reasoning=False, logprobs_of=no_logprobs
    )
    answer = f"<|channel>thought\nHm.<channel|>Look.{gemma('stop', '')}"
    message = joined([piece for char in answer for piece in parser.push(char)] + parser.flush())
    assert (message["reasoning"], message["content"], message["calls"]) == ("Hm.", "Look.", [("stop", "{}")])
