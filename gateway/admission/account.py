"""The contract between the accounts of limits and the broker that speaks to Redis for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Refused:
    """Not now: a retry may help in `after` seconds. `unknown` means that the limit cannot be told."""

    after: float
    unknown: bool = False


class Account(Protocol):
    """One limit as this process sees it: what it holds, and who waits for more."""

    key: str

    def operation(self) -> list[str | int]:
        """Fields of the operation that tells Redis what is held and wanted; taken as sent."""

    def answered(self, answer: list[int], sent: float) -> None:
        """Takes the answer over; `sent` is the monotonic time before the call."""

    def postponed(self) -> bool:
        """The operation was recorded, and nothing is granted yet (quarantine). True if a request waits."""

    def failed(self) -> None:
        """Whether the operation was done is unknown: assume what keeps the bound."""

    def forgotten(self) -> None:
        """Redis lost its data: the next operation reports what this process has used and holds."""

    def lapsed(self) -> None:
        """Redis answers again, and may have given others what it did not know to be held here."""

    def alone(self) -> None:
        """Redis is away: whoever waits is decided without it."""

    def beat(self, now: float) -> bool:
        """Twice a second: whether an operation is due though nobody asked for one."""

    def release(self) -> None:
        """Gives back all that is not in use, with the next operation: the process ends."""

    def idle(self, now: float) -> bool:
        """Nothing is held, and nobody has asked for long: the account may be dropped."""
