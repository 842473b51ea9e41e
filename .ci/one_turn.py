"""Start the forerun given as the only argument, send one chat request, check the answer and stop it. Standard library only."""

import json
import signal
import subprocess
import sys
import urllib.request
from typing import Any

TURN_LIMIT_S = 120
STOP_LIMIT_S = 30


def main(forerun: str) -> None:
    with subprocess.Popen([forerun, "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as server:
        try:
            answer = ask(url_of(server))
            server.send_signal(signal.SIGTERM)
            code = server.wait(STOP_LIMIT_S)
        finally:
            server.kill()
    report, usage = answer["forerun"], answer["usage"]
    assert answer["choices"][0]["message"]["content"], answer
    assert report["reused_tokens"] + report["computed_tokens"] == usage["prompt_tokens"], answer
    assert code == 0, f"the server ended with {code} after SIGTERM"
    print(json.dumps(answer))


def url_of(server: subprocess.Popen[str]) -> str:
    """The address in the first line of JSON on the server's standard output that has one."""
    assert server.stdout is not None
    for line in server.stdout:
        if "url" in (event := json.loads(line)):
            return str(event["url"])
    raise SystemExit("the server ended before it printed its address")


def ask(url: str) -> dict[str, Any]:
    """The answer to one short chat turn."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TURN_LIMIT_S) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


if __name__ == "__main__":
    main(sys.argv[1])
