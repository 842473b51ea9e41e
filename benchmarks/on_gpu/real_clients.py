"""A server with real clients: the vendors' libraries, and several agents at once until it is killed. Knows no MLX."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai

from forerun.demo.conversation import package_sources
from forerun.demo.server import Server, request_log, serve_command
from forerun.serve.client import health
from on_gpu.commands import forerun, logged
from on_gpu.report import Report
from on_gpu.restarts import ask, mlx_bytes

CLIENT: dict[str, Any] = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True}
SAID: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOL: Any = {"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": SCHEMA}}
NUM = 48
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 7}


def started(model: Path, folder: Path) -> Server:
    """A server on the bank in `folder`."""
    return Server.start(serve_command(model, folder / "bank"), folder / "server.log")


@contextmanager
def serving(model: Path, folder: Path) -> Iterator[Server]:
    """A server that is stopped at the end, in any case."""
    server = started(model, folder)
    try:
        yield server
        server.stop()
    finally:
        server.kill()


def clients(report: Report, model: Path, folder: Path) -> None:
    """All parts of section `clients`: each kind of request of the vendors' libraries, and deliberate faults."""
    with serving(model, folder) as server:
        gpt, claude = openai.OpenAI(base_url=f"{server.url}/v1", **CLIENT), anthropic.Anthropic(base_url=server.url, **CLIENT)
        for name, variant in (OPENAI | ANTHROPIC | OTHER).items():
            report.part("clients", name, lambda variant=variant: variant(gpt, claude, server.url))
    report.part("clients", "log", lambda: logged(request_log(folder / "bank")))


def _chat(gpt: openai.OpenAI, _claude: anthropic.Anthropic, _url: str) -> str:
    found = gpt.chat.completions.create(model="any", messages=SAID, max_tokens=NUM, tools=[TOOL])
    assert found.usage
    return f"{found.choices[0].finish_reason}, {found.usage.completion_tokens} tokens"


def _chat_stream(gpt: openai.OpenAI, _claude: anthropic.Anthropic, _url: str) -> str:
    with gpt.chat.completions.stream(model="any", messages=SAID, max_tokens=NUM) as stream:
        kinds = {event.type for event in stream}
        return f"{stream.get_final_completion().choices[0].finish_reason}, {len(kinds)} kinds of events"


def _responses(gpt: openai.OpenAI, _claude: anthropic.Anthropic, _url: str) -> str:
    with gpt.responses.stream(model="any", input=SAID[0]["content"], max_output_tokens=NUM) as stream:
        kinds = {event.type for event in stream}
    return f"{gpt.responses.create(model='any', input='Hello', max_output_tokens=NUM).status}, {len(kinds)} kinds of events"


def _completions(gpt: openai.OpenAI, _claude: anthropic.Anthropic, _url: str) -> str:
    found = gpt.completions.create(model="any", prompt="def add(a, b):", max_tokens=NUM, logprobs=2)
    assert found.choices[0].logprobs
    return f"{found.choices[0].finish_reason}, {len(found.choices[0].logprobs.tokens or [])} log-probabilities"


def _messages(_gpt: openai.OpenAI, claude: anthropic.Anthropic, _url: str) -> str:
    with claude.messages.stream(model="any", messages=SAID, max_tokens=NUM) as stream:
        put = stream.get_final_message()
    whole = claude.messages.create(model="any", messages=SAID, max_tokens=NUM)
    counted = claude.messages.count_tokens(model="any", messages=SAID).input_tokens
    assert counted == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    return f"{put.stop_reason}, {counted} tokens counted"


def _same_seed(_gpt: openai.OpenAI, _claude: anthropic.Anthropic, url: str) -> bool:
    """A seeded answer, past the bank, is the same twice."""
    body = {"messages": SAID, "max_tokens": 4 * NUM, "forerun": {"bank": "bypass"}} | SAMPLED
    return bool(ask(url, body)["text"] == ask(url, body)["text"])


def _too_long(gpt: openai.OpenAI, _claude: anthropic.Anthropic, url: str) -> str:
    try:
        gpt.chat.completions.create(model="any", messages=[{"role": "user", "content": "word " * 400_000}])
    except openai.BadRequestError as error:
        return f"{error.status_code}: {error.message[:120]}; after it {health(url)['status']}"
    raise AssertionError("an answer to more than the context")


def _left(_gpt: openai.OpenAI, _claude: anthropic.Anthropic, url: str) -> float:
    """Seconds until a request whose client goes away is no longer run."""
    body = {"messages": SAID, "max_tokens": 4000, "stream": True, "temperature": 0}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        next(line for line in response.iter_lines() if '"content"' in line)
    left_s = time.perf_counter()
    while health(url)["running"]:
        time.sleep(0.01)
    return round(time.perf_counter() - left_s, 3)


Variant = Callable[[openai.OpenAI, anthropic.Anthropic, str], Any]
OPENAI: dict[str, Variant] = {"chat": _chat, "chat_stream": _chat_stream, "responses": _responses, "completions": _completions}
ANTHROPIC: dict[str, Variant] = {"messages": _messages}
OTHER: dict[str, Variant] = {"same_with_a_seed": _same_seed, "too_long": _too_long, "left": _left}


class Agents:
    """Several conversations, each of which grows by its own files; their answers are sampled."""

    def __init__(self, num: int, first_chars: int, later_chars: int) -> None:
        text = "".join(package_sources().values())
        self._text, self._first, self._later = text, first_chars, later_chars
        self.talks: list[list[dict[str, Any]]] = [[self._user(i, 0, first_chars)] for i in range(num)]
        self.sources: list[str] = []
        self.errors: list[str] = []
        self._stop = threading.Event()

    def _user(self, agent: int, at: int, chars: int) -> dict[str, Any]:
        start = (agent * 97_001 + at) % (len(self._text) - chars)
        return {"role": "user", "content": f"Agent {agent}. Read on:\n{self._text[start : start + chars]}"}

    def turn(self, url: str, agent: int) -> str:
        """One more turn of an agent's; returns where its state came from."""
        talk = self.talks[agent]
        found = ask(url, {"messages": talk, "max_tokens": NUM, "temperature": 0.8, "enable_thinking": False})
        talk += [{"role": "assistant", "content": found["text"]}, self._user(agent, self._first + len(talk) * self._later, self._later)]
        return str(found["report"]["source"])

    def run(self, url: str, seconds: float, then: Callable[[], None]) -> None:
        """All at once for so long; then, while requests are under way, `then`."""
        with ThreadPoolExecutor(len(self.talks)) as pool:
            going = [pool.submit(self._continue, url, agent) for agent in range(len(self.talks))]
            time.sleep(seconds)
            self._stop.set()
            then()
            for each in going:
                each.result()

    def _continue(self, url: str, agent: int) -> None:
        while True:
            try:
                self.sources.append(self.turn(url, agent))
            except (httpx.TransportError, RuntimeError) as error:
                if not self._stop.is_set():
                    self.errors.append(f"{type(error).__name__}: {error}")
                return


def agents_at_work(model: Path, folder: Path, *, agents: int, first_chars: int, later_chars: int, seconds: float) -> dict[str, Any]:
    """Agents at work until the server is killed; what the bank holds then, and how each of them continues."""
    at_work = Agents(agents, first_chars, later_chars)
    memory = killed_at_work(at_work, started(model, folder), seconds)
    sources, errors = list(at_work.sources), at_work.errors
    verified = forerun("bank", "verify", "--bank-dir", str(folder / "bank")).strip()
    with serving(model, folder) as server:
        after = [at_work.turn(server.url, agent) for agent in range(agents)]
    found = {"requests": len(sources), "by_source": Counter(sources), "errors": errors, "after_the_kill": after, "verified": verified}
    return found | {"memory": memory, "turns": [len(talk) // 2 for talk in at_work.talks], "log": logged(request_log(folder / "bank"))}


def killed_at_work(agents: Agents, server: Server, seconds: float) -> dict[str, Any]:
    """The sizes that the server reported just before it was killed."""
    held: dict[str, Any] = {}

    def kill() -> None:
        held.update(mlx_bytes(server.url), health=health(server.url))
        server.kill()

    try:
        agents.run(server.url, seconds, kill)
    finally:
        server.kill()
    return held
