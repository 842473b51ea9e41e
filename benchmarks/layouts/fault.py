"""A server with the fault of the original report, for `benchmarks/restore_layout.py` to compare with: `python fault.py serve ...`

Restores from SSD are built in the paged decode layout, whatever the caller requests; prefill and decoding run there, in steps that are not
compiled. Restores from RAM are correct, and nothing fails: so it went unnoticed for 50 hours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forerun.cli import main
from forerun.config import Config, prepare

REASON = "context_above_threshold"


def spoil() -> None:
    """Patch the fault into the package of this process."""
    from forerun.bank import restore
    from forerun.decode.compiled import StepTable
    from forerun.engine import sequence
    from forerun.state.conversion import relayout_as_chosen
    from forerun.state.layout import PAGE_TOKENS, Paged

    load_as_asked = restore._load

    def load(context: Any, plan: Any) -> Any:
        return load_as_asked(replace(context, layout=Paged(PAGE_TOKENS)), plan)

    def arrange(cache: Any, layout: Any) -> Any:
        return cache if isinstance(cache.layout, Paged) else relayout_as_chosen(cache, layout)

    def falling_back(run: Any) -> Any:
        def step(table: Any, *inputs: Any) -> Any:
            (cache,), chosen = inputs[-3], table.eager_reason
            table.eager_reason = REASON if isinstance(cache.layout, Paged) else chosen
            try:
                return run(table, *inputs)
            finally:
                table.eager_reason = chosen

        return step

    restore._load = load
    sequence.relayout_as_chosen = arrange  # type: ignore[attr-defined]
    StepTable.forward, StepTable.draft = falling_back(StepTable.forward), falling_back(StepTable.draft)  # type: ignore[method-assign]


def serve() -> None:
    """Run `forerun` with the fault. MLX is imported after `prepare`, as always."""
    prepare(Config.model_validate({}))
    spoil()
    main()


if __name__ == "__main__":
    serve()
