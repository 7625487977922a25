"""Tests whether paired measurements differ, and by how much, without assuming a noise distribution.

Arms run in a random order per round, on the same prompts. If they do not differ, their labels within a round
are exchangeable: every assignment of signs to the rounds' log ratios was equally likely, whatever drift,
neighbors or heavy tails did to the machine. That gives an exact test (Fisher, 1935). Its statistic is
Wilcoxon's signed rank, which one outlier round cannot decide.

The figures of one comparison are a family. The largest statistic over the family is compared with its own
distribution under the same signs, stepping down (Westfall and Young, 1993). So the chance of even one false
difference stays below the level, however the figures are correlated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FAMILY_LEVEL: Final = 0.02
"""Chance of any false difference in speed, and the same for quality: 4% together, below the promised 5%. At
2% a hundred A/A runs show six or more in 1.5% of cases; at 5% in 38%.
"""
INTERVAL: Final = 0.95
_EXACT_ROUNDS: Final = 14
"""Up to this many rounds all 2^n signs are enumerated; beyond, `_DRAWS` are sampled."""
_DRAWS: Final = 20_000
_RESAMPLES: Final = 2_000
_AT_ONCE: Final = 4 << 20
"""Numbers in memory at once: 32 MiB."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure of an arm relative to the original's.

    Attributes:
        ratio: the Hodges-Lehmann estimate of the paired ratios (1963).
        low, high: its 95% bootstrap interval, for this figure alone.
        p: adjusted for the family.
        shown: True if there is a difference at the family's level.
    """

    ratio: float
    low: float
    high: float
    p: float
    shown: bool

    def to_dict(self) -> dict[str, Any]:
        return _with_verdict_text(asdict(self))


def least_rounds(figures: int, level: float = FAMILY_LEVEL) -> int:
    """Return the fewest rounds in which a difference in every round is significant among `figures`."""
    return max(math.ceil(1 + math.log2(figures / level)), 5)


def judged(
    log_ratios: Mapping[str, Sequence[float]], *, level: float = FAMILY_LEVEL, seed: int = 0
) -> dict[str, Verdict]:
    """Return the verdicts for a family of figures.

    Args:
        log_ratios: by name, log(arm / original) of each round, rounds in the same order for all.

    Raises:
        ValueError: figures of different numbers of rounds, or none.
    """
    if not log_ratios or len({len(values) for values in log_ratios.values()}) != 1:
        raise ValueError("every figure of a family needs the same rounds")
    table = np.array(list(log_ratios.values()), dtype=np.float64)
    draw = np.random.default_rng(seed)
    adjusted = _step_down(table, draw)
    verdicts = {}
    for name, values, p in zip(log_ratios, table, adjusted, strict=True):
        low, high = _interval(values, draw)
        verdicts[name] = Verdict(
            float(np.exp(middle(values))), float(np.exp(low)), float(np.exp(high)), float(p), bool(p <= level)
        )
    return verdicts


def middle(values: Floats) -> Floats:
    """Return the Hodges-Lehmann estimate: the median of all pairs' means, over the last dimension."""
    first, second = np.triu_indices(values.shape[-1])
    means = (values[..., first] + values[..., second]) / 2
    result: Floats = np.asarray(np.median(means, axis=-1)).astype(np.float64)
    return result


def _step_down(table: Floats, draw: np.random.Generator) -> Floats:
    """Return the adjusted p by figure: [figures, rounds] -> [figures]."""
    ranks = _signed_ranks(table)
    norm = np.sqrt((ranks**2).sum(axis=1, keepdims=True))
    unit = np.divide(ranks, norm, out=np.zeros_like(ranks), where=norm > 0)
    observed = np.abs(unit.sum(axis=1))
    chance = np.abs(_signs(table.shape[1], draw) @ unit.T)
    order = np.argsort(-observed, kind="stable")
    # Of the figures not decided yet, the largest by chance.
    largest = np.maximum.accumulate(chance[:, order[::-1]], axis=1)[:, ::-1]
    # Tolerate rounding: equal sums differ in the last bit by order of addition.
    p = (largest >= observed[order] - 1e-9).mean(axis=0)
    adjusted = np.empty(len(table))
    adjusted[order] = np.maximum.accumulate(p)
    return adjusted


def _signed_ranks(table: Floats) -> Floats:
    """Return signed ranks of magnitudes; ties share a rank, and a zero difference has rank 0."""
    size = np.abs(table)
    below = (size[:, None, :] < size[:, :, None]).sum(axis=2)
    equal = (size[:, None, :] == size[:, :, None]).sum(axis=2)
    ranks: Floats = np.sign(table) * (below + (equal + 1) / 2)
    return ranks


def _signs(rounds: int, draw: np.random.Generator) -> Floats:
    """Return [assignments, rounds] of 1 and -1, including the observed assignment."""
    if rounds <= _EXACT_ROUNDS:
        every = (np.arange(2**rounds)[:, None] >> np.arange(rounds)) & 1
        return np.where(every, -1.0, 1.0)
    signs = draw.choice([-1.0, 1.0], size=(_DRAWS, rounds))
    signs[0] = 1.0
    return signs


def _interval(values: Floats, draw: np.random.Generator) -> tuple[float, float]:
    """Return the percentile bootstrap interval of `middle`, widened for few rounds like a t interval.

    See Hesterberg (2015).
    """
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    # A thousand rounds have half a million pairs: all resamples at once would take gigabytes.
    some = max(1, _AT_ONCE // (n * (n + 1) // 2))
    drawn = draw.integers(0, n, size=(_RESAMPLES, n))
    middles = np.concatenate(
        [middle(values[drawn[start : start + some]]) for start in range(0, _RESAMPLES, some)]
    )
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * _t_quantile(1 - (1 - INTERVAL) / 2, n - 1))
    low, high = np.quantile(middles, (tail, 1 - tail))
    return float(low), float(high)


@functools.cache
def _t_quantile(p: float, degrees: int) -> float:
    """Return Student's t quantile by numerical integration: four digits, more than a bootstrap needs."""
    t = np.linspace(0.0, 200.0, 400_001)
    density = (1 + t**2 / degrees) ** (-(degrees + 1) / 2)
    part = np.cumsum(density) / density.sum()
    return float(t[np.searchsorted(part, 2 * p - 1)])


@dataclass(frozen=True, slots=True)
class MeanVerdict:
    """A mean of paired differences, over texts or prompts; `low` and `high` as in `Verdict`."""

    mean: float
    low: float
    high: float
    p: float
    shown: bool

    def to_dict(self) -> dict[str, Any]:
        return _with_verdict_text(asdict(self))


def _with_verdict_text(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return a verdict's fields as they stand in a result, with `shown` in words."""
    shown = verdict.pop("shown")
    return {**verdict, "verdict": "difference shown" if shown else "no difference shown"}


def judged_means(
    differences: Mapping[str, Sequence[float]], *, level: float = FAMILY_LEVEL, seed: int = 0
) -> dict[str, MeanVerdict]:
    """Return verdicts for means that need not share pairs, by sign flips and Holm's procedure (1979)."""
    draw = np.random.default_rng(seed)
    raw = {name: _mean_p(np.array(values, dtype=np.float64), draw) for name, values in differences.items()}
    verdicts: dict[str, MeanVerdict] = {}
    reached = 0.0
    for place, name in enumerate(sorted(raw, key=lambda item: raw[item])):
        reached = max(reached, min(1.0, raw[name] * (len(raw) - place)))
        values = np.array(differences[name], dtype=np.float64)
        means = np.concatenate(
            [
                values[draw.integers(0, len(values), size=(count, len(values)))].mean(axis=1)
                for count in _portions(_RESAMPLES, len(values))
            ]
        )
        low, high = np.quantile(means, ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2))
        verdicts[name] = MeanVerdict(float(values.mean()), float(low), float(high), reached, reached <= level)
    return {name: verdicts[name] for name in differences}


def _mean_p(values: Floats, draw: np.random.Generator) -> float:
    if len(values) <= _EXACT_ROUNDS:
        chance = np.abs(_signs(len(values), draw) @ values)
    else:
        signs = (
            draw.choice([-1.0, 1.0], size=(count, len(values))) for count in _portions(_DRAWS, len(values))
        )
        chance = np.abs(np.concatenate([some @ values for some in signs]))
        chance[0] = abs(values.sum())
    return float((chance >= abs(values.sum()) - 1e-12).mean())


def _portions(rows: int, width: int) -> Iterator[int]:
    """Yield parts of `rows` that fit in memory."""
    most = max(1, _AT_ONCE // max(width, 1))
    for start in range(0, rows, most):
        yield min(most, rows - start)
