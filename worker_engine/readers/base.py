"""What a request reads of its prompt's hidden states, beside the token that comes next."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from worker_engine.protocol import TokenLogprobs

Predict = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [rows, hidden] of one sequence -> its float32 logits [rows, vocab]."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a reader made of what it took, as `TokenDelta` tells it."""

    embedding: array[float] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


class Reader(Protocol):
    """Takes the hidden states of positions `start` to `stop`, chunk by chunk as they are computed.

    Each is taken once, though a sequence that was preempted computes it again. What stands before `start` may
    therefore come out of the prefix cache, where there are keys and values but no hidden states.

    Attributes:
        start: the next position to take.
        stop: the first one behind the last.
    """

    start: int
    stop: int

    def take(self, hidden: torch.Tensor, predict: Predict) -> None:
        """Moves `start` by the rows of `hidden` [n, hidden], which the model's last norm gave.

        Leaves results on the device: the host waits for them once, at the end.
        """

    def finish(self) -> Findings | None:
        """Once all is taken; None when it holds values that are not finite. Waits for the device."""
