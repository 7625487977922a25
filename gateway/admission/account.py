"""The contract between the accounts of limits and the broker that calls Redis for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal: a retry may help in `after` seconds. `unknown`: the limit's state cannot be read now."""

    after: float
    unknown: bool = False


class Account(Protocol):
    """One limit as this process sees it: its lease, and the requests that wait for more."""

    key: str

    def operation(self) -> list[str | int]:
        """Return the fields of the operation that reports and requests amounts; they count as sent."""

    def answered(self, answer: list[int], sent: float) -> None:
        """Apply Redis' answer; `sent` is the monotonic time before the call."""

    def postponed(self) -> bool:
        """Note that Redis recorded the operation but grants nothing yet. True if a request waits."""

    def failed(self) -> None:
        """Note that the call failed and may or may not have run; assume the case that keeps the limit."""

    def forgotten(self) -> None:
        """Note that Redis lost its data: the next operation reports what this process has used and holds."""

    def lapsed(self) -> None:
        """Note that Redis answers again, and may have given this process's holdings to others."""

    def alone(self) -> None:
        """Decide the waiting requests without Redis, which is away."""

    def tick(self, now: float) -> bool:
        """Run twice a second; True if an operation is due although no request needs one."""

    def release(self) -> None:
        """Give back everything unused with the next operation, because the process ends."""

    def idle(self, now: float) -> bool:
        """Return True if nothing is held and no request came for long, so the account may be dropped."""
