"""Log probabilities of the model's own distribution, for the rows that request them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch

from kernels.transfer import to_device
from worker_engine.protocol import TokenLogprobs
from worker_engine.sampling.truncation import largest_at


@dataclass(frozen=True, slots=True)
class Reporter:
    """Log probabilities, float32 [n, vocab], of the n batch rows in `rows`, before any change to their
    logits.
    """

    rows: list[int]
    counts: list[int]
    logprobs: torch.Tensor

    @classmethod
    def build(cls, logits: torch.Tensor, wanted: Items[int | None]) -> Reporter | None:
        """Build the reporter; None if no row requests log probabilities.

        Args:
            logits: float32 [rows of the batch, vocab].
            wanted: per row, the number of alternatives to report, or None for nothing.
        """
        pairs = [(row, count) for row, count in enumerate(wanted) if count is not None]
        if not pairs:
            return None
        rows = [row for row, _ in pairs]
        chosen = logits if len(rows) == len(logits) else logits[_index(rows, logits.device)]
        return cls(rows, [count for _, count in pairs], torch.log_softmax(chosen, dim=-1))

    def table(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return float64 [n, 2 + 2 * most] for the chosen tokens, int64 [rows of the batch].

        Each line is the token, its logprob, the largest logprobs and their tokens. `read` parses it.
        """
        ids = token_ids[_index(self.rows, token_ids.device)].unsqueeze(1)
        most = max(self.counts)
        values, tops = largest_at(self.logprobs, most) if most else (self.logprobs[:, :0], ids[:, :0])
        own = self.logprobs.gather(1, ids)
        return torch.cat([part.double() for part in (ids, own, values, tops)], dim=1)

    def read(self, table: list[float]) -> dict[int, TokenLogprobs]:
        """Return the log probabilities by batch row, from the table's values in row-major order."""
        most = max(self.counts)
        width = 2 + 2 * most
        lines = [table[first : first + width] for first in range(0, len(table), width)]
        return {
            row: TokenLogprobs(
                token_id=int(line[0]),
                logprob=line[1],
                top=tuple((int(line[2 + most + rank]), line[2 + rank]) for rank in range(min(count, most))),
            )
            for row, count, line in zip(self.rows, self.counts, lines, strict=True)
        }


def _index(rows: list[int], device: torch.device) -> torch.Tensor:
    return to_device(np.array(rows, dtype=np.int64), device)
