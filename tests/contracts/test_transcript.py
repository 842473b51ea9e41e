"""Ten turns of an agent on the bundled model; its client changes messages or rewrites them, and the server is restarted before each turn.
Every turn prefills only what is new, and of the first changed message's turn what precedes the change; and its logits equal those of a cold
prefill.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
from tests import tiny
from tests.running import logits, read
from tests.talking import generation, opened
from tests.text.conftest import no_logprobs
from tests.text.test_answer_memory import oddly
from tests.waiting import LIMIT_S

from forerun.bank import policy
from forerun.bank.bank import FinishedTurn
from forerun.decode.prefill import prefill
from forerun.engine import prompt_encoding
from forerun.models.load import DEMO_MODEL
from forerun.state.cache import Cache
from forerun.state.layout import Contiguous
from forerun.text.message import AssistantMessage
from forerun.text.prompt import Prompt, Prompter, SampledAnswer
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat, Job, Sampling

HOT = Sampling(2.0, 1.0, 0, 0.0, 3, 1.0, 0.0, 0.0, {})  # so that the sampled ids are not what the tokenizer would make of their text
NUM = 8
SLACK_TOKENS = 16  # the statement allows 1,024
CHANGES = (3, 4, 6, 8)  # turns before which the client changes an earlier message
CALLS = (6, 9)  # turns in which the model calls a tool, written not as the template does
CALL = '<tool_call>\n{"name":"read", "arguments":  {"path": "a.py","lines":10}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}
TEMPLATE = Template.load(DEMO_MODEL)


@dataclass
class Client:
    """An agent's copy of a conversation."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    def job(self, number: int) -> Job:
        chat = Chat(tuple(self.messages), tuple(self.tools), {"enable_thinking": False})
        return Job(f"turn-{number}", chat, HOT, NUM, (), None, "", "use")

    def change(self, number: int) -> None:
        """Change an earlier message before this turn."""
        if number == 3:
            self.messages[1] = {"role": "user", "content": "List the files, please."}
        if number == 4:
            self.messages[6] = {**self.messages[6], "reasoning_content": "They ask for more."}
        if number == 6:
            del self.messages[6]["reasoning_content"]
        if number == 8:
            self.tools[0] = {**TOOL, "function": {**TOOL["function"], "description": "Reads a file."}}


@dataclass(frozen=True)
class Turn:
    """prompt: tokens. stored: tokens of the cache at the end. computed: number of tokens prefilled. message: the answer."""

    prompt: list[int]
    stored: list[int]
    computed: int
    message: dict[str, Any]
    source: str


def sampled(prompt: Prompt, cache: Cache[Any], number: int) -> tuple[list[int], SampledAnswer]:
    """The model's answer, or its call in this turn. Returns the tokens that `cache` holds then, and the answer."""
    family, tokenizer = tiny.demo().family, Tokenizer.load(DEMO_MODEL)
    if number in CALLS:
        ids, text = oddly(tokenizer, CALL), CALL
        stored = [*prompt.tokens, *ids]
        read(family, stored, cache)
    else:
        answer = generation(family, cache, prompt.tokens, sampling=HOT, max_tokens=NUM, stop_ids=tokenizer.stop_ids)
        text = "".join(answer)
        ids, stored = tuple(answer.tokens[: answer.num_shown]), answer.store()
    parser, message = prompt.answer_parser(f"turn-{number}", no_logprobs), AssistantMessage()
    for piece in (*parser.push(text), *parser.flush()):
        message.take(piece)
    return stored, SampledAnswer(ids, text, message.value())


def turn(folder: Path, job: Job, number: int) -> Turn:
    """One turn of a server that is started for it and stopped after it."""
    family, tokenizer = tiny.demo().family, Tokenizer.load(DEMO_MODEL)
    with closing(opened(folder, family=family)) as bank:
        prompter = Prompter(tokenizer, TEMPLATE)
        prompt = prompt_encoding.encode(prompter, bank, job, 1 << 20)
        restored = bank.restore(prompt.tokens, tenant="", session=None, layout=Contiguous(), headroom_tokens=NUM)
        snapshots = list(restored.snapshots)
        reuse = policy.Reuse(restored.reused_tokens, restored.miss_reason.shared_tokens, family.spec.snapshot_tokens)
        snapshot_positions = policy.snapshot_positions(prompt.tokens, prompt.message_end, tokenizer.stop_ids, reuse, prompt.borders)
        for new in prefill(family, restored.cache, prompt.tokens, snapshot_positions):
            snapshots += new
        assert mx.array_equal(logits(family, restored.cache), logits(family, read(family, prompt.tokens)))
        stored, answer = sampled(prompt, restored.cache, number)
        snapshots.append(restored.cache.snapshot())
        num_new, memo = len(snapshots) - len(restored.snapshots), prompt_encoding.learn(prompter, job, prompt, answer, restored.session)
        bank.remember(
            restored.cache, stored, snapshots, FinishedTurn(restored.session, "", restored.turns + 1, prompt.message_end, num_new, memo)
        )
        assert bank.flush(LIMIT_S)
    return Turn(list(prompt.tokens), stored, len(prompt.tokens) - restored.reused_tokens, dict(answer.message), restored.source)


def echoed(message: dict[str, Any]) -> dict[str, Any]:
    """An answer as a client sends it back: the arguments of its calls rewritten, in another order."""
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), separators=(",", ":"))
    return message


def bound(prompt: list[int], before: list[int]) -> int:
    """How many tokens may be computed: the new ones, and those from the start of the first changed message's turn to the change."""
    change = next((i for i, (a, b) in enumerate(zip(prompt, before, strict=False)) if a != b), min(len(prompt), len(before)))
    tokenizer = Tokenizer.load(DEMO_MODEL)
    user = tokenizer.encode("<|im_start|>user\n", tenant="")
    starts = [i for i in range(change) if prompt[i : i + len(user)] == user]
    return len(prompt) - change + (change - starts[-1] if starts and change < len(before) else 0 if starts else change)


def test_every_turn_prefills_only_what_is_new_whatever_the_client_changes(tmp_path: Path) -> None:
    system = {"role": "system", "content": "You help with files."}
    client, turns = Client([system, {"role": "user", "content": "List the files."}], [TOOL]), []
    for number in range(1, 11):
        client.change(number)
        turns.append(turn(tmp_path / "bank", client.job(number), number))
        message = {"role": "tool" if number in CALLS else "user", "content": f"Go on with number {number}."}
        client.messages += [echoed(turns[-1].message), message]
    assert [t.source for t in turns].count("ssd") >= 8
    for number, (before, after) in enumerate(pairwise(turns), start=2):
        assert number in CHANGES or after.prompt[: len(before.stored)] == before.stored, number
        assert after.computed <= bound(after.prompt, before.stored) + SLACK_TOKENS, (number, after.computed)
    canonical = Tokenizer.load(DEMO_MODEL)
    assert any(canonical.encode(canonical.decode(t.stored), tenant="") != t.stored for t in turns), "no echo was tokenised otherwise"
