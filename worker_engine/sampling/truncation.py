"""Samples tokens from tempered, truncated distributions: whole batches as tensors, without loops over rows.

Truncation is vLLM's, in its order: `min_p`, then `top_k`, then `top_p`, each over the tokens that remain. A
sample inverts the cumulative distribution at one uniform number per row, which the host generates.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch

from kernels.transfer import to_device
from worker_engine.protocol import SamplingParams

BLOCK: Final = 64
"""Width of the blocks that rows are searched by: block maxima and sums take one pass at memory speed.

32 rows of 49,152 on one core: 64 largest in 1.4 ms by blocks against 2.6 ms by `topk`, a row's largest in 0.3
against 1.3 ms by `argmax`.
"""
FIRST_TRY: Final = {"cpu": 64}
"""Number of most likely tokens tried first, on a CPU; if the cutoff is further down, a search finds it.

A GPU would have to wait to learn whether they suffice; not yet measured on one.
"""
LEAST: Final = 1e-30
"""Any truncation drops tokens whose weight, relative to the most likely token's, is below this."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Sampling parameters of n rows, float64 [n] and int64 [n]; `top_k` is `vocab` where it is off.

    Attributes:
        counted, nucleus: True if any row has a top_k, or a top_p; known on the host without a device sync.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor
    vocab: int
    counted: bool
    nucleus: bool

    @classmethod
    def build(
        cls, params: Items[SamplingParams], uniforms: Items[float], vocab: int, device: torch.device
    ) -> Self:
        rows = [
            (item.temperature, min(item.top_k or vocab, vocab), item.top_p, item.min_p, number)
            for item, number in zip(params, uniforms, strict=True)
        ]
        table = to_device(np.array(rows, dtype=np.float64), device)
        temperature, top_k, top_p, min_p, uniform = table.unbind(1)
        counted = any(row[1] < vocab for row in rows)
        nucleus = any(row[2] < 1 for row in rows)
        return cls(temperature, top_k.long(), top_p, min_p, uniform, vocab, counted, nucleus)

    def take(self, rows: torch.Tensor) -> Draws:
        return Draws(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.uniform[rows],
            self.vocab,
            self.counted,
            self.nucleus,
        )


def truncates(params: SamplingParams) -> bool:
    """Return True if `top_p`, `top_k` or `min_p` drops tokens before sampling."""
    return params.top_p < 1 or params.top_k > 0 or params.min_p > 0


def to_weights(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Turn logits, float32 [n, vocab], in place into weights exp((x - max) / temperature); the largest is 1.

    In place, because on a CPU new memory costs more than the arithmetic: 15 against 2 ms for 32 rows of
    49,152.
    """
    logits -= logits.amax(dim=-1, keepdim=True)
    logits /= temperature.float().unsqueeze(1)
    return logits.exp_()


def draw(weights: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Sample one token id per row, int64 [n], from weights of all tokens, float32 [n, vocab]."""
    if weights.shape[1] % BLOCK:
        return _invert(weights.double(), draws.uniform)
    blocks = weights.view(len(weights), -1, BLOCK)
    sums = blocks.sum(dim=-1).double()
    cumulated = sums.cumsum(-1)
    block = _invert(sums, draws.uniform).unsqueeze(1)
    mass = sums.gather(1, block)
    before = cumulated.gather(1, block) - mass
    # Given its block, the remainder of the uniform number is uniform within that block.
    fraction = (draws.uniform.unsqueeze(1) * cumulated[:, -1:] - before) / mass
    members = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1).double()
    return block.squeeze(1) * BLOCK + _invert(members, fraction.squeeze(1).clamp(0, 1))


def truncate(weights: torch.Tensor, draws: Draws, first_try: int | None = None) -> torch.Tensor:
    """Zero in place the tokens that each row's truncation drops from float32 [n, vocab]; rescales the rows.

    Ties with the last kept token are kept too. Weights below 1e-30 of the most likely token count as zero.
    """
    size = FIRST_TRY.get(weights.device.type, 0) if first_try is None else first_try
    mass = _mass(weights)
    if 0 < size < weights.shape[1]:
        least, enough = _least_among(largest(weights, size), mass, draws)
        uncertain = (~enough).nonzero().squeeze(1)
        if len(uncertain):
            least[uncertain] = _least_by_search(weights[uncertain], mass[uncertain], draws.take(uncertain))
    else:
        least = _least_by_search(weights, mass, draws)
    return _cut(weights, least.clamp(min=LEAST))


def _least_among(values: torch.Tensor, mass: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest weight that each row keeps, float32 [n], and whether it is certain, bool [n].

    Args:
        values: the largest weights of each row, float32 [n, size], in descending order.
        mass: the sum of all weights of each row, float64 [n].
    """
    size = values.shape[1]
    last = values.gather(1, (draws.top_k.clamp(max=size) - 1).unsqueeze(1)).squeeze(1)
    floor = torch.maximum(draws.min_p.float(), last * (draws.top_k < draws.vocab))
    kept = (values * (values >= floor.unsqueeze(1))).double()
    cumulated = kept.cumsum(-1)
    # If only top_p applies, the total mass is known without looking at every token.
    alone = (draws.min_p == 0) & (draws.top_k == draws.vocab)
    goal = draws.top_p * torch.where(alone, mass, cumulated[:, -1])
    count = (((cumulated - kept) < goal.unsqueeze(1)) & (kept > 0)).sum(-1).clamp(min=1)
    nucleus = values.gather(1, (count - 1).unsqueeze(1)).squeeze(1)
    known = (draws.top_k <= size) | (draws.top_k == draws.vocab)
    covered = (values[:, -1] < floor) | (alone & (cumulated[:, -1] >= goal))
    least = torch.where(draws.top_p < 1, torch.maximum(nucleus, floor), floor)
    return least, known & (covered | (draws.top_p == 1))


def _least_by_search(weights: torch.Tensor, mass: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Return the smallest weight that each row keeps, by bisection over bit patterns instead of sorting."""
    floor = draws.min_p.float().clamp(min=LEAST)
    counted = draws.top_k < draws.vocab
    if draws.counted:
        last = _search(weights, draws.top_k.double(), counting=True)
        floor = torch.where(counted, torch.maximum(floor, last), floor)
    if not draws.nucleus:
        return floor
    remaining = _mass(_cut(weights.clone(), floor)) * floor
    alone = (draws.min_p == 0) & ~counted
    nucleus = _search(weights, draws.top_p * torch.where(alone, mass, remaining), counting=False)
    return torch.where(draws.top_p < 1, torch.maximum(floor, nucleus), floor)


def _search(weights: torch.Tensor, goal: torch.Tensor, *, counting: bool) -> torch.Tensor:
    """Return the largest weight, float32 [n], such that weights at or above it reach `goal` in count or mass.

    Bit patterns of positive floats are ordered as the floats are, so 30 halvings find the exact value. On a
    CPU this takes an eighth of the time of a sort for 32 rows of 49,152, and no more for flat distributions.
    """
    low, high = (
        torch.full((len(weights),), _bits(end), dtype=torch.int32, device=weights.device)
        for end in (LEAST, 1.0)
    )
    scratch = torch.empty_like(weights)
    for _ in range(30):
        middle = low + (high - low + 1) // 2
        least = middle.view(torch.float32)
        kept = _cut(weights, least, out=scratch)
        reached = _mass(kept.clamp_(max=1)) if counting else _mass(kept) * least
        enough = reached >= goal
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle - 1)
    return low.view(torch.float32)


def _bits(value: float) -> int:
    """Return a float32's bit pattern as an integer."""
    return int(np.float32(value).view(np.int32))


def _cut(weights: torch.Tensor, least: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Divide rows by `least`, float32 [n], and zero results below 1; in place unless `out` is given.

    Comparing with one number takes a tenth of comparing row by row, and the division rounds no smaller weight
    up to 1.
    """
    scaled = torch.div(weights, least.unsqueeze(1), out=weights if out is None else out)
    return torch.nn.functional.threshold(scaled, 1 - 2**-24, 0.0, inplace=True)


def _mass(weights: torch.Tensor) -> torch.Tensor:
    """Return each row's sum, float64 [n]; its order of addition does not depend on other rows."""
    if weights.shape[1] % BLOCK:
        return weights.double().sum(dim=-1)
    return weights.view(len(weights), -1, BLOCK).sum(dim=-1).double().sum(dim=-1)


def largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` largest of each row of float32 [n, vocab], in descending order."""
    return largest_at(values, count)[0]


def largest_at(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` largest of each row of float32 [n, vocab], descending, and their indices, int64."""
    blocks = values.shape[1] // BLOCK
    if values.shape[1] % BLOCK or count * 4 > blocks or values.device.type != "cpu":
        return values.topk(count, dim=-1)
    # The k largest are in the k blocks with the largest maxima.
    table = values.view(len(values), blocks, BLOCK)
    block = table.amax(dim=-1).topk(count, dim=-1).indices.unsqueeze(-1)
    members = table.gather(1, block.expand(-1, -1, BLOCK)).flatten(1)
    top, index = members.topk(count, dim=-1)
    return top, block.squeeze(-1).gather(1, index // BLOCK) * BLOCK + index % BLOCK


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """Return the index of each row's largest logit, int64 [n]; the first one if several are equal."""
    if logits.shape[1] % BLOCK or logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    table = logits.view(len(logits), -1, BLOCK)
    block = table.amax(dim=-1).argmax(dim=-1)
    rows = torch.arange(len(logits))
    return block * BLOCK + table[rows, block].argmax(dim=-1)


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return, per row of float64 [n, size], the first index whose cumulative weight exceeds `uniform` *
    total.
    """
    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:]
    index = torch.searchsorted(cumulated, total * uniform.unsqueeze(1), right=True).squeeze(1)
    # Rounding may put the goal at the total itself: then take the last token with any weight.
    return torch.minimum(index, (cumulated < total).sum(-1))
