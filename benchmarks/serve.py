"""What does the server cost besides the model: per token of a stream, and for the first token after a long cached prompt?

A client in a separate process sends requests over a socket. Stream: the engine has all tokens at once, so that the time of the stream is
the server's, from the engine's thread to the socket. First token: a scripted model (tests/fake_family.py) has the prompt cached; the same
prompt also goes directly to the engine, alternating, and the difference is the server's.

PYTHONPATH=. python benchmarks/serve.py [--repeats N] [--prompt-tokens N] [--answer-tokens N] [--dry-run] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evidence import evidence, interleaved, write
from forerun import config

config.prepare(config.load({}))

CLIENT = """
import http.client, json, sys, time
port, body = int(sys.argv[1]), sys.stdin.buffer.read()
connection = http.client.HTTPConnection("127.0.0.1", port)
start_s = time.perf_counter()
connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
first_s, deltas = 0.0, 0
for line in connection.getresponse():
    if line.startswith(b"data: {") and b'"content":"' in line and b'"content":""' not in line:
        first_s, deltas = first_s or time.perf_counter(), deltas + 1
print(json.dumps({"first_s": first_s - start_s, "all_s": time.perf_counter() - start_s, "deltas": deltas}))
"""
ClientTimes = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--prompt-tokens", type=int, default=50_000)
    parser.add_argument("--answer-tokens", type=int, default=400)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would stream {options.answer_tokens} tokens after {options.prompt_tokens}, {options.repeats} times each way")
        return
    result = measure(options)
    print(json.dumps({name: value for name, value in result.items() if name not in ("samples", "config")}, indent=1))
    settings = {name: getattr(options, name) for name in ("repeats", "prompt_tokens", "answer_tokens")}
    write(options.out, evidence(kernels="none: scripted", model_digest="none: scripted", numerics="exact", config=settings) | result)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Results of both measurements, with their samples."""
    with TemporaryDirectory() as folder, serving(Path(folder) / "bank") as site:
        short, long = [{"role": "user", "content": "Hello!"}], conversation(site, options.prompt_tokens)
        site.over_http(short, 1)
        site.engine.burst_tokens = options.answer_tokens
        streams = [site.over_http(short, options.answer_tokens)["all_s"] for _ in range(options.repeats + 1)][1:]
        site.engine.burst_tokens = 0
        site.over_http(long, 1)  # its one prefill
        site.wait_until_written()
        arms = {"server": lambda: site.over_http(long, 1)["first_s"], "engine": lambda: site.direct(long)}
        firsts = interleaved(arms, options.repeats)
        tokens = site.prompt(long)
    return {
        "server_ms_per_token": 1000 * statistics.median(streams) / options.answer_tokens,
        "server_ms_to_first_token": 1000 * statistics.median(a - b for a, b in zip(firsts["server"], firsts["engine"], strict=True)),
        "prompt_tokens": len(tokens),
        "engine_ms_to_first_token": 1000 * statistics.median(firsts["engine"]),
        "samples": {"stream_s": streams, "first_s": firsts},
    }


class Engine:
    """The engine of a rig; while `burst_tokens` is not 0, it posts so many tokens at once, from another thread."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.burst_tokens = engine, 0
        self._prompt: Any = None
        self._last: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def submit(self, job: Any) -> Any:
        """The run of the rig's engine, or a burst that ends as the last run did."""
        from forerun.engine.request import Request
        from forerun.values import Content, Done

        if not self.burst_tokens:
            run = await self._engine.submit(job)
            self._prompt, post = run.prompt, run.post
            run.post = lambda event: (setattr(self, "_last", event if isinstance(event, Done) else self._last), post(event))
            return run
        run = Request(job, self._prompt, self.burst_tokens, time.monotonic())
        events = [*[Content(" word")] * self.burst_tokens, self._last]
        threading.Thread(target=lambda: [run.post(event) for event in events]).start()
        return run


class Site:
    """A server in a thread of this process, and the engine behind it."""

    def __init__(self, rig: Any, engine: Engine, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self._rig, self.engine, self._loop, self._port = rig, engine, loop, port

    def over_http(self, messages: list[dict[str, str]], num: int) -> ClientTimes:
        """The times of a client in a separate process for `num` tokens."""
        body = {"messages": messages, "max_tokens": num, "temperature": 0, "stream": True, "enable_thinking": False}
        command = [sys.executable, "-S", "-c", CLIENT, str(self._port)]
        ran = subprocess.run(command, input=json.dumps(body).encode(), capture_output=True, check=True)
        stats: ClientTimes = json.loads(ran.stdout)
        assert stats["deltas"] > num * 0.9, stats
        return stats

    def direct(self, messages: list[dict[str, str]]) -> float:
        """Seconds to the first token, directly from the engine, for an encoded prompt."""
        return asyncio.run_coroutine_threadsafe(self._direct(self.prompt(messages)), self._loop).result()

    async def _direct(self, tokens: tuple[int, ...]) -> float:
        from forerun.values import Content

        start_s = time.perf_counter()
        events = [(type(event), time.perf_counter()) async for event in await self._rig.ask(tokens, max_tokens=1)]
        return next(at_s for kind, at_s in events if kind is Content) - start_s

    def wait_until_written(self) -> None:
        """Wait until all is written to disk."""
        while self._rig.engine.health().bank.pending_writes:
            time.sleep(0.05)

    def prompt(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """The tokens of these messages."""
        from forerun.values import Chat

        tokens: tuple[int, ...] = self._rig.engine.prompter.encode(Chat(tuple(messages), (), {"enable_thinking": False}), tenant="").tokens
        return tokens


@contextmanager
def serving(bank: Path) -> Iterator[Site]:
    """A server of the scripted model."""
    import uvicorn
    from tests.engine.engines import running
    from tests.talking import tokenizer

    from forerun.cli.serve import listen
    from forerun.serve.app import build

    ready: list[Site] = []
    listener, server = listen("127.0.0.1", 0), uvicorn.Server(uvicorn.Config("", log_level="warning", access_log=False))

    async def serve() -> None:
        async with running(bank, ram_limit_bytes=1 << 31) as rig:
            words = [id for id in range(300, 6000) if (text := tokenizer().token_bytes(id)).isascii() and text.isalpha()]
            rig.family.script = lambda position, token, total: words[position % 50]
            rig.engine.info = replace(rig.engine.info, context_tokens=rig.family.context_tokens)
            engine = Engine(rig.engine)
            server.config.app = build(engine, keys={}, host="127.0.0.1")
            ready.append(Site(rig, engine, asyncio.get_running_loop(), listener.getsockname()[1]))
            await server.serve([listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    while not ready and thread.is_alive():
        time.sleep(0.01)
    try:
        yield ready[0]
    finally:
        server.should_exit = True
        thread.join()


def conversation(site: Site, num_tokens: int) -> list[dict[str, str]]:
    """An agent's conversation of about that many tokens: files that were read, in turns."""
    from forerun.demo.conversation import package_sources

    messages: list[dict[str, str]] = []
    texts = [text[i : i + 3000] for text in package_sources().values() for i in range(0, len(text), 3000)]
    for index, text in enumerate(texts * 20):
        messages += [{"role": "user", "content": f"File {index}:\n{text}"}, {"role": "assistant", "content": "I have read it."}]
        if len(site.prompt(messages)) >= num_tokens:
            break
    return [*messages, {"role": "user", "content": "Go on."}]


if __name__ == "__main__":
    main()
