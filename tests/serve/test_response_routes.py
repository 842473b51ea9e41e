"""Stored responses over HTTP: a real engine whose passes the test can hold, two owners, a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from tests.engine.engines import Rig
from tests.serve.asking import ask, serving, values
from tests.serve.engine_double import DONE, HELLO, Engine
from tests.waiting import LIMIT_S, wait_for

from forerun.errors import BankFullError
from forerun.serve import background
from forerun.values import Chat, Content

KEYS = {"ann": "key-a", "bob": "key-b"}
ROOT = "/v1/responses"
ENDS = ("completed", "incomplete")


class Server:
    """A server whose model writes as much as a request allows."""

    def __init__(self, port: int, rig: Rig) -> None:
        self.url, self.rig = f"http://127.0.0.1:{port}", rig

    def ask(self, method: str, path: str, owner: str = "ann", **options: Any) -> httpx.Response:
        return httpx.request(method, f"{self.url}{path}", headers={"x-api-key": KEYS[owner]}, timeout=LIMIT_S, **options)

    def create(self, text: Any, owner: str = "ann", **body: Any) -> dict[str, Any]:
        sent = {"input": text, "max_output_tokens": 4, "temperature": 0} | body
        response = self.ask("POST", ROOT, owner, json=sent)
        assert response.status_code == 200, response.text
        created: dict[str, Any] = response.json()
        return created

    def get(self, id: str, owner: str = "ann", path: str = "", **query: Any) -> dict[str, Any]:
        response = self.ask("GET", f"{ROOT}/{id}{path}", owner, params=query)
        return response.json() | ({"code": response.status_code} if response.status_code != 200 else {})

    def ended(self, id: str) -> dict[str, Any]:
        wait_for(lambda: self.get(id)["status"] not in background.UNFINISHED)
        return self.get(id)

    @property
    def gpt(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEYS["ann"], max_retries=0)


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    rig = Rig(None, forgets=True)
    with serving(rig.engine, keys=KEYS) as port:
        yield Server(port, rig)
        rig.gate.open()
    rig.engine.worker.close(LIMIT_S)


@pytest.fixture
def server(shared: Server) -> Server:
    shared.rig.gate.open()
    return shared


def test_a_response_is_found_as_it_was_answered(server: Server) -> None:
    created = server.create("hello", instructions="Be brief.")
    assert created["store"] is True
    assert server.get(created["id"]) == created


def test_a_stream_is_stored_before_its_last_event(server: Server) -> None:
    sent = {"input": "hello", "max_output_tokens": 4, "stream": True}
    last = values(server.ask("POST", ROOT, json=sent).text)[-1]
    assert server.get(last["response"]["id"]) == last["response"]


@pytest.mark.parametrize("body", [{"store": False}, {"forerun": {"bank": "bypass"}}])
def test_what_is_not_to_be_stored_is_not(server: Server, body: dict[str, Any]) -> None:
    created = server.create("hello", **body)
    assert created["store"] is False
    assert server.get(created["id"])["code"] == 404


def test_a_continued_response_has_the_prompt_of_the_whole_conversation(server: Server) -> None:
    first = server.create("What is a prefix?", instructions="Be brief.")
    second = server.create("And a suffix?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert second["instructions"] is None
    items = [{"role": "user", "content": "What is a prefix?"}, *first["output"], {"role": "user", "content": "And a suffix?"}]
    whole = server.create(items, forerun={"bank": "bypass"})
    assert whole["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    third = server.create("Why?", previous_response_id=second["id"])
    items += [*second["output"], {"role": "user", "content": "Why?"}]
    assert server.create(items, forerun={"bank": "bypass"})["usage"]["input_tokens"] == third["usage"]["input_tokens"]


def test_the_prefix_of_a_continued_response_is_reused(server: Server) -> None:
    first = server.create("Which tokens are reused, and which are computed again?")
    second = server.create("Those that the bank holds?", previous_response_id=first["id"])
    known = first["usage"]["total_tokens"]
    assert second["forerun"]["session"] == first["forerun"]["session"]
    assert second["forerun"]["reused_tokens"] >= known - 8, "all but the end of the answer"
    assert second["usage"]["input_tokens_details"]["cached_tokens"] == second["forerun"]["reused_tokens"]


def test_a_response_goes_with_its_conversation(server: Server) -> None:
    first, other = (server.create("hello", forerun={"session": name}) for name in ("gone", "stays"))
    assert server.ask("DELETE", "/v1/forerun/sessions/gone").status_code == 200
    assert server.get(first["id"])["code"] == 404
    assert server.get(other["id"]) == other


def test_two_continue_one_response_at_once(server: Server) -> None:
    first = server.create("Where do we go?")
    with ThreadPoolExecutor() as pool:
        left, right = pool.map(lambda text: server.create(text, previous_response_id=first["id"]), ["Left.", "Right, I think."])
    for made, text in ((left, "Left."), (right, "Right, I think.")):
        texts = [item["content"][0]["text"] for item in server.get(made["id"], path="/input_items", order="asc")["data"]]
        assert (texts[0], texts[-1], len(texts)) == ("Where do we go?", text, 3)
    assert server.create("And back?", previous_response_id=left["id"])["previous_response_id"] == left["id"]


def test_a_deleted_response_is_named_by_what_continues_it(server: Server) -> None:
    first = server.create("one")
    second = server.create("two", previous_response_id=first["id"])
    assert server.ask("DELETE", f"{ROOT}/{first['id']}").json() == {"id": first["id"], "object": "response", "deleted": True}
    refused = server.ask("POST", ROOT, json={"input": "three", "previous_response_id": second["id"]})
    assert refused.status_code == 404
    assert {name: refused.json()["error"][name] for name in ("code", "param", "message")} == {
        "code": "previous_response_not_found",
        "param": "previous_response_id",
        "message": f"Response with id '{first['id']}' not found.",
    }
    assert server.get(second["id"]) == second
    assert server.ask("DELETE", f"{ROOT}/{first['id']}").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", "/{}", None), ("GET", "/{}/input_items", None), ("DELETE", "/{}", None), ("POST", "/{}/cancel", {}), ("POST", "", "{}")],
)
def test_another_owners_response_is_as_unknown_as_none(server: Server, method: str, path: str, body: Any) -> None:
    mine = server.create("a text of Ann's", background=True)["id"]
    server.ended(mine)

    def answer_to(id: str) -> httpx.Response:
        sent = {"input": "and then?", "previous_response_id": id} if body == "{}" else body
        return server.ask(method, f"{ROOT}{path.format(id)}", "bob", json=sent)

    theirs, none = answer_to(mine), answer_to("resp_nowhere")
    assert theirs.status_code == none.status_code == 404
    assert theirs.text.replace(mine, "resp_nowhere") == none.text
    assert server.get(mine)["id"] == mine


def test_input_items_come_in_pages(server: Server) -> None:
    first = server.create([{"role": "user", "content": "a"}, {"id": "own", "role": "developer", "content": "b"}])
    second = server.create("c", previous_response_id=first["id"])
    whole = server.get(second["id"], path="/input_items", order="asc")
    ids = [item["id"] for item in whole["data"]]
    number, later = (each["id"].removeprefix("resp_") for each in (first, second))
    assert ids == [f"msg_{number}_in0", "own", *(item["id"] for item in first["output"]), f"msg_{later}_in0"]
    assert whole["data"][0]["content"] == [{"type": "input_text", "text": "a"}]
    assert (whole["first_id"], whole["last_id"], whole["has_more"]) == (ids[0], ids[-1], False)
    page = server.get(second["id"], path="/input_items", limit=2)
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (ids[:-3:-1], True)
    listed = [item.id for item in server.gpt.responses.input_items.list(second["id"], limit=1)]
    assert listed == ids[::-1]
    assert server.get(second["id"], path="/input_items", after="none")["error"]["param"] == "after"
    assert server.get(second["id"], path="/input_items", limit=0)["error"]["param"] == "limit"


def test_a_reference_is_the_item_itself(server: Server) -> None:
    first = server.create("What was that?")
    user = {"role": "user", "content": "Say it again."}
    referring = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    second = server.create([{"role": "user", "content": "What was that?"}, *referring, user])
    assert second["usage"]["input_tokens"] == server.create("Say it again.", previous_response_id=first["id"])["usage"]["input_tokens"]
    refused = server.ask("POST", ROOT, "bob", json={"input": [*referring, user]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0]")


# --- in the background


def test_a_background_response_is_made_without_its_client(server: Server) -> None:
    server.rig.gate.hold()
    created = server.create("slowly", background=True, max_output_tokens=5)
    assert (created["status"], created["background"], created["output"]) == ("queued", True, [])
    assert server.get(created["id"])["status"] in background.UNFINISHED
    refused = server.ask("POST", ROOT, json={"input": "and?", "previous_response_id": created["id"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
    server.rig.gate.open()
    ended = server.ended(created["id"])
    assert ended["status"] in ENDS
    assert ended["output"]
    assert server.create("and?", previous_response_id=created["id"])["usage"]["input_tokens"] > ended["usage"]["total_tokens"]


def test_a_background_response_is_cancelled(server: Server) -> None:
    server.rig.gate.hold()
    created = server.create("for ever", background=True, max_output_tokens=1000)
    wait_for(lambda: server.rig.engine.worker.counts() == (1, 0))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.gpt.responses.cancel, created["id"])
        server.rig.gate.hold(after=50)
        assert answer.result(LIMIT_S).status == "cancelled"
    server.rig.gate.open()
    wait_for(server.rig.is_idle)
    assert (server.get(created["id"])["status"], server.get(created["id"])["error"]) == ("cancelled", None)
    assert server.gpt.responses.cancel(created["id"]).status == "cancelled"


def test_only_background_responses_are_cancelled(server: Server) -> None:
    created = server.create("hello")
    assert server.ask("POST", f"{ROOT}/{created['id']}/cancel", json={}).status_code == 400
    ended = server.ended(server.create("hello", background=True)["id"])
    assert server.ask("POST", f"{ROOT}/{ended['id']}/cancel", json={}).json() == ended


def test_a_removed_background_response_ends_and_stays_away(server: Server) -> None:
    server.rig.gate.hold()
    created = server.create("for ever", background=True, max_output_tokens=1000)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.ask, "DELETE", f"{ROOT}/{created['id']}")
        server.rig.gate.hold(after=50)
        assert answer.result(LIMIT_S).status_code == 200
    wait_for(server.rig.is_idle)
    server.rig.gate.open()
    assert server.get(created["id"])["code"] == 404


def test_a_wiped_background_response_stays_away(server: Server) -> None:
    server.rig.gate.hold()
    created = server.create("for ever", "bob", background=True, max_output_tokens=20)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.ask, "DELETE", "/v1/forerun/sessions", "bob")
        server.rig.gate.open()
        assert answer.result(LIMIT_S).status_code == 200
    assert server.get(created["id"], "bob")["code"] == 404
    wait_for(server.rig.is_idle)
    assert server.get(created["id"], "bob")["code"] == 404


def test_a_background_stream_is_taken_up_where_it_broke(server: Server) -> None:
    server.rig.gate.open()
    with server.gpt.responses.create(model="any", input="slowly", background=True, stream=True, max_output_tokens=20) as stream:
        first = next(iter(stream))
        server.rig.gate.hold()
    assert (first.type, first.sequence_number) == ("response.created", 0)
    id = first.response.id
    server.rig.gate.open()
    rest = list(server.gpt.responses.retrieve(id, stream=True, starting_after=0))
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
    assert rest[-1].response.model_dump()["id"] == id
    assert json.loads(rest[-1].response.to_json()) == server.get(id)
    assert [event.sequence_number for event in server.gpt.responses.retrieve(id, stream=True)] == list(range(len(rest) + 1))


def test_a_stream_of_what_is_not_kept_is_refused(server: Server) -> None:
    created = server.create("hello")
    refused = server.ask("GET", f"{ROOT}/{created['id']}?stream=true")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


def test_compaction_is_refused_with_a_hint(server: Server) -> None:
    refused = server.ask("POST", f"{ROOT}/compact", json={"model": "any", "input": "hello"})
    assert (refused.status_code, "summary" in refused.json()["error"]["hint"]) == (400, True)


# --- with a script for an engine


def test_a_response_that_cannot_be_stored_is_answered_and_says_so() -> None:
    engine = Engine(*HELLO)
    engine.responses.failure = BankFullError("no more today", reason="daily write budget")
    whole = ask(engine, "POST", ROOT, json={"input": "hello"}).json()
    assert (whole["status"], whole["store"]) == ("completed", False)
    streamed = values(ask(engine, "POST", ROOT, json={"input": "hello", "stream": True}).text)
    assert (streamed[-1]["type"], streamed[-1]["response"]["store"]) == ("response.completed", False)
    refused = ask(engine, "POST", ROOT, json={"input": "hello", "background": True})
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "bank_full")
    assert engine.runs[-1].is_cancelled


def test_what_no_run_continues_any_more_has_failed() -> None:
    engine = Engine(Content("Hel"), 3600.0, DONE)
    id = ask(engine, "POST", ROOT, json={"input": "hello", "background": True}).json()["id"]
    found = ask(engine, "GET", f"{ROOT}/{id}").json()  # each request has an application of its own, as after a restart
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert "server was stopped" in found["error"]["message"]
    later = Engine(*HELLO)
    later.responses = engine.responses
    ask(later, "POST", ROOT, json={"input": "go on", "previous_response_id": id})
    prompt = later.jobs[-1].prompt
    assert isinstance(prompt, Chat)
    assert [message["content"] for message in prompt.messages] == ["hello", "go on"]


def test_an_error_is_the_responses() -> None:
    engine = Engine(Content("Hel"), BankFullError("a reason", reason="disk"))
    with serving(engine) as port:
        url = f"http://127.0.0.1:{port}{ROOT}"
        id = httpx.post(url, json={"input": "hello", "background": True}).json()["id"]
        wait_for(lambda: httpx.get(f"{url}/{id}").json()["status"] == "failed")
        assert httpx.get(f"{url}/{id}").json()["error"] == {"code": "server_error", "message": "a reason"}
        events = values(httpx.get(f"{url}/{id}?stream=true").text)
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "failed")


def test_ended_runs_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MOST_KEPT", 1)
    engine = Engine(*HELLO)
    with serving(engine) as port:
        url = f"http://127.0.0.1:{port}{ROOT}"
        ids = [httpx.post(url, json={"input": "hello", "background": True}).json()["id"] for _ in range(3)]
        wait_for(lambda: all(httpx.get(f"{url}/{id}").json()["status"] == "completed" for id in ids))
        wait_for(lambda: [httpx.get(f"{url}/{id}?stream=true").status_code for id in ids] == [400, 400, 200])
