"""Log probabilities of a prompt's tokens, each given the tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from kernels.transfer import to_device
from worker_engine.protocol import TokenLogprobs
from worker_engine.readers.base import Findings, Predict
from worker_engine.sampling.truncation import largest_at

BLOCK_ROWS: Final = 64
"""Positions whose logits are in memory at once: 64 MiB for a vocabulary of 262,144."""


class PromptLogprobs:
    """Reads prompt log probabilities. Position i predicts token i + 1, so the first token has none."""

    def __init__(self, token_ids: Sequence[int], top: int) -> None:
        """`top`: number of likely alternatives reported per token."""
        self._token_ids, self._top = token_ids, top
        self.start, self.stop = 0, len(token_ids) - 1
        self._tables: list[torch.Tensor] = []

    def take(self, hidden: torch.Tensor, predict: Predict) -> None:
        for block in torch.split(hidden, BLOCK_ROWS):
            ids = self._token_ids[self.start + 1 : self.start + 1 + len(block)]
            self._tables.append(self._table(predict(block), ids))
            self.start += len(block)

    def _table(self, logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        """Return float64 [rows, 3 + 2 * top]: token, rank, logprob, the top's logprobs, the top's tokens."""
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = to_device(np.array(ids, dtype=np.int64), logits.device).unsqueeze(1)
        own = logprobs.gather(1, tokens)
        rank = (logprobs > own).sum(dim=-1, keepdim=True) + 1
        most = min(self._top, logits.shape[1])
        values, tops = largest_at(logprobs, most) if most else (own[:, :0], tokens[:, :0])
        return torch.cat([part.double() for part in (tokens, rank, own, values, tops)], dim=1)

    def finish(self) -> Findings | None:
        if not self._tables:
            return Findings(prompt_logprobs=())
        table = torch.cat(self._tables)
        if bool(table[:, 2].isnan().any()):
            return None
        most = (table.shape[1] - 3) // 2
        positions = (
            TokenLogprobs(
                token_id=int(line[0]),
                logprob=line[2],
                top=tuple((int(line[3 + most + index]), line[3 + index]) for index in range(most)),
                rank=int(line[1]),
            )
            for line in table.tolist()
        )
        return Findings(prompt_logprobs=tuple(positions))
