"""Log probabilities of the model's own distribution, for the rows that ask for them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from worker_engine.protocol import TokenLogprobs
from worker_engine.sampling.truncation import largest_at


@dataclass(frozen=True, slots=True)
class Reporter:
    """Log probabilities, float32 [n, vocab], of the n batch rows in `rows`, before any change to them."""

    rows: list[int]
    counts: list[int]
    logprobs: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, wanted: Items[int | None]) -> Reporter | None:
        """`wanted` is, for each row, how many alternatives to tell, or None for nothing."""
        pairs = [(row, count) for row, count in enumerate(wanted) if count is not None]
        if not pairs:
            return None
        rows = [row for row, _ in pairs]
        chosen = logits if len(rows) == len(logits) else logits[torch.tensor(rows, device=logits.device)]
        return cls(rows, [count for _, count in pairs], torch.log_softmax(chosen, dim=-1))

    def report(self, token_ids: torch.Tensor) -> dict[int, TokenLogprobs]:
        """By batch row, once the tokens, int64 [rows], are chosen: one copy to the host for all."""
        ids = token_ids[torch.tensor(self.rows, device=token_ids.device)].unsqueeze(1)
        most = max(self.counts)
        values, tops = largest_at(self.logprobs, most) if most else (self.logprobs[:, :0], ids[:, :0])
        own = self.logprobs.gather(1, ids)
        table = torch.cat([part.double() for part in (ids, own, values, tops)], dim=1).tolist()
        return {
            row: TokenLogprobs(
                token_id=int(line[0]),
                logprob=line[1],
                top=tuple((int(line[2 + most + rank]), line[2 + rank]) for rank in range(min(count, most))),
            )
            for row, count, line in zip(self.rows, self.counts, table, strict=True)
        }
