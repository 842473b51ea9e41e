import asyncio
import json
import logging
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.serve.asking import MESSAGES, HeldClock, ask, chat, serving, values
from tests.serve.engine_double import DONE, Engine, Step

from forerun.errors import BadRequestError, BusyError, NumericsError
from forerun.serve import sse
from forerun.serve.app import build
from forerun.values import CallArguments, CallEnd, CallStart, Chat, Content, Job, PrefillProgress, QueuePosition, Reasoning

POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"]
GETS = [
    "/v1/models",
    "/v1/models/double",
    "/health",
    "/metrics",
    "/v1/forerun/sessions",
    "/v1/forerun/sessions/mine",
    "/v1/forerun/sessions/mine/export",
]
ONE = "/v1/forerun/sessions/mine"
CHANGES = [("DELETE", "/v1/forerun/sessions"), ("POST", f"{ONE}/fork"), ("PATCH", ONE), ("DELETE", ONE)]
ROUTES = [*(("POST", path) for path in POSTS), *(("GET", path) for path in (*GETS, ONE, f"{ONE}/export")), *CHANGES]


def test_a_whole_answer() -> None:
    engine = Engine()
    response = chat(engine, model="whatever")
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "Hello"
    assert response.json()["id"] == engine.jobs[0].id != chat(engine).json()["id"]
    assert engine.runs[0].is_cancelled, "a run is let go when it has ended"


def test_a_streamed_answer() -> None:
    response = chat(Engine(), stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-length" not in response.headers
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in values(response.text)) == "Hello"
    assert response.text.endswith("data: [DONE]\n\n")


def test_reasoning_is_split_off() -> None:
    message = chat(Engine(Reasoning("a"), Content("b"), DONE)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("a", "b")


def test_the_tenant_is_the_keys_name() -> None:
    engine = Engine()
    body = {"messages": [{"role": "user", "content": "x"}]}
    ask(engine, "POST", "/v1/chat/completions", keys={"ann": "k"}, json=body, headers={"authorization": "Bearer k"})
    assert engine.jobs[0].tenant == "ann"


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_asks_for_the_key(method: str, path: str) -> None:
    response = ask(Engine(), method, path, keys={"ann": "k"}, json={} if method == "POST" else None)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == ("authentication_error" if "messages" in path else "invalid_request_error")
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"messages": [{"role": "user", "content": "x"}], "metadata": NaN}',
        b"\xff",
        b"[" * 100_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_is_not_a_json_object_is_a_client_error(content: bytes) -> None:
    response = ask(Engine(), "POST", "/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [True, False])
def test_a_refusal_before_the_answer_has_a_status_of_its_own(stream: bool) -> None:
    response = chat(Engine(refusal=BusyError("16 wait", retry_after_s=3, hint="later")), stream=stream)
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert response.json()["error"]["hint"] == "later"
    assert chat(Engine(refusal=BadRequestError("no user", param="messages")), stream=stream).json()["error"]["param"] == "messages"


def test_an_error_in_a_whole_answer() -> None:
    response = chat(Engine(Content("a"), NumericsError("not finite")))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "numerics")


def test_an_error_in_a_stream_is_its_last_frame() -> None:
    engine = Engine(Content("a"), NumericsError("not finite"))
    response = chat(engine, stream=True)
    assert response.status_code == 200
    assert values(response.text)[-1]["error"]["message"] == "not finite"
    assert engine.runs[0].is_cancelled


@pytest.mark.parametrize("stream", [True, False])
def test_an_internal_error_is_logged_and_not_disclosed(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = chat(Engine(Content("a"), ZeroDivisionError("inside")), stream=stream)
    error = values(response.text)[-1]["error"] if stream else response.json()["error"]
    assert error["code"] == "internal"
    assert "inside" not in json.dumps(error)
    assert not stream or "inside" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/v1/chat/completions", 405), ("DELETE", "/health", 405)]
)
def test_no_such_route(method: str, path: str, status: int) -> None:
    response = ask(Engine(), method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code", "hint"}
    assert response.json()["error"]["message"].startswith(f"{method} {path}: ")
    assert status == 404 or response.headers["allow"]


def test_models() -> None:
    listed = ask(Engine(), "GET", "/v1/models").json()
    assert listed["object"] == "list"
    assert listed["data"] == [ask(Engine(), "GET", "/v1/models/double").json()]
    assert {"id": "double", "object": "model", "created": 1_700_000_000, "context_tokens": 4096}.items() <= listed["data"][0].items()
    assert "models" not in listed


@pytest.mark.parametrize("name", ["org/other", "org%2Fother", "gpt-5"])
def test_any_name_is_that_of_the_served_model_which_says_so(name: str) -> None:
    known, other = (ask(Engine(), "GET", f"/v1/models/{each}").json() for each in ("double", name))
    assert other == known | {"notes": [f"requests for {name.replace('%2F', '/')!r} are served by this model"]}


STABLE = ["/v1/models", "/v1/models/double", "/health", "/health/live", "/health/ready", "/openapi.json", "/v1/forerun/sessions"]


@pytest.mark.parametrize("path", STABLE)
def test_head_is_answered_where_get_is(path: str) -> None:
    with serving(Engine()) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        for _ in range(2):  # on the same connection: no body may follow
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.content, get.status_code) == (200, b"", 200)
            assert head.headers["content-type"] == get.headers["content-type"]
    assert ask(Engine(), "HEAD", "/v1/responses").status_code == 405


@pytest.mark.parametrize("path", STABLE)
def test_a_path_may_end_in_a_slash(path: str) -> None:
    assert ask(Engine(), "GET", f"{path}/").content == ask(Engine(), "GET", path).content


@pytest.mark.parametrize("path", POSTS)
def test_the_path_of_a_request_may_end_in_a_slash(path: str) -> None:
    body = {"input": "x"} if path == "/v1/responses" else {"prompt": "x"} if path == "/v1/completions" else BODIES["/v1/messages"]
    assert ask(Engine(), "POST", f"{path}/", json=body).status_code == 200


def test_health_answers_also_when_degraded() -> None:
    engine = Engine()
    engine.reasons = ("the disk is full",)
    response: httpx.Response = ask(engine, "GET", "/health")
    assert response.status_code == 200
    body = response.json()
    assert (body["status"], body["reasons"], body["running"], body["waiting"]) == ("degraded", ["the disk is full"], 1, 2)
    assert body["bank"]["pending_writes"] == 0
    assert body["model"]["id"] == "double"


def test_metrics() -> None:
    response = ask(Engine(), "GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "forerun_turns_total 0.0" in response.text


def timed(*script: Step, path: str = "/v1/chat/completions", stream: bool = True) -> httpx.Response:
    """The answer to a request whose engine waits so long between events."""
    return ask(Engine(*script), "POST", path, loop=HeldClock, json=BODIES[path] | {"stream": stream})


def test_a_keepalive_comes_before_ten_seconds_are_over() -> None:
    before, _, after = timed(30.0, PrefillProgress(1, 2, 0, None), 9.5, Content("x"), DONE).text.partition(": prefill 1/2 (0 cached)\n")
    assert (before.count(": keepalive\n"), after.count(": keepalive\n")) == (3, 1)


def test_a_keepalive_comes_also_where_events_have_no_frames() -> None:
    assert timed(*[CallEnd(0, is_complete=True), 0.7] * 28, DONE).text.count(": keepalive\n") == 2


def test_a_frame_postpones_the_next_keepalive() -> None:
    assert ": keepalive" not in timed(*[Content("x"), 7.5] * 14, DONE).text


def test_no_comment_ends_in_a_blank_line() -> None:
    text = timed(PrefillProgress(1, 2, 0, None), 9.0, CallEnd(0, is_complete=True), Content("x"), DONE).text
    assert ": keepalive\n" in text
    events = text.split("\n\n")
    assert all("data: " in event for event in events[:-1])
    assert events[-1] == ""


@pytest.mark.parametrize("path", POSTS)
def test_errors_have_the_dialects_own_shape(path: str) -> None:
    for response in (
        ask(Engine(), "POST", path, json={"forerun": 1}),
        ask(Engine(), "POST", path, content=b"{", headers={"content-type": "text/plain"}),
        ask(Engine(), "GET", path),
    ):
        assert response.status_code in (400, 405, 415)
        assert (response.json().get("type") == "error") == path.startswith("/v1/messages")
        assert response.json()["error"]["message"]


def test_tokens_are_counted() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "system": "y"}
    assert ask(Engine(), "POST", "/v1/messages/count_tokens", json=body).json() == {"input_tokens": 11}


@pytest.mark.parametrize("text", ["a\ud83d", "\ude00a", "\ud83d\ude00", "\\ud83d"])
def test_half_a_surrogate_pair_becomes_a_replacement_character(text: str) -> None:
    engine = Engine()
    body = json.dumps({"messages": [{"role": "user", "content": text}]})
    assert ask(engine, "POST", "/v1/chat/completions", content=body, headers={"content-type": "application/json"}).status_code == 200
    read = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    prompt = engine.jobs[0].prompt
    assert isinstance(prompt, Chat)
    assert prompt.messages[0]["content"] == read


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("is_escaped", [True, False])
def test_half_a_surrogate_pair_is_answered_with_a_replacement_character(encoding: str, is_escaped: bool, stream: bool) -> None:
    body = json.dumps({"input": "x", "metadata": {"a": "\ud83d"}, "stream": stream}, ensure_ascii=is_escaped)
    content, headers = body.encode(encoding, "surrogatepass"), {"content-type": "application/json"}
    response = ask(Engine(), "POST", "/v1/responses", content=content, headers=headers)
    assert (response.status_code, "\ufffd" in response.text, "server_error" in response.text) == (200, True, False)


BODIES = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/responses": {"input": "x"},
}


@pytest.mark.parametrize(
    ("path", "sign"),
    [("/v1/chat/completions", ": keepalive\n"), ("/v1/messages", "event: ping\n"), ("/v1/responses", "event: response.in_progress\n")],
)
def test_keepalives_have_the_form_that_each_dialects_clients_count(path: str, sign: str) -> None:
    call = (CallArguments(0, "[1]"), CallEnd(0, True), DONE)
    at_once, later = (
        timed(PrefillProgress(1, 2, 0, None), CallStart(0, "c", "f"), wait_s, *call, path=path).text for wait_s in (0.0, 30.0)
    )
    assert later.count(sign) == at_once.count(sign) + 3


WHOLE = {
    "/v1/chat/completions": {"max_tokens": 16, "max_completion_tokens": 16, "n": 2, "top_logprobs": 3, "top_k": 5, "seed": 1 << 63},
    "/v1/completions": {"prompt": [1, 2], "max_tokens": 16, "n": 2, "logprobs": 3, "top_k": 5, "seed": 7},
    "/v1/messages": {"max_tokens": 16, "top_k": 5, "seed": -7},
    "/v1/responses": {"max_output_tokens": 16, "top_logprobs": 3, "top_k": 5, "seed": 7},
}


@pytest.mark.parametrize("path", WHOLE)
def test_a_whole_number_may_have_a_point(path: str) -> None:
    """As some proxies write it."""
    more, numbers = {"logprobs": True} if "chat" in path else {}, WHOLE[path]
    pointed = {name: [float(each) for each in value] if isinstance(value, list) else float(value) for name, value in numbers.items()}
    body = BODIES.get(path, {}) | more
    assert first_job(path, body | pointed) == first_job(path, body | numbers)
    for name in numbers:
        response = ask(Engine(), "POST", path, json=body | numbers | {name: [1.5] if name == "prompt" else 1.5})
        assert (response.status_code, name in response.text) == (400, True)


def first_job(path: str, body: dict[str, Any]) -> Job:
    engine = Engine()
    assert ask(engine, "POST", path, json=body).status_code == 200
    return replace(engine.jobs[0], id="")


@pytest.mark.parametrize("path", BODIES)
def test_an_event_is_one_line_however_a_client_splits_text(path: str) -> None:
    text = "a\u2028b\u2029c\x85d"
    response = ask(Engine(Content(text), DONE), "POST", path, json=BODIES[path] | {"stream": True})
    lines = response.text.splitlines()
    assert all(line.startswith(("data: ", "event: ", ": ")) for line in lines if line)
    assert any(repr(text) in repr(json.loads(line[6:])) for line in lines if line.startswith("data: {"))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [True, False])
def test_nobody_waits_longer_than_ten_minutes(path: str, stream: bool) -> None:
    assert "in the queue" not in timed(QueuePosition(3), 599.0, Content("x"), DONE, path=path, stream=stream).text
    response = timed(QueuePosition(3), 603.0, Content("x"), DONE, path=path, stream=stream)
    assert "in the queue" in response.text
    assert stream or (response.status_code in (503, 529) and response.headers["retry-after"] == "60")


def test_a_running_request_may_take_long() -> None:
    assert timed(PrefillProgress(1, 2, 0, None), 3600.0, Content("x"), DONE, stream=False).status_code == 200


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_the_engine_at_once(path: str, stream: bool) -> None:
    engine = Engine(PrefillProgress(1, 2, 0, None), 30.0)
    body = json.dumps(BODIES[path] | {"stream": stream}).encode()
    coming = iter([{"type": "http.request", "body": body}])

    async def receive() -> dict[str, object]:
        if (message := next(coming, None)) is None:
            await asyncio.sleep(0.3)
        return message or {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, object]) -> None: ...

    async def gone_s() -> float:
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        await build(engine, keys={}, host="127.0.0.1")({**scope, "headers": headers}, receive, send)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=HeldClock) as runner:
        assert runner.run(gone_s()) == pytest.approx(0.3)
    assert engine.runs[0].is_cancelled


def test_progress_has_the_time_left() -> None:
    assert sse.progress(PrefillProgress(1, 2, 0, 11.6)) == [b": prefill 1/2 (0 cached), 12 s left\n"]
