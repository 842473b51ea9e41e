"""Frozen values that travel between the packages: what is asked (Job), what happens (Event), what it cost (Report).

Knows nothing of MLX, HTTP or any dialect: a dialect makes a Job from JSON and turns Events back into frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Finish = Literal["stop", "length", "calls"]
Source = Literal["cold", "ram", "ssd"]
StepKind = Literal["compiled", "eager", "mixed"]
BankUse = Literal["use", "bypass"]
# An id is a part of addresses, in which clients take dots alone for "here" or "above": with "." one would remove all conversations.
SESSION_ID = r"^[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f.][^\x00-\x1f\x7f]*$"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The law that tokens are drawn from. Neutral values: 1.0 temperature, 1.0 top_p, 0 top_k, 0.0 min_p, 1.0 repetition, 0.0 rest.

    temperature 0 is the one-hot law of the largest logit (lowest token id on a tie). seed None: fresh noise for each request.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]


NEUTRAL = Sampling(1.0, 1.0, 0, 0.0, None, 1.0, 0.0, 0.0, {})
GREEDY = replace(NEUTRAL, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be rendered by the model's chat template. Messages and tools are plain JSON values, order kept.

    held_back: tools that may be called, but are declared in a message if at all.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    template_args: Mapping[str, Any]
    held_back: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_opening(self) -> bool:
        """Whether nobody has answered in it yet."""
        return all(message["role"] != "assistant" for message in self.messages)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt that is text, read as it stands: no chat template, special tokens in it are recognised."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that is already tokens."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArchivedConversation(TokenPrompt):
    """A conversation of an archive, to be read and kept as if it had been had here. marks: after how many tokens it can be taken up then.
    turns: how many it has had. Nobody asks anything: it is no request of a client's.
    """

    snapshots: tuple[int, ...]
    turns: int


Prompt = Chat | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class LogprobsRequest:
    """Each token of the answer is told with its probability and with those of the `num_top` likeliest tokens at its place; of_prompt: the
    prompt's tokens too, for which all of them are read, whatever is stored.
    """

    num_top: int
    of_prompt: bool


@dataclass(frozen=True, slots=True)
class Job:
    """One request, whatever dialect it came in.

    max_tokens: at most so many, and never more than the context has room for; None: that many. session None: the bank finds the
    conversation by its prefix.
    tenant: the owner of the API key, "" without keys. stop: strings that end the answer and are not part of it. logprobs None: not asked.
    """

    id: str
    prompt: Prompt
    sampling: Sampling
    max_tokens: int | None
    stop: tuple[str, ...]
    session: str | None
    tenant: str
    bank: BankUse
    logprobs: LogprobsRequest | None = None

    @property
    def uses_bank(self) -> bool:
        """Whether the request reads and writes stored state."""
        return self.bank == "use" and not (self.logprobs and self.logprobs.of_prompt)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished request. cached_tokens were reused; computed = prompt - cached. reasoning_tokens are the first of
    completion_tokens, up to the tag that ends them.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


MissKind = Literal["", "new", "differs", "no snapshot", "evicted", "not stored", "damaged", "identity", "failed", "bypass"]


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a prompt had to be read: at_token is the first at which the nearest stored conversation goes on otherwise, where the part of the
    prompt that it lies in ("system", "tools", "message 3 (user)"), field which field of that message ("content", "reasoning_content",
    "role", "name", "tool_calls[0].function.arguments") or which tool, prompt_text and stored_text how each goes on ("" where one ends).

    kind: "new" (nothing stored begins alike), "differs", "no mark" (the rows are stored, but no mark near), "evicted", "not stored" (it
    could not be), "damaged", "identity" (stored by another model, template ...), "failed" (the bank did), "bypass".
    """

    kind: MissKind
    at_token: int
    where: str
    field: str
    prompt_text: str
    stored_text: str

    @property
    def location(self) -> str:
        """The field and the part in words; "" where they are not known."""
        if not self.field:
            return self.where
        return f"tool {self.field}" if self.where == "tools" else f"{self.field} of {self.where}"


@dataclass(frozen=True, slots=True)
class Report:
    """How a request was served: the `forerun` object of every response.

    reused_tokens + computed_tokens == prompt tokens. prefill_tok_per_s is computed_tokens over the seconds of prefill alone (None if
    nothing was computed); decode_tok_per_s counts the tokens after the first (None below two). ttft_s runs from the request's arrival,
    queue and restore included, to the first token, or where none was asked for to the end of the prompt. reason is "" when all that could
    be reused was, else it says why not, and `miss` where. rendering: what of the request the model's chat template could not take as it was
    sent. read_bytes: of the files that were read to get the state back.

    layout: how the decoding cache's keys and values lie, as its arrays show;
    prefill_layout: how they lay while the prompt was read. requested_layout and requested_prefill_layout are what was chosen for them: if they
    differ, that is a fault. paged_blocks: pages in use at the end. steps: passes of decoding (verify and draft), compiled_steps of them
    compiled, eager_steps the others by the name of the reason.

    Drafting: every token but the first comes from one of `rounds` rounds, tokens_per_round on average (None without a round). drafted[i]
    and accepted[i] count the rounds in which a draft of depth i + 1 was made, and accepted; depths[k] counts the rounds with k drafts.
    """

    session: str
    source: Source
    prefill_layout: str
    requested_prefill_layout: str
    layout: str
    requested_layout: str
    paged_blocks: int
    step_kind: StepKind
    steps: int
    compiled_steps: int
    eager_steps: Mapping[str, int]
    numerics: str
    reused_tokens: int
    computed_tokens: int
    queue_s: float
    restore_s: float
    ttft_s: float
    prefill_tok_per_s: float | None
    decode_tok_per_s: float | None
    rounds: int
    tokens_per_round: float | None
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    depths: tuple[int, ...]
    reason: str
    miss: Miss | None
    rendering: tuple[str, ...]
    read_bytes: int = 0  # logs of earlier versions have none


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The request waits; `ahead` others came before it."""

    ahead: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Prefill has come this far: done_tokens of total_tokens prompt tokens, reused_tokens of them not read again.

    remaining_s: what the rest should take at the pace so far, None before there is one. Comes before the first piece of every answer.
    """

    done_tokens: int
    total_tokens: int
    reused_tokens: int
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class TopToken:
    """A token, as the bytes that it stands for, and the natural logarithm of its probability, at least -9999."""

    text: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was written, with the likeliest tokens at its place, which need not include it, the likeliest first. Probabilities are
    the model's own, before all of `Sampling`. logprob None: the first token of a prompt, which follows nothing.
    """

    text: bytes
    logprob: float | None
    top: tuple[TopToken, ...]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The next tokens of the prompt, if they were asked for. All come before the first piece of the answer."""

    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer's text. logprobs: of the tokens that end in it, if they were asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStart:
    """The model calls a tool. index: 0, 1, ... within the answer. Until its CallEnd come no other pieces than its arguments."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments; all of a call's pieces together are one JSON object, if its CallEnd is complete."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call. Not complete: it was cut off, or is malformed; its arguments are what the model wrote, and need not be JSON."""

    index: int
    is_complete: bool


Piece = Reasoning | Content | CallStart | CallArguments | CallEnd


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of every request that ends without an error. finish "calls": the model waits for the results of its calls.
    stop_string: the one that ended the answer, "" if none did. logprobs: of the answer's tokens after its last content, the one that ended
    it included, if they were asked for.
    """

    finish: Finish
    usage: Usage
    report: Report
    stop_string: str
    logprobs: tuple[TokenLogprob, ...] = ()


Event = QueuePosition | PrefillProgress | PromptLogprobs | Piece | Done


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that is served, as shown to people. `demo`: the bundled model, for trying things out.

    notes: what was decided or left out while its weights were read.
    """

    name: str
    family: str
    device: str
    numerics: str
    blas: str
    context_tokens: int
    created_unix_s: int
    defaults: Sampling
    demo: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BankHealth:
    """What the bank holds. sessions: conversations in RAM or on disk, live_sessions of them as live caches. pending_writes: records of
    finished turns that are not yet safe on disk. written_today_bytes: to disk, of daily_write_limit_bytes a day (UTC). pinned_bytes: what
    on disk is never evicted. failure: why the index could not be asked, "" if it could; sessions, disk_bytes, written_today_bytes and
    what is pinned are then what it said last.
    """

    sessions: int
    live_sessions: int
    pending_writes: int
    ram_bytes: int
    disk_bytes: int
    disk_limit_bytes: int
    written_today_bytes: int
    daily_write_limit_bytes: int
    pinned_sessions: int
    pinned_bytes: int
    quarantined: int
    failure: str


SessionState = Literal["ram", "writing", "ssd", "skipped"]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A conversation that is kept. id: what `forerun.session` of a request takes and a report tells. name: for people, "" if it has none.

    tokens: how long it is; stored_tokens of them can be had from disk. ram_bytes and disk_bytes: what it takes, shared parts included.
    state: "ram" (nothing is kept on disk), "writing" (on its way there), "ssd" (all of it is there), "skipped" (not all is: see `reason`).
    """

    id: str
    name: str
    tenant: str
    turns: int
    tokens: int
    stored_tokens: int
    ram_bytes: int
    disk_bytes: int
    last_used_unix_s: float
    pinned: bool
    state: SessionState
    reason: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """A conversation that came in an archive. state: "imported" as it is, or "computed" anew, and then `reason` says why."""

    session: SessionInfo
    state: Literal["imported", "computed"]
    reason: str


@dataclass(frozen=True, slots=True)
class Health:
    """`/health`. status: "ok", or "degraded" with the reasons. ready: new requests are taken. running and waiting count requests."""

    status: Literal["ok", "degraded"]
    ready: bool
    reasons: tuple[str, ...]
    running: int
    waiting: int
    bank: BankHealth
