"""Perplexity of arms on equal tokens, and the KL divergence of an arm from the original.

Both use the API's `prompt_logprobs`, so they measure what is served: the arm's kernels, batches and adapters.
The API returns the 20 likeliest tokens of a position and the actual one. Tokens that both arms return keep
their probability. Those that only the original returns count as one outcome, and so do all others. Merging
outcomes can only reduce a divergence, so this is a lower bound of the full vocabulary's, in nats per token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from optimizer.measurement.arm_process import ArmProcess, ask_all

TOP: Final = 20
_LEAST: Final = 1e-12
"""Lowest probability used: the float32 resolution of 1 minus the likeliest."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Token ids; those from `start` on count (1 or more: the first has no probability)."""

    token_ids: tuple[int, ...]
    start: int = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """An arm's log probabilities of a passage, by counted position.

    Attributes:
        own: of the actual token.
        positions: of the returned tokens, by token id, at each position.
    """

    own: Sequence[float]
    positions: Sequence[Mapping[int, float]]

    @property
    def mean_nll(self) -> float:
        """Mean negative log likelihood, in nats per token."""
        return -math.fsum(self.own) / len(self.own)


def read_all(arm: ArmProcess, passages: Sequence[Passage], who: Mapping[str, Any]) -> list[Reading]:
    """Read every passage on one arm; `who` names model and adapter. Raises JobError when the arm refuses."""
    return ask_all(lambda passage: _read(arm, passage, who), passages)


def _read(arm: ArmProcess, passage: Passage, who: Mapping[str, Any]) -> Reading:
    body = {
        **who,
        "prompt": list(passage.token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": TOP,
    }
    positions = arm.call("/v1/completions", body)["choices"][0]["prompt_logprobs"][passage.start :]
    tables = [
        {int(token): float(entry["logprob"]) for token, entry in position.items()} for position in positions
    ]
    own = [table[token] for table, token in zip(tables, passage.token_ids[passage.start :], strict=True)]
    return Reading(own, tables)


def kl(original: Reading, other: Reading) -> list[float]:
    """Return, by position, the lower bound of KL(original || other) in nats."""
    return [_kl(mine, theirs) for mine, theirs in zip(original.positions, other.positions, strict=True)]


def _kl(mine: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    both = [
        (math.exp(logprob), math.exp(theirs[token])) for token, logprob in mine.items() if token in theirs
    ]
    only = math.fsum(math.exp(logprob) for token, logprob in mine.items() if token not in theirs)
    rest = max(1.0 - math.fsum(p for p, _ in both) - only, _LEAST)
    other = max(1.0 - math.fsum(q for _, q in both), _LEAST)
    # The other arm's mass on tokens that it did not return: each at most the last of its likeliest.
    most = (len(mine) - len(both)) * math.exp(sorted(theirs.values(), reverse=True)[:TOP][-1])
    shared = min(other * only / (only + rest), most)
    pairs = [*both, (only, shared), (rest, other - shared)]
    return max(math.fsum(p * math.log(p / max(q, _LEAST)) for p, q in pairs if p > 0), 0.0)
