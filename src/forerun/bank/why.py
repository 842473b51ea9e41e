"""Why a prompt did not get more of its state back: what went wrong on the way, in words. Knows no tier and no text."""

from __future__ import annotations

from forerun.bank.live import Live
from forerun.bank.match import Match, Plan
from forerun.errors import DamagedRecordError

_LOOKS = 3


class Problems:
    """What went wrong while a prompt's state was looked for. failed_marks, failed_lives: not to be tried again for this prompt."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.failed_marks: set[str] = set()
        self.failed_lives: set[int] = set()
        self._vanished = 0

    def add(self, error: Exception, plan: Plan | None) -> None:
        """Note an error, of this plan if it was one plan's."""
        if isinstance(error, KeyError):  # evicted, or replaced by a longer one, since it was looked up: look again, but not for ever
            self._vanished += 1
            if self._vanished < _LOOKS:
                return
        else:
            self.words.append(f"{'set aside' if isinstance(error, DamagedRecordError) else 'the bank failed'}: {error}")
        if plan is not None:
            self.failed_marks.add(plan.mark.key)

    def pass_over(self, live: Live, error: Exception) -> None:
        """Note that a live conversation cannot be shared now."""
        self.words.append(f"a conversation that begins alike could not be copied: {error or type(error).__name__}")
        self.failed_lives.add(id(live))


def reason(problems: Problems, reused: int, found: Match | None, in_ram: int) -> str:
    """Why only `reused` tokens were, "" if nothing more was to be had. in_ram: how many a live conversation has in common."""
    shared = max(found.shared if found else 0, in_ram)
    parts = list(problems.words)
    if shared == 0 and not parts:
        parts.append("no stored conversation begins like this prompt")
    elif reused < shared:
        where = f"the last mark before that is at {reused}" if reused else "no mark lies before that"
        parts.append(f"the prompt and the stored conversation are the same for {shared} tokens; {where}")
    return "; ".join(parts)
