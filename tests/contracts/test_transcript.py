"""Ten turns of an agent on the bundled model, its client changing what it sends, the server restarted before each: every turn reads what is
new, and of the first changed message's turn what lies before the change; and its logits are those of a prompt read from nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
from tests import tiny
from tests.running import logits, read
from tests.talking import generation, opened

from forerun.bank import retain
from forerun.bank.bank import Turned
from forerun.decode.prefill import prefill
from forerun.engine.echo import encode
from forerun.models.load import DEMO_MODEL
from forerun.state.layout import Contiguous
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat, Job, Sampling

HOT = Sampling(2.0, 1.0, 0, 0.0, 3, 1.0, 0.0, 0.0, {})  # so that what is sampled is not what the tokenizer would make of its text
NUM = 8
SLACK_TOKENS = 16  # the statement allows 1,024
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}
TEMPLATE = Template.load(DEMO_MODEL)


@dataclass
class Client:
    """What an agent holds of a conversation."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    def job(self, number: int) -> Job:
        chat = Chat(tuple(self.messages), tuple(self.tools), {"enable_thinking": False})
        return Job(f"turn-{number}", chat, HOT, NUM, (), None, "", "use")

    def change(self, number: int) -> None:
        """What it changes of the past before this turn."""
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
    """prompt: tokens. stored: what its state holds in the end. computed: tokens that were read. text: the answer."""

    prompt: list[int]
    stored: list[int]
    computed: int
    text: str
    source: str


def turn(folder: Path, job: Job) -> Turn:
    """One turn of a server that was started for it, and is stopped after it."""
    family, tokenizer = tiny.demo().family, Tokenizer.load(DEMO_MODEL)
    with closing(opened(folder, family=family)) as bank:
        prompt = encode(Prompter(tokenizer, TEMPLATE), bank, job)
        restored = bank.restore(prompt.tokens, tenant="", session=None, layout=Contiguous(), room_tokens=NUM)
        marks = list(restored.marks)
        for new in prefill(family, restored.cache, prompt.tokens, retain.marks_at(prompt.tokens, prompt.message_end, tokenizer.stop_ids)):
            marks += new
        assert mx.array_equal(logits(family, restored.cache), logits(family, read(family, prompt.tokens)))
        answer = generation(family, restored.cache, prompt.tokens, sampling=HOT, max_tokens=NUM, stop_ids=tokenizer.stop_ids)
        text = "".join(answer)
        stored = answer.store()
        marks.append(restored.cache.snapshot())
        num_new = len(marks) - len(restored.marks)
        bank.remember(restored.cache, stored, marks, Turned(restored.session, "", restored.turns + 1, prompt.message_end, num_new))
        assert bank.flush(20)
    return Turn(list(prompt.tokens), stored, len(prompt.tokens) - restored.reused_tokens, text, restored.source)


def bound(prompt: list[int], before: list[int]) -> int:
    """New tokens, and those from the start of the first changed message's turn to the first change."""
    change = next((i for i, (a, b) in enumerate(zip(prompt, before, strict=False)) if a != b), min(len(prompt), len(before)))
    tokenizer = Tokenizer.load(DEMO_MODEL)
    user = tokenizer.encode("<|im_start|>user\n", tenant="")
    starts = [i for i in range(change) if prompt[i : i + len(user)] == user]
    return len(prompt) - change + (change - starts[-1] if starts and change < len(before) else 0 if starts else change)


def test_every_turn_reads_what_is_new_whatever_the_client_changes(tmp_path: Path) -> None:
    system = {"role": "system", "content": "You help with files."}
    client, told = Client([system, {"role": "user", "content": "List the files."}], [TOOL]), []
    for number in range(1, 11):
        client.change(number)
        told.append(turn(tmp_path / "bank", client.job(number)))
        client.messages += [{"role": "assistant", "content": told[-1].text}, {"role": "user", "content": f"Go on with number {number}."}]
    assert [t.source for t in told].count("ssd") >= 8
    for number, (before, after) in enumerate(pairwise(told), start=2):
        assert after.computed <= bound(after.prompt, before.stored) + SLACK_TOKENS, (number, after.computed)
    canonical = Tokenizer.load(DEMO_MODEL)
    assert any(canonical.encode(canonical.decode(t.stored), tenant="") != t.stored for t in told), "no echo was split otherwise"
