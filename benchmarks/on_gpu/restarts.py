"""A conversation with a real server that is stopped and killed between its turns; each answer is compared with one without stored state.

Knows HTTP and processes, no MLX. Random weights have near-ties everywhere, so that two answers diverge sooner or later: what counts is the
gap between the two tokens where they diverge, compared with the differences before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from forerun.demo.conversation import Conversation, Scale, package_sources, record
from forerun.demo.server import Server, request_log, serve_command
from forerun.demo.turns import STEPS, Step, request
from forerun.text.tokenizer import Tokenizer
from on_gpu.commands import ROUNDED, cost, logged

TOP = 5
FACTOR = 4.0  # of docs/exactness.md
LIMIT_S = 240.0
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "seed": 1},
}

Answer = dict[str, Any]


class ChatSession(NamedTuple):
    """model: folder. options: of `forerun serve`. prompt: tokens of the first request; later: of a later turn's result of a tool."""

    model: Path
    options: tuple[str, ...]
    prompt: int
    later: int
    answer: int

    def play(self, folder: Path) -> dict[str, Any]:
        """The turns with their comparisons, speeds of longer answers at the end of the conversation, and the summary of the log."""
        talk, scale = self._recorded()
        starts, turns = list[float](), list[dict[str, Any]]()
        server = self._start(folder, starts)
        messages = talk.opening
        try:
            for step, continuation in zip(STEPS, (*talk.continuations, ()), strict=True):
                if step.before != "nothing":
                    end(server, step)
                    server = self._start(folder, starts)
                turns.append(turn(server.url, step, request(talk, scale, messages, "use")))
                messages = (*messages, {"role": "assistant", "content": turns[-1]["text"]}, *continuation)
            speeds = {
                how: cost(ask(server.url, request(talk, scale, messages, "use") | sampling)["report"])
                for how, sampling in SAMPLINGS.items()
            }
            memory = mlx_bytes(server.url)
            server.stop()
        finally:
            server.kill()
        return judged(turns) | {"speeds": speeds, "mlx_bytes": memory, "starts_s": starts, "log": logged(request_log(folder / "bank"))}

    def _start(self, folder: Path, starts: list[float]) -> Server:
        begun_s = time.perf_counter()
        server = Server.start([*serve_command(self.model, folder / "bank"), *self.options], folder / "server.log")
        starts.append(round(time.perf_counter() - begun_s, 2))
        return server

    def _recorded(self) -> tuple[Conversation, Scale]:
        tokenizer = Tokenizer.load(self.model)
        scale = Scale("long", first_prompt_tokens=self.prompt, result_tokens=self.later, answer_tokens=self.answer)
        return record(package_sources(), scale, lambda text: len(tokenizer.encode(text, tenant=""))), scale


def end(server: Server, step: Step) -> None:
    """Stop it, or kill it when all is on disk."""
    if step.before == "SIGTERM":
        server.stop()
    else:
        server.wait_until_written()
        server.kill()


def ask(url: str, body: dict[str, Any]) -> Answer:
    """text; tokens: (token, {token: log-probability}) if requested; usage; report."""
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=LIMIT_S)
    if response.status_code != httpx.codes.OK:
        raise RuntimeError(f"{response.status_code}: {response.text[:500]}")
    found = response.json()
    choice, scored = found["choices"][0], found["choices"][0].get("logprobs") or {"content": []}
    tokens = [(each["token"], {top["token"]: top["logprob"] for top in each["top_logprobs"]}) for each in scored["content"]]
    if found["forerun"]["reused_tokens"] + found["forerun"]["computed_tokens"] != found["usage"]["prompt_tokens"]:
        raise RuntimeError(f"the counts of {found['forerun']} are not those of {found['usage']}")
    return {"text": choice["message"]["content"] or "", "tokens": tokens, "usage": found["usage"], "report": found["forerun"]}


def turn(url: str, step: Step, body: dict[str, Any]) -> dict[str, Any]:
    """One turn, with the bank and with bypass."""
    requested = body | {"logprobs": True, "top_logprobs": TOP}
    answer, without = ask(url, requested), ask(url, requested | {"forerun": {"bank": "bypass"}})
    if answer["report"]["source"] != step.source or without["report"]["reused_tokens"]:
        raise RuntimeError(f"{step.name} took another path: {answer['report']}")
    past = {f"bypass_{name}": value for name, value in cost(without["report"]).items() if name in ROUNDED}
    return {"turn": step.name, "path": step.path, "text": answer["text"], **cost(answer["report"]), **past} | compared(answer, without)


def compared(answer: Answer, without: Answer) -> dict[str, Any]:
    """equal_tokens: before the answers diverge, of of_tokens; largest_difference: of log-probabilities there; diverged_gap: where they
    diverge, the larger of the two distances between either's token and the other's, null if they do not.
    """
    pairs = list(zip(answer["tokens"], without["tokens"], strict=False))
    equal = next((i for i, (a, b) in enumerate(pairs) if a[0] != b[0]), len(pairs))
    apart = [abs(a[1][token] - b[1][token]) for a, b in pairs[:equal] for token in a[1].keys() & b[1].keys()]
    gap = None if equal == len(pairs) else max(distance(*pairs[equal]), distance(*reversed(pairs[equal])))
    return {"equal_tokens": equal, "of_tokens": len(pairs), "largest_difference": max(apart, default=0.0), "diverged_gap": gap}


def distance(one: tuple[str, dict[str, float]], other: tuple[str, dict[str, float]]) -> float:
    """How much likelier the first run found its own token than the other's; at least so much if that was not among its TOP."""
    token, likely = one
    return likely[token] - likely.get(other[0], min(likely.values()))


def judged(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The turns, and which of them diverge at tokens with a larger gap than the bound allows."""
    bound = FACTOR * max(each["largest_difference"] for each in turns)
    far = [each["turn"] for each in turns if each["diverged_gap"] is not None and each["diverged_gap"] > bound]
    shown = [{name: value for name, value in each.items() if name != "text"} for each in turns]
    return {"turns": shown, "bound": bound, "equal": sum(each["diverged_gap"] is None for each in turns), "too_far": far}


def mlx_bytes(url: str) -> dict[str, int]:
    """MLX memory: active, cached and peak."""
    text = httpx.get(f"{url}/metrics").text
    return {kind: int(float(value)) for kind, value in re.findall(r"^forerun_mlx_(\w+)_bytes (\S+)$", text, flags=re.MULTILINE)}
