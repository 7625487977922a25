"""Reserves room for copies on a variant's instances, and scales the number of instances."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from sagemaker_local.resources.instances import Instance, Need, Size

NO_ROOM = (
    "There is not enough hardware resources on the instances to create a copy for this inference component. "
    "Please ensure that at least one instance in this endpoint has enough available hardware resources to "
    "satisfy the ComputeResourceRequirements in this request."
)


class NoRoom(Exception):
    """No instance has room, and no further one is allowed."""


@dataclass(frozen=True, slots=True)
class Reservation:
    instance: Instance
    component: str
    need: Need


class Capacity:
    """The instances of one variant.

    With managed instance scaling there are `low` to `high` of them: an instance is added when a copy finds no
    room, and removed when it is empty. Without it, there are `low`.
    """

    def __init__(
        self, size: Size, low: int, high: int, grow: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """`grow` returns once a requested instance runs."""
        self._size, self._grow = size, grow
        self.low, self.high = low, high
        self.instances: list[Instance] = []

    def resize(self, low: int, high: int) -> None:
        """Add instances up to `low` at once; those above `high` end when they are empty."""
        self.low, self.high = low, high
        while len(self.instances) < low:
            self.instances.append(Instance(self._size))
        self.release_idle()

    async def reserve(self, component: str, wanted: Need, strategy: str) -> Reservation:
        """Reserve room for one copy, and wait for its instance. Raises NoRoom."""
        if not Instance(self._size).fits(wanted):
            raise NoRoom(NO_ROOM)
        if (instance := self._choose(component, wanted, strategy)) is None:
            if len(self.instances) >= self.high:
                raise NoRoom(NO_ROOM)
            # The instance is counted before it runs, so that two copies do not exceed `high` together.
            instance = Instance(self._size, coming=asyncio.ensure_future(self._grow()))
            self.instances.append(instance)
        instance.held.append((component, wanted))
        reservation = Reservation(instance, component, wanted)
        if instance.coming is not None:
            try:
                # Shielded: a cancelled copy must not cancel the instance for others that wait for it.
                await asyncio.shield(instance.coming)
            except BaseException:
                self.release(reservation)
                raise
        return reservation

    @property
    def num_running(self) -> int:
        """Number of running instances, without starting ones."""
        return sum(instance.is_running for instance in self.instances)

    def release(self, reservation: Reservation) -> None:
        reservation.instance.held.remove((reservation.component, reservation.need))
        self.release_idle()

    def release_idle(self) -> None:
        for instance in [item for item in self.instances if not item.held][::-1]:
            if len(self.instances) <= self.low:
                return
            self.instances.remove(instance)
            if instance.coming is not None:
                instance.coming.cancel()

    def _choose(self, component: str, wanted: Need, strategy: str) -> Instance | None:
        fitting = [instance for instance in self.instances if instance.fits(wanted)]
        if not fitting:
            return None

        def copies(instance: Instance) -> tuple[int, int]:
            same = sum(name == component for name, _ in instance.held)
            return same, len(instance.held)

        return min(fitting, key=copies) if strategy == "SPREAD" else max(fitting, key=copies)
