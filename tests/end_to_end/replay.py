"""Replays recorded requests of agents to a real engine and bank around the fake family, which gives the recorded answers.

The family generates the recorded answers token for token, so that the next request of the conversation echoes sampled tokens. In requests,
the recorded ids of calls are replaced by those that this server assigned.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
from tests.engine.engines import Rig
from tests.fake_family import weight
from tests.serve.asking import values
from tests.talking import tokenizer

from forerun.bank.miss_reason import SHOWN_TOKENS
from forerun.engine import prompt_encoding
from forerun.engine.engine import Run
from forerun.engine.request_recorder import RequestLog
from forerun.serve.app import build
from forerun.text.prompt import Prompt
from forerun.values import Chat, Job

FOLDER = Path(__file__).parents[1] / "data" / "recordings"
CONTEXT_TOKENS = 65_536
ENOUGH_FRAC = 0.95  # of the previous prompt must be reused where the conversation only grew


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request. body: the bytes sent. answer: the recorded one, with its `status`, reasoning, text and calls."""

    file: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    answer: Mapping[str, Any]

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and arguments of the answer's calls."""
        return [(call["name"], json.loads(_arguments(call), strict=False)) for call in self.answer.get("tool_calls", ())]


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """A replayed request: its response, the number of reused tokens, and why there were no more, as `reason` and `miss`.

    chat, prompt: as parsed and rendered in the test; None where it was refused. stored: the tokens that the bank can hold of it.
    """

    recorded: Recorded
    response: httpx.Response
    reused_tokens: int
    reason: str
    miss: Mapping[str, Any] | None
    chat: Chat | None
    prompt: Prompt | None
    stored: tuple[int, ...]

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.tokens) if self.prompt else 0

    @property
    def snapshots(self) -> frozenset[int]:
        """Positions where its turn took at least snapshots: after the first message, before and after the generation prompt, at the end."""
        assert self.prompt
        first = next(i + 1 for i, token in enumerate(self.prompt.tokens) if token in tokenizer().stop_ids)
        return frozenset({first, self.prompt.message_end, len(self.prompt.tokens), len(self.stored)})


@cache
def index() -> dict[str, Any]:
    """The runs and the conversations."""
    index: dict[str, Any] = json.loads((FOLDER / "index.json").read_text())
    return index


@cache
def of_client(client: str) -> dict[str, Recorded]:
    """A client's requests by file."""
    lines = gzip.decompress((FOLDER / f"{client}.jsonl.gz").read_bytes()).decode().split("\n")[:-1]
    return {row["file"]: _recorded(row) for row in map(json.loads, lines)}


def of_run(name: str) -> list[Recorded]:
    """A run's requests in the order of their arrival."""
    run = next(each for each in index()["runs"] if each["run"] == name)
    return [of_client(file.split("/")[0])[file] for file in run["files"]]


def pairs(run: str) -> Iterator[dict[str, Any]]:
    """The requests of a run that follow each other in one conversation."""
    for conversation in index()["conversations"]:
        if conversation["run"] == run:
            yield from conversation["pairs"]


@cache
def before(file: str) -> str:
    """The file of the previous request of its conversation, "" for the first."""
    return next((pair["from"] for each in index()["conversations"] for pair in each["pairs"] if pair["to"] == file), "")


@dataclass
class Playing:
    """A request that is being replayed. chat, prompt, stored: as in ReplayedRequest."""

    recorded: Recorded
    chat: Chat | None = None
    prompt: Prompt | None = None
    stored: tuple[int, ...] = ()


_playing: ContextVar[Playing] = ContextVar("playing")  # of each task: several replay at once


class Player(Rig):
    """An engine that gives the recorded answers, to several clients at once. folder: of its bank, None for one without a disk."""

    def __init__(self, folder: Path | None = None, log: RequestLog | None = None) -> None:
        super().__init__(folder, context_tokens=CONTEXT_TOKENS, forgets=folder is not None, log=log)
        self._call_ids: dict[str, list[str]] = {}  # of the answer to a request, by its file
        self._ids: dict[str, str] = {}
        self._following: dict[tuple[int, int, int], int] = {}  # what is sampled where, by what a script knows
        self.family.script = lambda *where: self._following.get(where, min(tokenizer().stop_ids))
        self.gate.open()
        self._submit = self.engine.submit
        self.engine.submit = self._submit_scripted  # type: ignore[method-assign]

    def restarted(self, folder: Path, log: RequestLog | None = None) -> Player:
        """A new player on the same folder for the same clients; this one must be closed."""
        player = Player(folder, log)
        player._call_ids, player._ids = self._call_ids, self._ids
        return player

    async def play(self, recorded: Recorded) -> ReplayedRequest:
        """The response to a request, through the whole application."""
        playing = Playing(recorded)
        _playing.set(playing)
        transport = httpx.ASGITransport(build(self.engine, keys={}, host="127.0.0.1"))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            response = await client.request(recorded.method, recorded.path, headers=recorded.headers, content=self._with_ids(recorded))
        self._call_ids[recorded.file] = list(dict.fromkeys(re.findall(r"\bcall_[0-9a-f]{24}\b", response.text)))
        report = _report(response)
        reused, computed = report.get("reused_tokens", 0), report.get("computed_tokens", 0)
        assert reused + computed == (len(playing.prompt.tokens) if playing.prompt else 0)
        return ReplayedRequest(
            recorded, response, reused, report.get("reason", ""), report.get("miss"), playing.chat, playing.prompt, playing.stored
        )

    def _with_ids(self, recorded: Recorded) -> bytes:
        """The request's body with the call ids that this server assigned."""
        sent = dict.fromkeys(re.findall(rb'"(?:id|call_id)":"((?:call|toolu)_\w+)"', recorded.body))
        new = (id.decode() for id in sent if id.decode() not in self._ids)
        self._ids |= zip(new, self._call_ids.get(before(recorded.file), ()), strict=False)
        body = recorded.body
        for recorded_id, id in self._ids.items():
            body = body.replace(f'"{recorded_id}"'.encode(), f'"{id}"'.encode())
        return body

    async def _submit_scripted(self, job: Job) -> Run:
        playing = _playing.get()
        assert isinstance(job.prompt, Chat)
        playing.chat = job.prompt
        playing.prompt = prompt = prompt_encoding.encode(self.engine.prompter, self.engine.worker.model().bank, job, CONTEXT_TOKENS)
        answer = tokenizer().encode(_answer_text(playing.recorded, thinks=prompt.opens_reasoning), tenant="script")
        playing.stored = (*prompt.tokens, *answer)
        self._following |= following(prompt.tokens, answer)
        return await self._submit(job)


def following(prompt: Sequence[int], answer: Sequence[int]) -> dict[tuple[int, int, int], int]:
    """The tokens of an answer by position, the token before, and the sum of all weights before: see `Script`."""
    tokens = [*prompt, *answer]
    sums = [0, *accumulate(weight(token) for token in tokens)]
    return {(at, tokens[at - 1], sums[at]): tokens[at] for at in range(len(prompt), len(tokens))}


def is_enough(before: ReplayedRequest, after: ReplayedRequest) -> bool:
    """Whether enough of a conversation that only grew was reused."""
    return after.reused_tokens >= ENOUGH_FRAC * before.prompt_tokens


def check_changed(after: ReplayedRequest, earlier: Iterable[ReplayedRequest]) -> None:
    """Check a prompt that did not only grow: everything up to the last snapshot before it diverges from all stored conversations is reused,
    and the response names the divergence: its token, its message, and both texts.
    """
    assert after.prompt
    shared = [(_num_common(after.prompt.tokens, each.stored), each) for each in earlier if each.prompt]
    assert after.reused_tokens >= max((snapshot for num, each in shared for snapshot in each.snapshots if snapshot <= num), default=0)
    at = max(num for num, _ in shared)
    nearest = [each for num, each in shared if num == at]
    miss = after.miss
    assert miss
    assert (miss["kind"], miss["at_token"]) == ("differs", at)
    assert miss["prompt_text"] == _text(after.prompt.tokens, at)
    assert miss["stored_text"] in {_text(each.stored, at) for each in nearest}
    assert miss["where"] in {_changed_part(after.chat, each.chat) for each in nearest}


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _text(tokens: Sequence[int], at: int) -> str:
    return tokenizer().decode(tokens[at : at + SHOWN_TOKENS])


def _changed_part(sent: Chat | None, stored: Chat | None) -> str:
    """Where the first conversation diverges from the second, by its messages."""
    assert sent
    assert stored
    if sent.tools != stored.tools and sent.messages[:1] == stored.messages[:1]:
        return "tools"
    number = next((i for i, (a, b) in enumerate(zip(sent.messages, stored.messages, strict=False)) if a != b), len(stored.messages))
    role = sent.messages[number]["role"]
    return "system" if (number, role) == (0, "system") else f"message {number} ({role})"


def _recorded(row: dict[str, Any]) -> Recorded:
    body = b"" if row["body"] is None else json.dumps(row["body"], ensure_ascii=False, separators=(",", ":")).encode()
    headers = tuple((name, value) for name, value in row["headers"])
    return Recorded(row["file"], row["method"], row["path"], headers, body, row["answer"])


def _answer_text(recorded: Recorded, *, thinks: bool) -> str:
    """The answer in the format of the bundled model's template."""
    calls = recorded.answer.get("tool_calls", ())
    blocks = [f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {_arguments(call)}}}\n</tool_call>' for call in calls]
    text = "\n".join(filter(None, [recorded.answer.get("text", ""), *blocks])) or "I see."
    return f"{recorded.answer.get('reasoning', '')}\n</think>\n\n{text}" if thinks else text


def _arguments(call: Mapping[str, Any]) -> str:
    """A call's arguments as recorded; of a custom tool, its input as the one parameter."""
    if "arguments_text" in call:
        return str(call["arguments_text"])
    return json.dumps(call["arguments"] if "arguments" in call else {"input": call["input"]}, ensure_ascii=False)


def _report(response: httpx.Response) -> dict[str, Any]:
    """The `forerun` object of a response in any dialect; {} for an error."""
    if not response.content:
        return {}
    is_stream = "event-stream" in response.headers["content-type"]
    parts = [each.get("response", each) for each in values(response.text)] if is_stream else [response.json()]
    reports = [each["forerun"] for each in parts if "source" in each.get("forerun", {})]
    return reports[-1] if reports else {}
