"""Interface for reading a prompt's hidden states (embeddings, prompt log probabilities)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from worker_engine.protocol import TokenLogprobs

Predict = Callable[[torch.Tensor], torch.Tensor]
"""Maps hidden states [rows, hidden] of one sequence to its float32 logits [rows, vocab]."""


@dataclass(frozen=True, slots=True)
class Findings:
    """A reader's results, as fields of `TokenDelta`."""

    embedding: array[float] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


class Reader(Protocol):
    """Takes the hidden states of positions `start` to `stop`, chunk by chunk as they are computed.

    Each position is taken once, even if a preempted sequence computes it again. Positions before `start` may
    therefore come from the prefix cache, which has keys and values but no hidden states.

    Attributes:
        start: the next position to take.
        stop: end of the positions to take, exclusive.
    """

    start: int
    stop: int

    def take(self, hidden: torch.Tensor, predict: Predict) -> None:
        """Take `hidden` [n, hidden], the output of the model's last norm, and advance `start` by n.

        Results stay on the device, so that the host waits for them only once, at the end.
        """

    def finish(self) -> Findings | None:
        """Return the results after all positions; None if they are not finite. Waits for the device."""
