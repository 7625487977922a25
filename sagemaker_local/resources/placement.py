"""Reserves room for copies on a variant's instances, and scales the number of instances."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from sagemaker_local.resources.instances import Instance, Need, Size

NO_ROOM = (
    "There is not enough hardware resources on the instances to create a copy for this inference component. "
    "Please ensure that at least one instance in this endpoint has enough available hardware resources to "
    "satisfy the ComputeResourceRequirements in this request."
)


INSUFFICIENT = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error for "
    "{types}. Please retry using a different ML instance type or after some time."
)


class NoRoom(Exception):
    """No instance has room, and no further one is allowed."""


@dataclass(frozen=True, slots=True)
class Reservation:
    instance: Instance
    component: str
    need: Need


class Capacity:
    """The instances of one variant, of one type or of several that are tried in their order.

    With managed instance scaling there are `low` to `high` of them: an instance is added when a copy finds no
    room, and removed when it is empty. Without it, there are `low`.
    """

    def __init__(
        self,
        sizes: Mapping[str, Size],
        grow: Callable[[], Coroutine[None, None, None]],
        is_available: Callable[[str], bool],
    ) -> None:
        """`grow` returns once a requested instance runs, `is_available` if AWS has one more of a type."""
        self.sizes, self._grow, self._is_available = sizes, grow, is_available
        self.low, self.high = 0, 0
        self.instances: list[Instance] = []

    def resize(self, low: int, high: int) -> None:
        """Add instances up to `low` at once; those above `high` end when they are empty. Raises NoRoom."""
        self.low, self.high = low, high
        while len(self.instances) < low:
            kind = self._next_type(list(self.sizes))
            self.instances.append(Instance(self.sizes[kind], kind))
        self.release_idle()

    async def reserve(self, component: str, wanted: Mapping[str, Need], strategy: str) -> Reservation:
        """Reserve room for one copy, and wait for its instance. Raises NoRoom.

        Args:
            wanted: what the copy needs, by instance type.
        """
        types = [kind for kind, size in self.sizes.items() if Instance(size).fits(wanted[kind])]
        if not types:
            raise NoRoom(NO_ROOM)
        if (instance := self._choose(component, wanted, strategy)) is None:
            if len(self.instances) >= self.high:
                raise NoRoom(NO_ROOM)
            # The instance is counted before it runs, so that two copies do not exceed `high` together.
            kind = self._next_type(types)
            instance = Instance(self.sizes[kind], kind, coming=asyncio.ensure_future(self._grow()))
            self.instances.append(instance)
        need = wanted[instance.kind]
        instance.held.append((component, need))
        reservation = Reservation(instance, component, need)
        if instance.coming is not None:
            try:
                # Shielded: a cancelled copy must not cancel the instance for others that wait for it.
                await asyncio.shield(instance.coming)
            except BaseException:
                self.release(reservation)
                raise
        return reservation

    def count(self, kind: str, *, running: bool = False) -> int:
        """Return the number of instances of a type, only running ones on request."""
        return sum(item.kind == kind and (item.is_running or not running) for item in self.instances)

    def _next_type(self, types: list[str]) -> str:
        """Return the first type of which AWS has an instance. Raises NoRoom."""
        for kind in types:
            if self._is_available(kind):
                return kind
        raise NoRoom(INSUFFICIENT.format(types=", ".join(types)))

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

    def _choose(self, component: str, wanted: Mapping[str, Need], strategy: str) -> Instance | None:
        fitting = [item for item in self.instances if item.kind in wanted and item.fits(wanted[item.kind])]
        if not fitting:
            return None

        def copies(instance: Instance) -> tuple[int, int]:
            same = sum(name == component for name, _ in instance.held)
            return same, len(instance.held)

        return min(fitting, key=copies) if strategy == "SPREAD" else max(fitting, key=copies)
