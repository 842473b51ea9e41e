"""Does every answer have the form that its request sets, at every draft depth, at temperature 0 and 1, alone and four at once?

    python benchmarks/structured_output.py [--model FOLDER_OR_FILE] [--answers 500] [--depths 0 auto 2] [--max-tokens 400] [--dry-run]
                                           [--out FILE]

Forms: the schemas of the JSON-Schema-Test-Suite that the server enforces in full (it refuses the others with the path of what it does not
hold; their number is in the result), and calls of 50 tool lists of recorded clients. Each answer is judged by the `jsonschema` package. An
answer that its limit cut says so, and is counted apart. A seeded or greedy answer must be the same at every depth, alone and with others.
Exit code 1 if an answer is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from evidence import evidence, model_of, write
from forerun.demo.server import Server, serve_command
from forerun.models.load import DEMO_MODEL
from structured.requests import FormRequest, mixed, of_schemas, of_tools, suite_schemas, tool_lists

PROMPTS = ("Give an example.", "Find the bug in src/calc.py and mend it.", "What is there in this folder?", "Write something long.")
AT_ONCE = (1, 4)
NUM_LISTS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--depths", nargs="+", default=["0", "auto", "2"])
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--no-tools", action="store_true", help="for a model whose template has none")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would judge {options.answers} answers of {options.model.name} at depths {', '.join(options.depths)}")
        return
    result = measure(options)
    write(options.out, result)
    print(json.dumps({name: value for name, value in result.items() if name not in ("config", "machine", "forms")}, indent=1))
    sys.exit(bool(result["wrong"] or result["different"] or result["errors"]))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Counts, and each wrong answer."""
    with TemporaryDirectory() as folder:
        arms, line = dict[str, dict[str, Any]](), dict[str, Any]()
        asked, num_refused = list[FormRequest](), 0
        for depth in options.depths:
            home = Path(folder) / depth
            home.mkdir()
            server = Server.start([*serve_command(options.model, home / "bank"), "--draft-depth", depth], home / "log")
            line = server.line
            if not asked:
                asked, num_refused = forms(server.url, options)
            num = -(-options.answers // (len(options.depths) * len(AT_ONCE)))
            for at_once in AT_ONCE:
                arms[f"depth {depth}, {at_once} at once"] = answers(server.url, asked, num, at_once, options)
            server.stop()
    config = {name: str(value) for name, value in vars(options).items() if name not in ("out", "dry_run")}
    head = evidence(kernels=line["kernels"], model_digest=digest_of(options.model), numerics=line["numerics"], config=config)
    return head | {"model": {"name": options.model.name}, "forms": [each.name for each in asked], "refused": num_refused} | judged(arms)


def digest_of(model: Path) -> str:
    """Of a checkpoint folder, as a server names it; of a GGUF file over its bytes."""
    return sha256(model.read_bytes()).hexdigest() if model.is_file() else model_of(model)["digest"]


def forms(url: str, options: argparse.Namespace) -> tuple[list[FormRequest], int]:
    """The forms that the server takes, and how many it refuses."""
    of_suite = of_schemas(suite_schemas())
    taken = [each for each in of_suite if ask(url, each, 0, max_tokens=1)["status"] == 200]
    tools = [] if options.no_tools else of_tools(tool_lists()[:NUM_LISTS])
    random.Random(0).shuffle(taken)
    return mixed(taken, tools), len(of_suite) - len(taken)


def answers(url: str, asked: list[FormRequest], num: int, at_once: int, options: argparse.Namespace) -> dict[str, Any]:
    """`num` answers by form and sampling."""
    work = [(asked[i % len(asked)], i) for i in range(num)]
    with ThreadPoolExecutor(at_once) as pool:
        return dict(pool.map(lambda each: (f"{each[0].name}, {each[1]}", ask(url, *each, max_tokens=options.max_tokens)), work))


def ask(url: str, asked: FormRequest, index: int, *, max_tokens: int) -> dict[str, Any]:
    """One answer: its status, finish, text, and what is wrong with it."""
    body = {
        "messages": [{"role": "user", "content": PROMPTS[index % len(PROMPTS)]}],
        "temperature": index // len(PROMPTS) % 2,
        "seed": index,
        "max_tokens": max_tokens,
        "forerun": {"bank": "bypass"},
    }
    response = httpx.post(f"{url}/v1/chat/completions", json=body | asked.fields, timeout=600)
    if response.status_code != httpx.codes.OK:
        return {"status": response.status_code, "error": response.text[:300]}
    choice = response.json()["choices"][0]
    error = "" if choice["finish_reason"] == "length" else asked.check(choice["message"])
    return {"status": 200, "finish": choice["finish_reason"], "message": _comparable(choice["message"]), "error": error}


def _comparable(message: dict[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return json.dumps([message.get("reasoning_content"), message["content"], calls])


def judged(arms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts over all arms; the answers that differ between them."""
    every = [(arm, name, each) for arm, own in arms.items() for name, each in own.items()]
    served = [each for each in every if each[2]["status"] == httpx.codes.OK]
    first = next(iter(arms.values()))
    different = [f"{arm}: {name}" for arm, name, each in served if name in first and each.get("message") != first[name].get("message")]
    finishes = [each["finish"] for _, _, each in served]
    return {
        "answers": len(served),
        "finishes": {finish: finishes.count(finish) for finish in sorted(set(finishes))},
        "wrong": [f"{arm}: {name}: {each['error']}" for arm, name, each in served if each["error"]],
        "different": different,
        "errors": [f"{arm}: {name}: {each['error']}" for arm, name, each in every if each["status"] != httpx.codes.OK],
    }


if __name__ == "__main__":
    main()
