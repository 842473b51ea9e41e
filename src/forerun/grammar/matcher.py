"""What a grammar says of an answer's next token. The interface alone: implementations are in `grammar/`."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """The state of a grammar after the tokens accepted so far. A pure function of them, whatever was accepted and rolled back before.

    Stop tokens are tokens like others: one is allowed where the answer may end, accepted and rolled back; after it only stop tokens are.
    """

    def allowed(self) -> NDArray[np.bool_] | None:
        """The tokens that may come next, [vocab]; None if all may. At least one may."""

    def accept(self, token: int) -> None:
        """Advance by a token. Raises ValueError for one that is not allowed; the state is then unchanged."""

    def rollback(self, num: int) -> None:
        """Take back the last `num` accepted tokens."""

    def forced(self) -> list[int]:
        """Tokens that come next if the answer's text, as far as the grammar determines it, is split as the tokenizer would; [] if none."""
