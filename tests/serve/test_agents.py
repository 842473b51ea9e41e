import json
import tomllib
from typing import get_args

import pytest

from forerun.serve.agents import Agent, ServedModel, merged, setup

HERE = ServedModel("http://127.0.0.1:8484", "coder-27b", 40_960, needs_key=False)
LOCKED = ServedModel("http://10.0.0.5:8484", "coder-27b", 40_960, needs_key=True)
AGENTS: tuple[Agent, ...] = get_args(Agent)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("served", [HERE, LOCKED])
def test_every_agent_gets_address_model_and_key(agent: Agent, served: ServedModel) -> None:
    made = setup(agent, served)
    everything = "\n".join([made.content, *made.environment.values(), made.start])
    assert served.url in everything
    assert "coder-27b" in everything
    assert ("FORERUN_API_KEY" in everything) == served.needs_key
    assert not made.file.is_absolute()


def test_the_formats_can_be_read() -> None:
    codex = tomllib.loads(setup("codex", LOCKED).content)
    assert (codex["model"], codex["model_provider"], codex["model_context_window"]) == ("coder-27b", "forerun", 40_960)
    provider = {"name": "forerun", "base_url": "http://10.0.0.5:8484/v1", "wire_api": "responses", "env_key": "FORERUN_API_KEY"}
    assert codex["model_providers"]["forerun"] == provider
    opencode = json.loads(setup("opencode", HERE).content)
    assert opencode["provider"]["forerun"]["models"]["coder-27b"]["limit"] == {"context": 40_960, "output": 10_240}
    claude = json.loads(setup("claude-code", HERE).content)["env"]
    assert (claude["ANTHROPIC_BASE_URL"], claude["CLAUDE_CODE_MAX_CONTEXT_TOKENS"]) == (HERE.url, "40960")
    assert claude["CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS"] == "1", "git status in its system prompt changes it at each start"
    pi = json.loads(setup("pi", HERE).content)["providers"]["forerun"]
    assert (pi["api"], pi["models"][0]["contextWindow"]) == ("openai-completions", 40_960)
    assert "openai-api-base: http://127.0.0.1:8484/v1\n" in setup("aider", HERE).content


def test_the_content_of_a_shared_file_stays() -> None:
    before = json.dumps({"providers": {"ollama": {"baseUrl": "x"}, "forerun": {"baseUrl": "old", "headers": {"a": "b"}}}, "other": [1]})
    after = json.loads(merged(before, setup("pi", HERE).content))
    assert (after["providers"]["ollama"], after["other"]) == ({"baseUrl": "x"}, [1])
    assert after["providers"]["forerun"]["headers"] == {"a": "b"}
    assert after["providers"]["forerun"]["baseUrl"] == "http://127.0.0.1:8484/v1"
    with pytest.raises(ValueError, match="no JSON object"):
        merged("[]", "{}")
