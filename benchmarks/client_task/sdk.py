"""A plain loop of tools around a vendor's library, streamed: `sdk.py NAME URL PROMPT` plays one turn in the current folder.

The conversation is stored in the home folder as the library's own values in JSON, so that a later turn, in another process, resumes it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL, KEY, OUTPUT_TOKENS = "scripted", "none", 4096
MOST_STEPS = 12
LIMIT_S = 60.0
SYSTEM = (
    "You are a careful programmer who works in the current folder of a git repository. Look at files with read_file before you change them "
    "with edit_file; run commands, such as tests, with run_command. Change as little as the task needs, and say in a sentence what you did."
)
PARAMETERS = {"read_file": ("path",), "edit_file": ("path", "old", "new"), "run_command": ("command",)}
Items = list[Any]


def schema(parameters: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in parameters}, "required": list(parameters)}


def result(name: str, given: dict[str, str]) -> str:
    """What a tool returns."""
    if name == "read_file":
        return Path(given["path"]).read_text()
    if name == "edit_file":
        file = Path(given["path"])
        source = file.read_text()
        if source.count(given["old"]) != 1:
            return "The old text must occur once."
        file.write_text(source.replace(given["old"], given["new"]))
        return "Done."
    ran = subprocess.run(["sh", "-c", given["command"]], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return f"exit status {ran.returncode}\n{ran.stdout}{ran.stderr}"


def openai_chat(url: str, messages: Items) -> str:
    """Chat completions. Returns the text of an answer that calls no tool, else "" with the results added to the messages."""
    import openai

    tools: Any = [{"type": "function", "function": {"name": name, "parameters": schema(each)}} for name, each in PARAMETERS.items()]
    asked: Any = [{"role": "system", "content": SYSTEM}, *messages]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    with client.chat.completions.stream(model=MODEL, messages=asked, tools=tools, max_tokens=OUTPUT_TOKENS) as stream:
        message = stream.get_final_completion().choices[0].message
    calls = [
        {"id": each.id, "type": "function", "function": {"name": each.function.name, "arguments": each.function.arguments}}
        for each in message.tool_calls or ()
    ]
    reasoning = (message.model_extra or {}).get("reasoning_content")
    answer = {"role": "assistant", "content": message.content, "reasoning_content": reasoning, "tool_calls": calls}
    messages.append({name: value for name, value in answer.items() if value})
    for call in calls:
        function: Any = call["function"]
        content = result(function["name"], json.loads(function["arguments"]))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return "" if calls else message.content or ""


def openai_responses(url: str, items: Items) -> str:
    """Responses, as `openai_chat`; the client stores the conversation."""
    import openai

    tools: Any = [{"type": "function", "name": name, "parameters": schema(each), "strict": False} for name, each in PARAMETERS.items()]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    how: Any = {"instructions": SYSTEM, "store": False, "include": ["reasoning.encrypted_content"]}
    with client.responses.stream(model=MODEL, input=items, tools=tools, max_output_tokens=OUTPUT_TOKENS, **how) as stream:
        response = stream.get_final_response()
    items += [each.model_dump(exclude_none=True, exclude={"parsed_arguments": True}) for each in response.output]
    calls = [each for each in response.output if each.type == "function_call"]
    for call in calls:
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": result(call.name, json.loads(call.arguments))})
    return "" if calls else response.output_text


def anthropic_messages(url: str, messages: Items) -> str:
    """Messages, as `openai_chat`."""
    import anthropic

    tools: Any = [{"name": name, "input_schema": schema(each)} for name, each in PARAMETERS.items()]
    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    with client.messages.stream(model=MODEL, messages=messages, system=SYSTEM, tools=tools, max_tokens=OUTPUT_TOKENS) as stream:
        message = stream.get_final_message()
    messages.append({"role": "assistant", "content": [each.model_dump(exclude_none=True) for each in message.content]})
    calls = [each for each in message.content if each.type == "tool_use"]
    results = []
    for call in calls:
        given: Any = call.input
        results.append({"type": "tool_result", "tool_use_id": call.id, "content": result(call.name, given)})
    if results:
        messages.append({"role": "user", "content": results})
        return ""
    return "".join(each.text for each in message.content if each.type == "text")


STEPS: dict[str, Callable[[str, Items], str]] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic_messages,
}


def main() -> None:
    """Play a turn; prints the answer."""
    name, url, prompt = sys.argv[1:]
    stored = Path.home() / "conversation.json"
    items = json.loads(stored.read_text()) if stored.exists() else []
    items.append({"role": "user", "content": prompt})
    for _ in range(MOST_STEPS):
        if answer := STEPS[name](url, items):
            stored.write_text(json.dumps(items))
            print(answer)
            return
    raise SystemExit(f"no answer within {MOST_STEPS} steps")


if __name__ == "__main__":
    main()
