"""The next token of each row: greedy, or drawn from the tempered, truncated distribution."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from worker_engine.protocol import TokenLogprobs
from worker_engine.sampling.edits import edit
from worker_engine.sampling.logprobs import Reporter
from worker_engine.sampling.truncation import (
    Draws,
    draw,
    most_likely,
    to_weights,
    truncate,
    truncates,
)
from worker_engine.sequence import Sequence
from worker_engine.structured_output import MaskBatch


@dataclass(frozen=True, slots=True)
class Sampled:
    """One row's next token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """Chooses the tokens of a batch in one pass of tensor operations, and one copy to the host.

    A row depends on its own logits and its own random stream only, so a seed gives the same tokens
    whatever else is in the batch.
    """

    def __init__(self, masks: MaskBatch) -> None:
        self._masks = masks

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[Sampled | None]:
        """One token per row, None where the row's logits are not finite.

        Args:
            logits: float32 [rows, vocab]; they are changed in place where a request asks for it.
        """
        # One pass finds NaN and infinities alike: any of them makes the sum NaN or infinite.
        finite = torch.isfinite(logits.sum(dim=-1))
        rows = [sequence.sampling for sequence in sequences]
        reporter = None
        if all(row.plain for row in rows):
            ids = most_likely(logits)
        else:
            reporter = Reporter.of(logits, [row.params.logprobs for row in rows])
            edit(logits, sequences, self._masks)
            ids = _choose(logits, sequences)
        chosen = torch.where(finite, ids, -1).tolist()
        reports = {} if reporter is None else reporter.report(ids)
        return [
            None if token < 0 else Sampled(token, reports.get(index)) for index, token in enumerate(chosen)
        ]


def _choose(logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
    params = [sequence.sampling.params for sequence in sequences]
    random = [row for row, item in enumerate(params) if not item.greedy]
    if not random:
        return most_likely(logits)
    ids = most_likely(logits) if len(random) < len(params) else torch.empty_like(logits[:, 0]).long()
    numbers = [sequences[row].sampling.uniform(sequences[row].num_completion_tokens) for row in random]
    draws = Draws.of([params[row] for row in random], numbers, logits.shape[1], logits.device)
    weights = to_weights(_take(logits, random), draws.temperature)
    cut = [place for place, row in enumerate(random) if truncates(params[row])]
    if len(cut) == len(random):
        truncate(weights, draws)
    elif cut:
        at = torch.tensor(cut, device=logits.device)
        weights[at] = truncate(weights[at], draws.take(at))
    ids[torch.tensor(random, device=logits.device)] = draw(weights, draws)
    return ids


def _take(values: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """The rows named, a copy unless they are all."""
    return values if len(rows) == len(values) else values[torch.tensor(rows, device=values.device)]
