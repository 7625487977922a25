"""Waiting sequences: ordered by priority, then by their tenant's served tokens, then round-robin."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from worker_engine.fairness import Account, Accounts
from worker_engine.sequence import Sequence

AGING_SECONDS: Final = 10.0
"""Seconds without an admission after which a tenant's requests of one priority gain one priority step."""
LOOKAHEAD: Final = 64
"""Requests of one tenant and priority that are tried when the first cannot join the batch's adapters."""


class Group:
    """One tenant's waiting requests of one priority, served round-robin.

    In each round every waiting request gets one sequence admitted, and new requests join the next round. So a
    request with `n` of 128 delays another one by one sequence, not by 128, and is not starved by others.
    """

    __slots__ = ("_round", "account", "priority", "sequences", "since")

    def __init__(self, account: Account, priority: int, since: float) -> None:
        self.account, self.priority, self.since = account, priority, since
        self.sequences: deque[Sequence] = deque()
        self._round = 0

    def add(self, sequence: Sequence) -> None:
        """Add a sequence behind those of its round."""
        sequence.turn = self._round + 1 + sequence.request.place
        at = len(self.sequences)
        while at and self.sequences[at - 1].turn > sequence.turn:
            at -= 1
        self.sequences.insert(at, sequence)

    def admit(self, sequence: Sequence, now: float) -> None:
        """Remove a sequence that is admitted, and advance the round."""
        self.since, self._round = now, max(self._round, sequence.turn)

    def rank(self, now: float, highest: int) -> tuple[float, float, int]:
        """Return the group's sort key; smaller goes first. `highest`: the highest priority of any request."""
        return rank(self.account, self.priority, now - self.since, highest)


def rank(account: Account, priority: int, waited: float, highest: int) -> tuple[float, float, int]:
    """Return the sort key of a group or running prompt; smaller goes first.

    Age counts from the group's last admission, not from a request's arrival, and raises the priority at most
    to `highest`. Otherwise the backlog of a flooding tenant would outrank everyone by its age.
    """
    aged = min(priority + int(waited / AGING_SECONDS), max(highest, priority))
    return (-aged, account.served, account.num_running)


class WaitingQueue:
    """All waiting sequences. Unbounded: the service refuses requests before the queue grows too long."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._groups: dict[tuple[str, int], Group] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, sequence: object) -> bool:
        return any(sequence in group.sequences for group in self._groups.values())

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for group in self._groups.values() for sequence in group.sequences)

    def add(self, sequence: Sequence, now: float) -> None:
        """Open the tenant's account and queue a new sequence."""
        origin = sequence.request.origin
        sequence.account = self._accounts.enqueue(origin.tenant, origin.tenant_weight)
        self._group(sequence, now).add(sequence)
        self._length += 1

    def put_back(self, sequence: Sequence, now: float) -> None:
        """Queue a preempted sequence ahead of its tenant's others."""
        self._accounts.requeue(sequence.account)
        self._group(sequence, now).sequences.appendleft(sequence)
        self._length += 1

    def remove(self, sequence: Sequence, *, admitted_at: float | None = None) -> None:
        """Remove a sequence. Raises ValueError when it does not wait here."""
        key = (sequence.account.tenant, sequence.request.origin.priority)
        group = self._groups.get(key)
        if group is None:
            raise ValueError(f"request {sequence.request.request_id} does not wait")
        group.sequences.remove(sequence)
        self._length -= 1
        self._accounts.dequeue(sequence.account)
        if not group.sequences:
            del self._groups[key]
        elif admitted_at is not None:
            group.admit(sequence, admitted_at)

    @property
    def highest_priority(self) -> int:
        return max((group.priority for group in self._groups.values()), default=0)

    def groups(self, now: float) -> list[Group]:
        """Return all groups in scheduling order."""
        if len(self._groups) < 2:
            return list(self._groups.values())
        highest = self.highest_priority
        return sorted(self._groups.values(), key=lambda group: group.rank(now, highest))

    def in_turn(self, now: float) -> Iterator[tuple[Group, Sequence]]:
        """Yield sequences in scheduling order; the queue must not change meanwhile."""
        for group in self.groups(now):
            for sequence in islice(group.sequences, LOOKAHEAD):
                yield group, sequence

    def _group(self, sequence: Sequence, now: float) -> Group:
        priority = sequence.request.origin.priority
        key = (sequence.account.tenant, priority)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(sequence.account, priority, now)
        return group
