"""A loaded model with what serving it takes. Knows no request."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.bank.bank import Bank
from forerun.decode.compiled import NO_COMPILER, StepTable
from forerun.decode.depth import WARNING, DepthPolicy
from forerun.models.base import Family
from forerun.state.layout import Limits
from forerun.text.prompt import Prompter
from forerun.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """Made on the thread that owns MLX. memory_bytes: the device's. max_running: sequences at once. notes: of loading."""

    steps: StepTable
    bank: Bank
    prompter: Prompter
    policy: DepthPolicy
    limits: Limits
    memory_bytes: int
    max_running: int
    notes: tuple[str, ...]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prompter.tokenizer

    @property
    def family(self) -> Family:
        return self.steps.family

    @property
    def degraded_reasons(self) -> tuple[str, ...]:
        """Why /health is degraded, as messages; empty if it is not."""
        reasons = [f"{count} records could not be written ({reason})" for reason, count in self.bank.stats.skipped.items()]
        if self.bank.off_reason:
            reasons.append(self.bank.off_reason)
        if self.policy.acceptance.is_failing:
            reasons.append(WARNING)
        if self.steps.eager_reason == NO_COMPILER:
            reasons.append("steps run eager: MLX compiles them with g++; install it, or set --eager")
        return tuple(reasons)
