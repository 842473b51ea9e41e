"""Frozen values that the packages exchange: a request (Job), its events (Event), its report (Report).

Knows nothing of MLX, HTTP or any dialect: a dialect parses JSON into a Job and formats Events as frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Finish = Literal["stop", "length", "calls", "loop"]
Source = Literal["cold", "ram", "ssd"]
StepKind = Literal["compiled", "eager", "mixed"]
BankUse = Literal["use", "bypass"]
# Ids are path segments, and clients resolve "." and ".." in URLs: DELETE of session "." would delete all conversations.
SESSION_ID = r"^[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f.][^\x00-\x1f\x7f]*$"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of the distribution that tokens are drawn from. Neutral: see NEUTRAL.

    temperature 0: greedy (on a tie the lowest token id). seed None: fresh noise for each request.
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
    """A conversation for the model's chat template. Messages and tools are plain JSON values in the client's order.

    held_back: tools that may be called but are declared in a message, if at all. notes: what of the client's messages is not in these as it
    was sent, for people.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    template_args: Mapping[str, Any]
    held_back: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_opening(self) -> bool:
        """Whether it has no assistant message yet."""
        return all(message["role"] != "assistant" for message in self.messages)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A raw text prompt: no chat template; special tokens in it are recognised."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt of token ids."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArchivedConversation(TokenPrompt):
    """An archived conversation to prefill and store as if it had taken place here; no client request. snapshots: the positions to take
    snapshots at. turns: how many it has.
    """

    snapshots: tuple[int, ...]
    turns: int


Prompt = Chat | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class LogprobsRequest:
    """Return each answer token's log probability and the `num_top` likeliest tokens at its position. of_prompt: also for the
    prompt's tokens; all of them are then computed, whatever is stored.
    """

    num_top: int
    of_prompt: bool


FormatKind = Literal["json_object", "json_schema", "regex", "choice", "lark", "gbnf"]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What a text must be. definition: a JSON schema, or a list of choices, as JSON text with its keys in the client's order; or a grammar;
    "" for json_object. is_strict: a keyword of the schema that cannot be enforced is an error; else it is dropped and named in the report.
    param: the request's field that holds it, for errors.
    """

    kind: FormatKind
    definition: str
    is_strict: bool
    param: str


@dataclass(frozen=True, slots=True)
class CallRule:
    """Which calls of declared tools an answer makes. is_required: at least one, and no text beside it. allowed: names of the tools that may
    be called, None for all. is_parallel: more than one call may be made. strict: names of tools whose schema is `OutputFormat.is_strict`.
    inputs: the format of the one argument, `input`, of custom tools that have one, by name. is_enforced: False leaves calls free.
    """

    is_required: bool = False
    allowed: tuple[str, ...] | None = None
    is_parallel: bool = True
    strict: frozenset[str] = frozenset()
    inputs: Mapping[str, OutputFormat] = field(default_factory=dict)
    is_enforced: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """One request, independent of its dialect.

    max_tokens: upper limit, also bounded by the rest of the context; None: by that alone. stop: strings that end the answer, excluded from
    it. session None: the bank finds the conversation by its prefix. tenant: owner of the API key, "" without keys. client: the program that
    sent it, as that calls itself, "" if it does not. agent: which of its agents did, "" if it names none.

    output: of the text after the reasoning, None for any. calls: of tools. reasoning_tokens: after so many the reasoning is closed, None
    for no limit. is_loop_broken: an answer that repeats the same text again and again is ended, as finish "loop".
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
    client: str = ""
    agent: str = ""
    output: OutputFormat | None = None
    calls: CallRule = CallRule()
    reasoning_tokens: int | None = None
    is_loop_broken: bool = False

    @property
    def uses_bank(self) -> bool:
        """Whether the request reads and writes stored state."""
        return self.bank == "use" and not (self.logprobs and self.logprobs.of_prompt)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished request. cached_tokens of the prompt were reused, the others computed. reasoning_tokens are the first of
    completion_tokens, including the closing tag.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


MissKind = Literal["", "new", "differs", "no snapshot", "evicted", "not stored", "damaged", "identity", "failed", "bypass"]


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a prompt was not reused further. at_token: the first at which it diverges from the nearest stored conversation. where: the part
    of the prompt with that token ("system", "tools", "message 3 (user)"). field: the field of that message ("content", "role", "name",
    "reasoning_content", "tool_calls[0].function.arguments"), or the tool. prompt_text, stored_text: the two continuations, "" at an end.

    kind: "new" (no stored conversation shares its beginning), "differs", "no snapshot" (rows are stored, but no snapshot is near enough),
    "evicted", "not stored" (writing failed), "damaged", "identity" (stored under another model, template, ...), "failed" (bank error),
    "bypass".
    """

    kind: MissKind
    at_token: int
    where: str
    field: str
    prompt_text: str
    stored_text: str

    @property
    def location(self) -> str:
        """Field and part in words, "" where unknown."""
        if not self.field:
            return self.where
        return f"tool {self.field}" if self.where == "tools" else f"{self.field} of {self.where}"


@dataclass(frozen=True, slots=True)
class Report:
    """How a request was served: the `forerun` object of every response.

    reused_tokens + computed_tokens == prompt tokens. prefill_tok_per_s: computed_tokens over the seconds of prefill alone (None if nothing
    was computed). decode_tok_per_s: of the tokens after the first (None below two). ttft_s: arrival to first token, queue and restore
    included; to the end of the prompt where max_tokens is 0. reason: why no more was reused, "" if all that could be was; miss: where the
    prompt diverges. rendering: what of the request the chat template could not take as sent. unenforced: keywords
    of its schemas that the grammar does not hold. read_bytes: of files, to restore the state.
    durable_tokens: of the conversation, after how many it could be resumed from disk if the process were killed as the answer ends.

    layout, prefill_layout: of the cache's keys and values while decoding and in prefill, read off its arrays. requested_layout and
    requested_prefill_layout: those chosen; a difference is a fault. paged_blocks: pages in use at the end. steps: decoding passes (verify
    and draft), compiled_steps of them compiled; eager_steps: the others by reason.

    Beside others: others_s passed between start and end for other requests alone. sequences_per_round, rows_per_round: on average, of the
    passes that its rounds shared (None without rounds). forked_from: the running or stored conversation whose state was copied in RAM,
    "" if none.

    Drafting: every token but the first comes from one of `rounds` rounds, on average tokens_per_round each (None without rounds).
    drafted[i], accepted[i]: rounds in which a draft at depth i + 1 was made, accepted. depths[k]: rounds with k drafts.
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
    others_s: float
    sequences_per_round: float | None
    rows_per_round: float | None
    forked_from: str
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
    unenforced: tuple[str, ...]
    read_bytes: int
    durable_tokens: int


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The request waits in the queue; `ahead` requests were submitted before it."""

    ahead: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """done_tokens of the prompt's total_tokens are in the cache, the first reused_tokens of them restored. Precedes every answer.

    remaining_s: estimate from the pace so far, None before a chunk is done.
    """

    done_tokens: int
    total_tokens: int
    reused_tokens: int
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class TopToken:
    """A token as its bytes, and the natural logarithm of its probability, at least -9999."""

    text: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the answer or the prompt. top: the likeliest tokens at its position, in descending order; it need not be among them.

    Probabilities are the model's, before any of `Sampling`. logprob None: the first token of a prompt, which has no predecessor.
    """

    text: bytes
    logprob: float | None
    top: tuple[TopToken, ...]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The next tokens of the prompt, if requested. All precede the first piece of the answer."""

    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text. logprobs: of the tokens that end in it, if requested."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a tool call. index: 0, 1, ... within the answer. Only its arguments come before its CallEnd."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments. Together they are one JSON object, if CallEnd.is_complete."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call. Not complete: cut off or malformed; its arguments are the model's text and need not be JSON."""

    index: int
    is_complete: bool


Piece = Reasoning | Content | CallStart | CallArguments | CallEnd


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a request that ends without an error. finish "calls": the answer made tool calls. stop_string: the one that ended
    the answer, "" if none did. logprobs: of the tokens after the last content, the stop token included, if requested.
    """

    finish: Finish
    usage: Usage
    report: Report
    stop_string: str
    logprobs: tuple[TokenLogprob, ...] = ()


Event = QueuePosition | PrefillProgress | PromptLogprobs | Piece | Done


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What holds for answers unless their request says otherwise. max_thinking_tokens: upper limit of `Job.reasoning_tokens`, whatever the
    request says; None for none. enforce_calls, break_loops: defaults of `CallRule.is_enforced` and `Job.is_loop_broken`.
    """

    max_thinking_tokens: int | None = None
    enforce_calls: bool = True
    break_loops: bool = False


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response of the Responses API, stored under its id. previous: id of the response that it continues, "" for none. session: id of its
    conversation, "" if unknown. begun_s: when its request came, Unix seconds. body: what its client gets; input: the items that its request
    added to the conversation. Both are JSON values of the dialect.
    """

    id: str
    previous: str
    session: str
    begun_s: float
    body: Mapping[str, Any]
    input: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model, as shown to users. demo: it is the bundled one. notes: what loading decided or skipped, such as unused tensors.
    rules: the server's, for answers.
    """

    name: str
    family: str
    device: str
    numerics: str
    kernels: str
    context_tokens: int
    created_unix_s: int
    defaults: Sampling
    demo: bool
    notes: tuple[str, ...] = ()
    rules: AnswerRules = AnswerRules()


@dataclass(frozen=True, slots=True)
class BankHealth:
    """What the bank holds. sessions: conversations in RAM or on disk, live_sessions of them as live caches. pending_writes: records of
    finished turns not yet durable on disk. written_today_bytes: to disk, of daily_write_limit_bytes a day (UTC). pinned_bytes: on disk,
    never evicted. failure: why the index could not be queried, "" if it could; sessions, disk_bytes, written_today_bytes and pinned_*
    are then its last answer.
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
    """A stored conversation. id: the `forerun.session` of requests and reports. name: for people, "" if it has none.
    title: its first words. client: the program that it was with, as that calls itself.

    tokens: its length; stored_tokens of them can be restored from disk. ram_bytes and disk_bytes: its size, shared records included.
    state: "ram" (no disk tier), "writing" (being written), "ssd" (all is on disk), "skipped" (not all is: see `reason`).
    """

    id: str
    name: str
    title: str
    client: str
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
    """An imported conversation. state: "imported" with the archive's state, or "computed" again from its tokens, because of `reason`."""

    session: SessionInfo
    state: Literal["imported", "computed"]
    reason: str


@dataclass(frozen=True, slots=True)
class Health:
    """`/health`. status: "ok", or "degraded" with reasons. ready: new requests are accepted. running, waiting: counts of requests."""

    status: Literal["ok", "degraded"]
    ready: bool
    reasons: tuple[str, ...]
    running: int
    waiting: int
    bank: BankHealth
