"""How to set up each coding agent for a server: a settings file, its environment, and the command that starts it.

Pure. The agent's own file is not touched where the agent accepts a separate one. Knows the agents' formats; knows no server and no disk.
Sources: the agents' own documentation (Codex 0.171, Claude Code 2.1, opencode 1.18, pi 0.73, aider 0.86).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

Agent = Literal["opencode", "codex", "claude-code", "pi", "aider"]
KEY_VARIABLE = "FORERUN_API_KEY"
NO_KEY = "none"  # agents insist on some key
OUTPUT_TOKENS = 32_000


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A server: its address without /v1, its model, and whether it requires a key (which is then in KEY_VARIABLE)."""

    url: str
    model: str
    context_tokens: int
    needs_key: bool

    @property
    def output_tokens(self) -> int:
        """The longest answer that an agent should plan for."""
        return min(OUTPUT_TOKENS, self.context_tokens // 4)


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """file: relative to the home folder, with this content; is_shared: the agent has no other such file, so its other content must stay.

    environment: variables to set. start: the command. notes: what else a person should know.
    """

    file: PurePosixPath
    content: str
    is_shared: bool
    environment: Mapping[str, str]
    start: str
    notes: tuple[str, ...]


def setup(agent: Agent, served: ServedModel) -> AgentSetup:
    """The settings of the agent for this server."""
    return SETUPS[agent](served)


def _opencode(served: ServedModel) -> AgentSetup:
    limits = {"context": served.context_tokens, "output": served.output_tokens}
    model = {"name": served.model, "tool_call": True, "reasoning": True, "interleaved": {"field": "reasoning_content"}, "limit": limits}
    options = {"baseURL": f"{served.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}" if served.needs_key else NO_KEY}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "forerun", "options": options, "models": {served.model: model}}
    name = f"forerun/{served.model}"
    settings = {"$schema": "https://opencode.ai/config.json", "provider": {"forerun": provider}, "model": name, "small_model": name}
    file = PurePosixPath(".config/opencode/forerun.json")
    notes = ("The date is in its system prompt: each day begins with one long prefill.",)
    return AgentSetup(file, _json(settings), False, {"OPENCODE_CONFIG": f"$HOME/{file}"}, "opencode", notes)


def _codex(served: ServedModel) -> AgentSetup:
    key = [f"env_key = {json.dumps(KEY_VARIABLE)}"] if served.needs_key else []
    lines = [
        f"model = {json.dumps(served.model)}",
        'model_provider = "forerun"',
        f"model_context_window = {served.context_tokens}",
        'model_reasoning_summary = "auto"',
        "",
        "[model_providers.forerun]",
        'name = "forerun"',
        f"base_url = {json.dumps(f'{served.url}/v1')}",
        'wire_api = "responses"',
        *key,
    ]
    notes = (
        "It warns that it has no metadata for the model, as for every model that is not OpenAI's; the profile has what it needs.",
        "Compaction drops the list of tools, so the summary is prefilled in full once.",
    )
    return AgentSetup(PurePosixPath(".codex/forerun.config.toml"), "\n".join(lines) + "\n", False, {}, "codex --profile forerun", notes)


def _claude_code(served: ServedModel) -> AgentSetup:
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    key = {} if served.needs_key else {"ANTHROPIC_AUTH_TOKEN": NO_KEY}
    environment = {
        "ANTHROPIC_BASE_URL": served.url,
        **key,
        **dict.fromkeys(models, served.model),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.output_tokens),
        # Tools found later stay out of the list at the head of the prompt, so that its prefix is the same in all conversations.
        "ENABLE_TOOL_SEARCH": "true",
        # `git status` as of each start would stand in the system prompt, and all behind it would be prefilled again.
        "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    file = PurePosixPath(".claude/forerun.json")
    variables = {"ANTHROPIC_AUTH_TOKEN": f"${KEY_VARIABLE}"} if served.needs_key else {}
    return AgentSetup(file, _json({"env": environment}), False, variables, f"claude --settings ~/{file}", ())


def _pi(served: ServedModel) -> AgentSetup:
    compat = {"supportsDeveloperRole": True, "supportsReasoningEffort": False, "thinkingFormat": "qwen-chat-template"}
    limits = {"contextWindow": served.context_tokens, "maxTokens": served.output_tokens}
    model = {"id": served.model, "name": served.model, "reasoning": True, "input": ["text"], **limits, "compat": compat}
    key = KEY_VARIABLE if served.needs_key else NO_KEY
    provider = {"baseUrl": f"{served.url}/v1", "api": "openai-completions", "apiKey": key, "models": [model]}
    file, notes = PurePosixPath(".pi/agent/models.json"), ("The date is in its system prompt: each day begins with one long prefill.",)
    return AgentSetup(file, _json({"providers": {"forerun": provider}}), True, {}, f"pi --provider forerun --model {served.model}", notes)


def _aider(served: ServedModel) -> AgentSetup:
    key = [] if served.needs_key else [f"openai-api-key: {NO_KEY}"]
    settings = [f"model: openai/{served.model}", f"openai-api-base: {served.url}/v1", *key, "show-model-warnings: false"]
    variables = {"OPENAI_API_KEY": f"${KEY_VARIABLE}"} if served.needs_key else {}
    file = PurePosixPath(".aider.forerun.yml")
    notes = ("It puts files before the dialogue: each turn that changes one recomputes most of the prompt, whatever the server does.",)
    return AgentSetup(file, "\n".join(settings) + "\n", False, variables, f"aider --config ~/{file}", notes)


SETUPS: Mapping[Agent, Callable[[ServedModel], AgentSetup]] = {
    "opencode": _opencode,
    "codex": _codex,
    "claude-code": _claude_code,
    "pi": _pi,
    "aider": _aider,
}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def merged(before: str, content: str) -> str:
    """The JSON of a shared file with this content added: objects are merged, all else stays. Raises ValueError."""
    value = json.loads(before)
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return _json(_merged(value, json.loads(content)))


def _merged(value: Any, new: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(new, dict):
        return new
    return value | {name: _merged(value.get(name), each) for name, each in new.items()}
