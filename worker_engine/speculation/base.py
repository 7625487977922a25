"""Interface of draft token proposers. The model verifies their tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import ClassVar

from worker_engine.sequence import Sequence


class Proposer(ABC):
    """Proposes draft tokens for running sequences: one token per position, without probabilities.

    Any token is allowed: the model's verification drops those that it would not have sampled. A proposer that
    samples uses the sequence's own random numbers, so that its samples agree with the model's as often as
    their distributions do.

    Attributes:
        free: proposals cost the host some microseconds and the device nothing. Such a proposer is called in
            every step, so that its acceptance rate is known even where nothing is verified.
    """

    free: ClassVar[bool]

    @abstractmethod
    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """Return each sequence's draft tokens: at most as many as wanted (at least 1), or none.

        All tokens of the sequences are on the host (`num_pending_tokens` is 0). May compute on the device.
        Must not raise because of a sequence's content; any exception fails the step.
        """

    @abstractmethod
    def seconds(self, sequences: int, longest: int) -> float:
        """Return the expected seconds of `propose` for this many sequences of at most `longest` tokens."""

    @abstractmethod
    def forget(self, sequence: Sequence) -> None:
        """Release the state of a finished sequence. Unknown ones are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Release weights and memory; no further calls are allowed."""
