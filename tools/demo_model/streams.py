"""Windows of the token streams that corpus.py packed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class Stream:
    """Random windows of one stream; a share `at_start` of them begins where a document begins. The stream lies on `device`."""

    def __init__(self, path: Path, device: str, end_of_document: int, at_start: float) -> None:
        tokens = np.fromfile(path, dtype=np.uint16)
        starts = np.concatenate([[0], np.flatnonzero(tokens == end_of_document) + 1])
        self.tokens, self._starts = torch.from_numpy(tokens.astype(np.int32)).to(device), torch.from_numpy(starts).to(device)
        self._at_start = at_start

    def sample(self, count: int, length: int) -> Tensor:
        """Token ids [count, length]."""
        device, limit = self.tokens.device, len(self.tokens) - length
        anywhere = torch.randint(0, limit, (count,), device=device)
        starts = self._starts[torch.randint(0, len(self._starts), (count,), device=device)]
        is_start = (torch.rand(count, device=device) < self._at_start) & (starts < limit)
        first = torch.where(is_start, starts, anywhere)
        return self.tokens[first[:, None] + torch.arange(length, device=device)].long()


def mixed(streams: Sequence[Stream], shares: Sequence[float], count: int, length: int) -> Tensor:
    """Token ids [count, length] of windows of all streams by their shares, in a random order; the first stream takes the remainder."""
    counts = [int(count * share + 0.01) for share in shares]
    counts[0] += count - sum(counts)
    windows = torch.cat([stream.sample(rows, length) for stream, rows in zip(streams, counts, strict=True) if rows])
    return windows[torch.randperm(len(windows), device=windows.device)]
