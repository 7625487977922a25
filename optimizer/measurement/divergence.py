"""What arms think of the same tokens: perplexity, and the KL divergence of an arm to the original.

Both come from the API's `prompt_logprobs`, so from what is served: the arm's kernels, batches and adapters.
The API tells the 20 likeliest tokens of a position and the one that stands there. Tokens that both arms tell
keep their probability; those that only the original tells count as one, and so do all others. Merging
outcomes can only lessen a divergence, so this is a lower bound of the full vocabulary's, in nats a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from optimizer.measurement.arm_process import ArmProcess
from optimizer.measurement.at_once import ask_all

TOP: Final = 20
_LEAST: Final = 1e-12
"""Of a probability: what float32 leaves of 1 less the likeliest."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Token ids, of which those from `start` on count (1 or more: the first has no probability)."""

    token_ids: tuple[int, ...]
    start: int = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """A passage as an arm reads it: by counted position, the log probability of its token and of the told
    ones."""

    own: Sequence[float]
    told: Sequence[Mapping[int, float]]

    @property
    def mean_nll(self) -> float:
        """Nats a token."""
        return -math.fsum(self.own) / len(self.own)


def read_all(arm: ArmProcess, passages: Sequence[Passage], who: Mapping[str, Any]) -> list[Reading]:
    """Every passage on one arm, `who` naming model and adapter. Raises JobError when the arm refuses."""
    return ask_all(lambda passage: _read(arm, passage, who), passages)


def _read(arm: ArmProcess, passage: Passage, who: Mapping[str, Any]) -> Reading:
    body = {
        **who, "prompt": list(passage.token_ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": TOP,
    }  # fmt: skip
    told = arm.call("/v1/completions", body)["choices"][0]["prompt_logprobs"][passage.start :]
    tables = [{int(token): float(entry["logprob"]) for token, entry in position.items()} for position in told]
    own = [table[token] for table, token in zip(tables, passage.token_ids[passage.start :], strict=True)]
    return Reading(own, tables)


def kl(original: Reading, other: Reading) -> list[float]:
    """By position, the least that KL(original || other) can be; nats."""
    return [_kl(mine, theirs) for mine, theirs in zip(original.told, other.told, strict=True)]


def _kl(mine: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    both = [
        (math.exp(logprob), math.exp(theirs[token])) for token, logprob in mine.items() if token in theirs
    ]
    only = math.fsum(math.exp(logprob) for token, logprob in mine.items() if token not in theirs)
    rest = max(1.0 - math.fsum(p for p, _ in both) - only, _LEAST)
    other = max(1.0 - math.fsum(q for _, q in both), _LEAST)
    # What the other arm gives tokens that it does not tell: each at most what the last of its likeliest has.
    most = (len(mine) - len(both)) * math.exp(sorted(theirs.values(), reverse=True)[:TOP][-1])
    given = min(other * only / (only + rest), most)
    pairs = [*both, (only, given), (rest, other - given)]
    return max(math.fsum(p * math.log(p / max(q, _LEAST)) for p, q in pairs if p > 0), 0.0)
