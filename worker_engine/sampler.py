"""The next token of each row: greedy, or drawn from the tempered, truncated distribution."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch

from worker_engine.sequence import Sequence

NUCLEUS_FIRST_TRY = 512
"""Most likely tokens sorted at first for top_p; a full sort of 49,152 costs 20 times as much."""


def sample(logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int | None]:
    """One token id per row, None where the row's logits are not finite.

    A row depends on its own logits and its own random stream only, so a seed gives the same tokens
    whatever else is in the batch.

    Args:
        logits: float32 [rows, vocab].
    """
    # One pass finds NaN and infinities alike: any of them makes the sum NaN or infinite.
    finite = torch.isfinite(logits.sum(dim=-1)).tolist()
    greedy = logits.argmax(dim=-1).tolist()
    return [
        (_draw(logits[row], sequence) if sequence.request.sampling.temperature > 0 else greedy[row])
        if finite[row]
        else None
        for row, sequence in enumerate(sequences)
    ]


def _draw(logits: torch.Tensor, sequence: Sequence) -> int:
    params = sequence.request.sampling
    probs = torch.softmax(logits.double() / params.temperature, dim=-1)
    uniform = sequence.rng.random()
    if params.top_p >= 1:
        return _invert(probs, uniform)
    values, ids = _nucleus(probs, params.top_p)
    return int(ids[_invert(values, uniform)])


def _nucleus(probs: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest set of most likely tokens whose mass reaches `top_p`: (probabilities, ids)."""
    values, ids = torch.topk(probs, min(NUCLEUS_FIRST_TRY, probs.shape[0]))
    if values.sum() < top_p:
        values, ids = torch.sort(probs, descending=True)
    before = values.cumsum(0) - values
    size = max(1, int((before < top_p).sum()))
    return values[:size], ids[:size]


def _invert(weights: torch.Tensor, uniform: float) -> int:
    """The index at which the cumulated, not necessarily normalised, weights pass `uniform`."""
    cumulated = weights.cumsum(0)
    index = torch.searchsorted(cumulated, cumulated[-1:] * uniform, right=True)
    return min(int(index), weights.shape[0] - 1)
