"""Does each real client finish a whole task against a server, and what of each later turn was prefilled?

    python benchmarks/clients.py --clients FOLDER [--install] [--only NAME,...] [--keep FOLDER] [--dry-run] [--out FILE]

A client fixes a bug, adds a function and sums up, in three turns of one conversation, with its own tools, in a home and a git repository
of its own. Its settings are those of `forerun connect`. The server restarts before the last turn, so that the SSD must restore it. The
server is real but for its model, which writes scripted answers (client_task/script.py) through the fake family of the tests: nothing here
measures speed. Where the system permits it, all of it runs in a network namespace that has loopback alone.

Clients: opencode, Codex, Claude Code, pi and aider in FOLDER (`--install` puts the pinned versions there with npm and pip), and the
libraries `openai` and `anthropic` of this interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from client_task import reuse, server, task
from client_task.programs import CLIENTS, PROGRAMS, Client, Program, environment, install
from forerun.config import Config, prepare
from forerun.demo.server import Server, request_log

TURN_LIMIT_S = 240.0
CONNECT_LIMIT_S = 60.0
TAIL_CHARS = 2000
LOOPBACK_ALONE = ("unshare", "--net", "--map-root-user")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=Path, help="the folder in which the programs are installed")
    parser.add_argument("--install", action="store_true", help="install them there first")
    parser.add_argument("--only", default=",".join(CLIENTS), help="which clients, in order")
    parser.add_argument("--keep", type=Path, help="a new folder for all homes, repositories and logs")
    parser.add_argument("--loopback-alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(CLIENTS):
        parser.error(f"unknown clients: {', '.join(sorted(unknown))}")
    if options.dry_run:
        pinned = ", ".join(f"{each.package} {each.version}" for each in PROGRAMS)
        print(f"would have {', '.join(names)} play {len(task.PROMPTS)} turns each (pinned: {pinned})")
        return
    if options.install and not options.clients:
        parser.error("--install needs --clients FOLDER")
    if options.install:
        install(options.clients)
    if not options.loopback_alone and can_isolate():
        again = [sys.executable, *(each for each in sys.argv if each != "--install"), "--loopback-alone"]
        os.execvp(LOOPBACK_ALONE[0], [*LOOPBACK_ALONE, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *again])
    measure(options, names)


def can_isolate() -> bool:
    """Whether this process may have a network of its own."""
    has_commands = all(map(shutil.which, ("unshare", "ip")))
    return has_commands and subprocess.run([*LOOPBACK_ALONE, "true"], capture_output=True, check=False).returncode == 0


def measure(options: argparse.Namespace, names: list[str]) -> None:
    prepare(Config.model_validate({}))
    from evidence import evidence, write

    clients = (options.clients or Path("clients")).resolve()
    with tempfile.TemporaryDirectory(prefix="forerun-clients-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        rows = {name: played(CLIENTS[name], clients, folder / name) for name in names}
    config: dict[str, Any] = {"prompts": task.PROMPTS, "network": "loopback alone" if options.loopback_alone else "as the machine has it"}
    config |= {"turn_limit_s": TURN_LIMIT_S, "context_tokens": server.CONTEXT_TOKENS, "enough_frac": reuse.ENOUGH_FRAC}
    head = evidence(kernels="none: scripted", model_digest="none: scripted", numerics="exact", config=config)
    holds = all(row["version"] and row["is_done"] and row["reuses_enough"] and row["resumes_from_ssd"] for row in rows.values())
    write(options.out, head | {"model": {"name": server.NAME, "digest": None, "quantisation": None}, "holds": holds, "clients": rows})


def played(client: Client, clients: Path, folder: Path) -> dict[str, Any]:
    """The row of a client: its turns and what they show together."""
    version = client.installed(clients)
    if version is None:
        print(f"{client.name}: not installed in {clients}")
        return {"version": None}
    session = Session(client, clients, folder)
    try:
        turns = [session.turn(number) for number in range(len(task.PROMPTS))]
    finally:
        session.server.stop()
    prompts, start = lines(folder / "prompts.jsonl"), 0
    rows = reuse.requests(lines(request_log(folder / "bank")), prompts)
    for turn in turns:
        stop = turn.pop("num_prompts")
        turn["requests"], start = [row for row in rows[start:stop] if row], stop
    row = summary(version, turns)
    print(f"{client.name} {version}: " + ", ".join(f"{name} {value}" for name, value in row.items() if name not in ("version", "turns")))
    return row


class Session:
    """A client's home and repository, and the server that it talks to."""

    def __init__(self, client: Client, clients: Path, folder: Path) -> None:
        self._client, self._clients, self._folder = client, clients, folder
        self._home, self._work = folder / "home", folder / "calc"
        self._home.mkdir(parents=True)
        task.create(self._work)
        self._command = server.command(folder, self._work, 0)
        self.server = Server.start(self._command, folder / "server.log")

    def turn(self, number: int) -> dict[str, Any]:
        """Have the client play a turn; the last one begins with a restart of the server at its address."""
        if number == len(task.PROMPTS) - 1:
            self.server.wait_until_written()
            self.server.stop()
            self.server = Server.start([*self._command[:-1], self.server.url.rpartition(":")[2]], self._folder / "server.log")
        num_responses = len(lines(self._folder / "http.jsonl"))
        begun_s = time.monotonic()
        status, output, errors = self._play(number)
        seconds = time.monotonic() - begun_s
        self.server.wait_until_written()
        responses = [each for each in lines(self._folder / "http.jsonl")[num_responses:] if each["path"] != "/health"]
        is_done = task.is_done(number, self._work, output)
        print(f"{self._client.name} turn {number + 1}: exit status {status}, {'done' if is_done else 'NOT DONE'}, {seconds:.0f} s")
        return {
            "exit_status": status,
            "is_done": is_done,
            "seconds": round(seconds, 1),
            "num_responses": len(responses),
            "error_responses": [each for each in responses if not 200 <= each["status"] < 400],
            **({} if is_done and status == 0 else {"output": output[-TAIL_CHARS:], "errors": errors[-TAIL_CHARS:]}),
            "num_prompts": len(lines(self._folder / "prompts.jsonl")),
        }

    def _play(self, number: int) -> tuple[int | None, str, str]:
        """Exit status (None of one that was stopped at the limit), output and errors of the client."""
        client = self._client
        connection: dict[str, Any] = {"url": self.server.url}
        variables = environment(self._home, None)
        if isinstance(client, Program):
            connection = self._connect()
            variables = environment(self._home, client.binaries(self._clients)) | dict(client.environment)
            variables |= {name: value.replace("$HOME", str(self._home)) for name, value in connection["environment"].items()}
        command = client.command(connection, self._clients, self._home, task.PROMPTS[number], is_first=number == 0)
        logs = [self._folder / f"turn-{number + 1}.{kind}" for kind in ("out", "err")]
        with logs[0].open("wb") as output, logs[1].open("wb") as errors:
            process = subprocess.Popen(
                command, cwd=self._work, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
            try:
                status: int | None = process.wait(TURN_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = None
        return status, logs[0].read_text(errors="replace"), logs[1].read_text(errors="replace")

    def _connect(self) -> dict[str, Any]:
        """What `forerun connect` gives for the server, its settings file written."""
        command = [sys.executable, "-m", "forerun.cli", "connect", self._client.name, "--url", self.server.url, "--write", "--json"]
        variables = os.environ | {"HOME": str(self._home)}
        ran = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, input="y\n", timeout=CONNECT_LIMIT_S)
        connection: dict[str, Any] = json.loads(ran.stdout)
        return connection


def summary(version: str, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """What the turns show together.

    only_grows: every later request appends to an earlier one; changes: where the others differ from what was stored.
    resumes_from_ssd: the first request after the restart does, of those with tools if the client has any.
    """
    later = [row for turn in turns[1:] for row in turn["requests"]]
    changed = [row for row in later if row["append_only_tokens"] is None]
    resumed = sorted(turns[-1]["requests"], key=lambda row: not row["has_tools"])[:1]
    return {
        "version": version,
        "is_done": all(turn["is_done"] and turn["exit_status"] == 0 for turn in turns),
        "only_grows": not changed,
        "changes": [row["miss_at"] for row in changed],
        "reuses_enough": reuse.is_enough(later),
        "resumes_from_ssd": any(row["source"] == "ssd" for row in resumed),
        "num_requests": sum(len(turn["requests"]) for turn in turns),
        "later_prompt_tokens": sum(row["prompt_tokens"] for row in later),
        "later_computed_tokens": sum(row["computed_tokens"] or 0 for row in later),
        "error_statuses": sorted({each["status"] for turn in turns for each in turn["error_responses"]}),
        "turns": turns,
    }


def lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, none of one that is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
