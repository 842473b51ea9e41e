"""A client of the soak test: conversations of random length, continued, forked and left; every answer compared with its bypass answer.

Prompts are token ids of the package's own sources, so that an answer depends on nothing but its prompt and its sampling.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from forerun.demo.conversation import package_sources
from forerun.models.load import DEMO_MODEL
from forerun.text.tokenizer import Tokenizer
from soaking.lives import KEYS, Home, Life

LIMIT_S = 180.0
BEGINNINGS = (300, 700, 1500, 2600)  # tokens that many conversations share
MAX_TOKENS = 6000  # of a conversation
LEAVING = 0.2  # share of the requests whose client disconnects
REMOVING = 0.05  # share of the requests after which their conversation is removed
MOST_WRONG = 20  # that the result quotes


class ServerFaultError(Exception):
    """A server answered otherwise than it may."""


class CutError(Exception):
    """The server ended."""


@dataclass(frozen=True)
class Answer:
    text: str
    num_tokens: int
    finish: str
    report: dict[str, Any]

    @property
    def seen(self) -> tuple[str, int, str]:
        """What must not depend on what was stored or ran."""
        return self.text, self.num_tokens, self.finish


@dataclass
class Talk:
    """A conversation. session: "" for none."""

    tokens: list[int]
    tenant: str
    session: str


@dataclass
class Tally:
    """Of all clients. counts: by kind of event."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *names: str) -> None:
        with self.lock:
            self.counts.update(names)

    def fault(self, error: str) -> None:
        with self.lock:
            self.errors.append(error)

    def compare(self, request: dict[str, Any], used: Answer, bypassed: Answer) -> None:
        self.add("compared", used.report["source"], *["forked"] * bool(used.report["forked_from"]))
        if used.seen != bypassed.seen:
            with self.lock:
                self.counts["wrong"] += 1
                self.wrong += [{"request": request, "used": vars(used), "bypassed": vars(bypassed)}] * (len(self.wrong) < MOST_WRONG)


class Client(threading.Thread):
    """talks: shared by all clients, so that several continue the same conversation at once. pause_s: mean of the pauses."""

    def __init__(self, number: int, home: Home, talks: list[Talk], tally: Tally, stop: threading.Event, pause_s: float) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._rng, self._home, self._talks, self._tally = random.Random(number), home, talks, tally
        self._stop_event, self._pause_s, self._number = stop, pause_s, number
        self._text = source_tokens()
        self._tokenizer = Tokenizer.load(DEMO_MODEL)

    def run(self) -> None:
        while not self._stop_event.is_set():
            life = self._home.life
            if life is not None:
                self._turn(life)
            self._stop_event.wait(self._rng.expovariate(1 / self._pause_s) if life and self._pause_s else 0.1)

    def _turn(self, life: Life) -> None:
        """One request and its bypass answer. What a server that ends does to them is no fault."""
        try:
            self._ask_twice(life, self._talk())
        except (httpx.TransportError, CutError, ServerFaultError) as error:
            if life.is_ending:
                self._tally.add("cut")
            else:
                self._tally.fault(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - of the client itself: the run must not count as good
            self._tally.fault(f"client: {type(error).__name__}: {error}")

    def _ask_twice(self, life: Life, talk: Talk) -> None:
        rng = self._rng
        request = {"prompt": talk.tokens, "max_tokens": rng.choice((1, 8, 30, 60)), "stream": True, **self._sampling()}
        leave_after = rng.randrange(12) if rng.random() < LEAVING else None
        used = ask(life, talk, request, "use", leave_after)
        if used is None:
            self._tally.add("left" if leave_after is not None else "refused")
            return
        talk.tokens = [*talk.tokens, *self._tokenizer.encode(used.text, tenant="")]
        while (bypassed := ask(life, talk, request, "bypass", None)) is None:
            self._tally.add("refused")
            self._stop_event.wait(1.0)
            if self._stop_event.is_set():
                return
        self._tally.compare(request | {"tenant": talk.tenant, "session": talk.session}, used, bypassed)
        if rng.random() < REMOVING:
            remove(life, talk.tenant, used.report["session"])
            self._tally.add("removed")

    def _sampling(self) -> dict[str, Any]:
        if self._rng.random() < 0.5:
            return {"temperature": 0}
        return {"temperature": 0.8, "top_p": 0.95, "seed": self._rng.randrange(1 << 32)}

    def _talk(self) -> Talk:
        """A new conversation, one of all clients', or a fork of it."""
        rng, talks = self._rng, self._talks
        talk = rng.choice(talks) if talks and rng.random() < 0.7 else None
        if talk is None or len(talk.tokens) > MAX_TOKENS:
            talk = self._new()
        elif rng.random() < 0.2:
            talk = Talk(talk.tokens[: rng.randrange(1, len(talk.tokens))], talk.tenant, "")
        return (
            Talk([*talk.tokens, *self._some(rng.choice((5, 60, 400)))], talk.tenant, talk.session)
            if rng.random() < 0.3
            else self._grown(talk)
        )

    def _grown(self, talk: Talk) -> Talk:
        talk.tokens = [*talk.tokens, *self._some(self._rng.choice((5, 60, 400)))]
        return talk

    def _new(self) -> Talk:
        rng, length = self._rng, self._rng.choice(BEGINNINGS)
        session = f"soak-{self._number}-{rng.randrange(1 << 30)}" if rng.random() < 0.4 else ""
        talk = Talk(list(self._text[:length]), rng.choice(list(KEYS)), session)
        if len(self._talks) < 24:
            self._talks.append(talk)
        else:
            self._talks[rng.randrange(len(self._talks))] = talk
        return talk

    def _some(self, num: int) -> Sequence[int]:
        start = self._rng.randrange(len(self._text) - num)
        return self._text[start : start + num]


def source_tokens() -> list[int]:
    """The package's own sources as tokens."""
    tokenizer = Tokenizer.load(DEMO_MODEL)
    return [int(token) for text in list(package_sources().values())[:40] for token in tokenizer.encode(text, tenant="")]


def ask(life: Life, talk: Talk, request: dict[str, Any], bank: str, leave_after: int | None) -> Answer | None:
    """The answer. None: the client left after so many pieces, or the server was full and named a time.

    Raises CutError, ServerFaultError.
    """
    headers = {"Authorization": f"Bearer {KEYS[talk.tenant]}"}
    fields = {"bank": bank} | ({"session": talk.session} if talk.session and bank == "use" else {})
    body = request | {"forerun": fields, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{life.server.url}/v1/completions", json=body, headers=headers, timeout=LIMIT_S) as response:
        if response.status_code == 503 and "retry-after" in response.headers:
            return None
        if response.status_code != 200:
            raise ServerFaultError(f"{response.status_code}: {response.read().decode()[:300]}")
        return received(response, leave_after)


def remove(life: Life, tenant: str, session: str) -> None:
    """Remove a conversation, which another client may be continuing, or have removed. Raises ServerFaultError."""
    headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
    answer = httpx.delete(f"{life.server.url}/v1/forerun/sessions/{session}", headers=headers, timeout=LIMIT_S)
    if answer.status_code not in (200, 204, 404):
        raise ServerFaultError(f"{answer.status_code}: {answer.text[:300]}")


def received(response: httpx.Response, leave_after: int | None) -> Answer | None:
    pieces, usage, finish, report = list[str](), dict[str, Any](), "", dict[str, Any]()
    for line in response.iter_lines():
        event = json.loads(line[6:]) if line.startswith("data: {") else {}
        if "error" in event:
            raise ServerFaultError(str(event["error"])[:300])
        usage, report = event.get("usage") or usage, event.get("forerun") or report
        for choice in event.get("choices", ()):
            pieces.append(choice.get("text") or "")
            finish = choice.get("finish_reason") or finish
        if leave_after is not None and len(pieces) >= leave_after:
            return None
    if not usage or not finish:
        raise CutError("a stream without its end")
    return Answer("".join(pieces), usage["completion_tokens"], finish, report)
