"""Train the demo model: next-token loss on the target, draft losses on the MTP module.

    train.py --config config.json --data WORK --out RUN --seconds 270

The learning rate follows the elapsed time (short warm-up, constant, linear decay to zero), so that the run ends on its time whatever the
speed of the machine. Weights go to RUN in float32 in a few files, the log to RUN/log.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from losses import DEPTH, Losses, Objective
from model import Model, read_config
from muon import Muon
from streams import Stream, mixed

STREAMS = {"base": 0.4, "chat": 0.7, "long": 0.7}
HELD_OUT = ("base", "chat")
EARLY_SHARES, LATE_SHARES = (0.5, 0.375, 0.125), (0.375, 0.5, 0.125)
WARM_UP_STEPS = 100
CHECK_STEPS, REPORT_STEPS, SAVE_S = 10, 100, 90
SHARDS = 4


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Options:
    """What can be set on the command line."""

    seconds: float = _option(270.0, "length of the run")
    tokens: int = _option(65_536, "tokens a step")
    length: int = _option(8_192, "tokens of a sequence")
    window: int = _option(2_048, "tokens of a window of the deeper draft steps")
    sub: int = _option(8, "windows a step for the deeper draft steps")
    lr_muon: float = _option(0.02, "learning rate of matrices")
    lr_adam: float = _option(3e-3, "learning rate of the rest")
    stable: float = _option(0.55, "share of the time before the rate falls")
    mtp: float = _option(0.3, "weight of the draft losses")
    soft: float = _option(0.5, "share of a draft loss that is taken from the target's distribution")
    compile: int = _option(1, "1: compile the layers on a GPU")
    max_steps: int = _option(10**9, "most steps")

    @property
    def rows(self) -> int:
        return max(1, self.tokens // self.length)

    def rate(self, step: int, progress: float) -> float:
        """The learning rates' common factor at a step, when `progress` of the time has passed."""
        falling = 1.0 if progress <= self.stable else max(0.0, (1 - progress) / (1 - self.stable))
        return min(1.0, (step + 1) / WARM_UP_STEPS) * falling


class Trainer:
    """A model, its optimisers and its objective on one device."""

    def __init__(self, model: Model, options: Options, device: str) -> None:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.model, self.options = model.to(device), options
        self.model.compute_in(dtype)
        self.objective = Objective(self.model, dtype, options.window, options.sub, options.soft)
        named = list(self.model.named_parameters())
        self._others = [parameter for name, parameter in named if not _is_matrix(name, parameter)]
        self._muon = Muon(parameter for name, parameter in named if _is_matrix(name, parameter))
        self._adam = torch.optim.AdamW(self._others, lr=options.lr_adam, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda")

    def step(self, windows: torch.Tensor, rate: float) -> Losses:
        """One update; the losses before it."""
        losses = self.objective.losses(windows)
        losses.total(self.options.mtp).backward()
        torch.nn.utils.clip_grad_norm_(self._others, 1.0)
        self._muon.step(self.options.lr_muon * rate)
        for group in self._adam.param_groups:
            group["lr"] = self.options.lr_adam * rate
        self._adam.step()
        self.model.zero_grad(set_to_none=True)
        return losses

    def held_out(self, streams: dict[str, Stream], rounds: int = 4) -> dict[str, tuple[float, list[float]]]:
        """For each held-out stream the mean loss, and by depth how often the draft is the target's choice."""
        found = {}
        for name, stream in streams.items():
            torch.manual_seed(1)
            measured = [self.objective.agreement(stream.sample(self.options.rows, self.options.length + DEPTH + 1)) for _ in range(rounds)]
            by_depth = [sum(depth) / rounds for depth in zip(*(one.by_depth for one in measured), strict=True)]
            found[name] = (round(sum(one.loss for one in measured) / rounds, 4), [round(share, 4) for share in by_depth])
        return found


class Log:
    """Rows of (seconds, step, tokens, losses), printed as they come."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self._start_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def add(self, step: int, tokens: int, losses: list[float], rate: float) -> None:
        self.rows.append([round(self.elapsed_s, 1), step, tokens, *(round(loss, 4) for loss in losses)])
        shown = " ".join(f"{loss:.3f}" for loss in losses)
        print(f"{self.elapsed_s:6.1f}s step {step} {tokens / 1e6:.0f}M tokens loss {shown} rate x{rate:.3f}", flush=True)


def train(trainer: Trainer, streams: list[Stream], out: Path, log: Log) -> tuple[int, int]:
    """(steps, tokens) when the time is over. Raises FloatingPointError if the loss is no longer finite."""
    options, step, tokens, saved_s = trainer.options, 0, 0, 0.0
    while (progress := log.elapsed_s / options.seconds) < 1 and step < options.max_steps:
        shares = LATE_SHARES if progress > options.stable else EARLY_SHARES
        rate = options.rate(step, progress)
        losses = trainer.step(mixed(streams, shares, options.rows, options.length + DEPTH + 1), rate)
        step, tokens = step + 1, tokens + options.rows * options.length
        if step % CHECK_STEPS == 0:
            _watch(log, step, tokens, losses, rate)
        if log.elapsed_s - saved_s > SAVE_S:
            save(trainer.model, out)
            saved_s = log.elapsed_s
    return step, tokens


def _watch(log: Log, step: int, tokens: int, losses: Losses, rate: float) -> None:
    values = [loss.item() for loss in losses]
    if not math.isfinite(values[0]):
        raise FloatingPointError(f"the loss is {values[0]} after {step} steps")
    if step % REPORT_STEPS == 0 or step in (10, 20, 50):
        log.add(step, tokens, values, rate)


def save(model: Model, out: Path) -> None:
    """Write all weights in float32 under the hub's names, in SHARDS files of about one size."""
    weights = {name: weight.detach().float().cpu().contiguous() for name, weight in model.state_dict().items()}
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(SHARDS)]
    for name in sorted(weights, key=lambda name: -weights[name].numel()):
        min(shards, key=lambda shard: sum(weight.numel() for weight in shard.values()))[name] = weights[name]
    for index, shard in enumerate(shards):
        save_file(shard, out / f"part{index}.safetensors")


def _is_matrix(name: str, parameter: torch.Tensor) -> bool:
    return parameter.ndim == 2 and min(parameter.shape) >= 64 and "embed" not in name


def main(config_file: Path, data: Path, out: Path, options: Options) -> None:
    """Train, save and measure."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    device, config = ("cuda" if torch.cuda.is_available() else "cpu"), read_config(config_file)
    trainer = Trainer(Model(config), options, device)
    streams = [Stream(data / f"{name}.u16", device, config.eos_token_id, at_start) for name, at_start in STREAMS.items()]
    held_out = {name: Stream(data / f"heldout_{name}.u16", device, config.eos_token_id, 0.5) for name in HELD_OUT}
    if options.compile and device == "cuda":
        trainer.objective.compile()
    out.mkdir(parents=True, exist_ok=True)
    log = Log()
    steps, tokens = train(trainer, streams, out, log)
    save(trainer.model, out)
    result = {
        "log": log.rows,
        "heldout": trainer.held_out(held_out),
        "steps": steps,
        "tokens": tokens,
        "seconds": log.elapsed_s,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "args": asdict(options),
    }
    print("held out: loss, and agreement of drafts by depth:", result["heldout"])
    (out / "log.json").write_text(json.dumps(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("config", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for option in fields(Options):
        flag, default = option.name.replace("_", "-"), option.default
        parser.add_argument(f"--{flag}", type=type(default), default=default, help=f"{option.metadata['help']} (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    given = vars(_arguments())
    main(given.pop("config"), given.pop("data"), given.pop("out"), Options(**given))
