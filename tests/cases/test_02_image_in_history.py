"""Case 02: a conversation that holds an image, a document or a file is continued."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.cases.rendered import CHAT, MESSAGES, RESPONSES, Answers, case

CASE = case("02-image-in-history")["requests"]
IMAGE = "image: the model takes only text; a line is in its place"
TEXTS = [
    "[image omitted: image/png]",
    "short",
    "t\ns\nfound",
    "ok\n[image omitted: image/png]",
    "hi\na.txt\nhi",
    "ok\n[image omitted: image/png]",
]
NOTES = [IMAGE, "document: rendered as its text", "search_result: rendered as its text", IMAGE, "file: rendered as its text", IMAGE]
HELLO = base64.b64encode("hällo".encode()).decode()


@pytest.mark.parametrize(("request_", "text", "note"), list(zip(CASE, TEXTS, NOTES, strict=True)))
def test_the_case(server: Answers, request_: dict[str, Any], text: str, note: str) -> None:
    report = server.report(request_["path"], request_["body"])
    assert text in server.text(request_["path"], request_["body"])
    assert report["rendering"].count(note) == 1


def asked(path: str, part: Any, *, stands_in: str) -> dict[str, Any]:
    """A request with the part between two texts."""
    kind = "input_text" if path == RESPONSES else "text"
    content = [{"type": kind, "text": "before"}, part, {"type": kind, "text": "after"}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if stands_in == "result":
        call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages = {
            CHAT: [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "t", "content": content}],
            MESSAGES: [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]},
            ],
            RESPONSES: [
                {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "t", "output": content},
            ],
        }[path]
    if stands_in == "answer":
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}, {"role": "user", "content": "y"}]
    return {"max_output_tokens": 4, "input": messages} if path == RESPONSES else {"max_tokens": 4, "messages": messages}


PARTS: dict[str, tuple[str, Any, str]] = {
    "chat image": (
        CHAT,
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA", "detail": "low"}},
        "[image omitted: image/jpeg]",
    ),
    "chat image by address": (CHAT, {"type": "image_url", "image_url": {"url": "https://x/y?signature=1"}}, "[image omitted]"),
    "chat image as text": (CHAT, {"type": "image_url", "image_url": "data:image/png;base64,AA"}, "[image omitted: image/png]"),
    "chat audio": (CHAT, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "[audio omitted: wav]"),
    "chat video": (CHAT, {"type": "video_url", "video_url": {"url": "https://x/y.mp4"}}, "[video omitted]"),
    "chat file": (
        CHAT,
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}},
        "[file omitted: a.pdf]",
    ),
    "chat text file": (
        CHAT,
        {"type": "file", "file": {"filename": "a.md", "file_data": f"data:text/markdown;base64,{HELLO}"}},
        "a.md\nhällo",
    ),
    "chat unknown": (CHAT, {"type": "hologram", "data": "x"}, "[hologram omitted]"),
    "chat unknown with text": (CHAT, {"type": "quote", "text": "said"}, "said"),
    "messages image by address": (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://x"}}, "[image omitted]"),
    "messages image by id": (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "f1"}}, "[image omitted]"),
    "messages pdf": (
        MESSAGES,
        {"type": "document", "title": "Plan", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}},
        "[document omitted: Plan]",
    ),
    "messages text in base64": (
        MESSAGES,
        {"type": "document", "title": None, "source": {"type": "base64", "media_type": "text/plain", "data": HELLO}},
        "hällo",
    ),
    "messages no text in base64": (
        MESSAGES,
        {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "/w=="}},
        "[document omitted: text/plain]",
    ),
    "messages document of blocks": (
        MESSAGES,
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "one"}, {"type": "image", "source": {}}]}},
        "one\n[image omitted]",
    ),
    "messages unknown": (MESSAGES, {"type": "container_upload", "file_id": "f"}, "[container_upload omitted]"),
    "messages compaction": (MESSAGES, {"type": "compaction", "content": "What was said."}, "What was said."),
    "responses image by id": (RESPONSES, {"type": "input_image", "file_id": "f1", "detail": "auto"}, "[image omitted]"),
    "responses file by id": (RESPONSES, {"type": "input_file", "file_id": "f1"}, "[file omitted]"),
    "responses file by address": (RESPONSES, {"type": "input_file", "file_url": "https://x/y"}, "[file omitted]"),
    "responses text in an address": (RESPONSES, {"type": "input_file", "file_data": "data:text/plain,h%C3%A4llo"}, "hällo"),
    "responses audio": (RESPONSES, {"type": "input_audio", "input_audio": {"data": "A", "format": "mp3"}}, "[audio omitted: mp3]"),
    "responses unknown": (RESPONSES, {"type": "hologram"}, "[hologram omitted]"),
}


@pytest.mark.parametrize("stands_in", ["question", "result", "answer"])
@pytest.mark.parametrize(("path", "part", "line"), PARTS.values(), ids=PARTS)
def test_any_part_is_a_line_of_its_own_anywhere(server: Answers, path: str, part: Any, line: str, stands_in: str) -> None:
    body = asked(path, part, stands_in=stands_in)
    report = server.report(path, body)
    assert f"before\n{line}\nafter" in server.text(path, body)
    assert len(report["rendering"]) >= 1


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("part", [None, "", {}, {"type": "text"}, {"type": "text", "text": None}, {"type": "text", "text": ""}])
def test_empty_parts_are_nothing(server: Answers, path: str, part: Any) -> None:
    if path == MESSAGES and part == {}:
        return  # a block has a type
    assert "beforeafter" in server.text(path, asked(path, part, stands_in="question"))


def test_each_kind_is_named_once(server: Answers) -> None:
    images = [{"type": "image", "source": {}}] * 3
    body = {"max_tokens": 4, "messages": [{"role": "user", "content": images}] * 2, "system": images}
    assert server.report(MESSAGES, body)["rendering"] == [IMAGE]
    assert "[image omitted]\n[image omitted]\n[image omitted]" in server.text(MESSAGES, body)


def test_a_question_of_an_image_alone_is_answered(server: Answers) -> None:
    body = {"max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x"}}]}]}
    assert "user\n[image omitted]<|im_end|>" in server.text(CHAT, body)


def test_a_later_turn_reuses_what_stands_for_an_image(server: Answers) -> None:
    """Though the client has another address for it by then."""

    def turn(signature: str, *more: dict[str, Any]) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": f"https://x/y?{signature}"}}
        content = [{"type": "text", "text": "look " * 40}, image]
        return {"max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": content}, *more]}

    first = server.post(CHAT, turn("1")).json()
    more = (first["choices"][0]["message"], {"role": "user", "content": "and?"})
    report = server.post(CHAT, turn("2", *more)).json()["forerun"]
    assert report["reused_tokens"] >= first["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_parts_nested_too_deeply_are_refused(server: Answers, path: str) -> None:
    body = json.dumps(asked(path, "INNER", stands_in="question"))
    for depth in (300, 900, 5000):
        deep = body.replace('"INNER"', '{"type": "x", "content": [' * depth + "]}" * depth)
        response = server.post(path, content=deep)
        assert (response.status_code, "nest" in response.text or "recursion" in response.text) == (400, True), response.text
