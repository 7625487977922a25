"""What guesses tokens that the model then verifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from typing import ClassVar

from worker_engine.sequence import Sequence


class Proposer(ABC):
    """Guesses how running sequences go on: one token for each place, and no distribution.

    A guess may be anything: what is not what the model would have chosen is dropped. A method that draws its
    guesses draws them with the sequence's own random numbers, so that they agree with the model's draws as
    often as their distributions do.

    Attributes:
        free: a guess costs the host some microseconds and the device nothing. Such a proposer is asked in
            each step, so that how often it is right is known also where nothing is verified.
    """

    free: ClassVar[bool]

    @abstractmethod
    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        """How each sequence may go on: at most as many tokens as wanted (at least 1), none where it has no
        guess.

        Every token of the sequences has been read (`num_unread` is 0). May compute on the device. Raises
        nothing that the sequences are to blame for; what it raises fails the step.
        """

    @abstractmethod
    def seconds(self, sequences: int, longest: int) -> float:
        """What `propose` is expected to take for so many sequences and at most so many tokens of each."""

    @abstractmethod
    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended: what is kept of it is let go of. Unknown ones are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of weights and memory; nothing can be proposed after this."""
