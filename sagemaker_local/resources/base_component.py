"""The life cycle of a base inference component: its copies are placed, started, replaced and ended."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_local.copies.command import ContainerSpec
from sagemaker_local.copies.copy import Copy
from sagemaker_local.copies.errors import CopyError, StartError
from sagemaker_local.copies.fleet import Fleet
from sagemaker_local.resources import instances
from sagemaker_local.resources.alarms import AlarmStates
from sagemaker_local.resources.drivers import driver_problem
from sagemaker_local.resources.hosting import DEFAULT_START_SECONDS, Hosting
from sagemaker_local.resources.models import container_of
from sagemaker_local.resources.placement import NoRoom, Reservation
from sagemaker_local.resources.pools import pool_types, specification_for
from sagemaker_local.resources.records import ComponentRecord
from sagemaker_local.resources.specification import MODEL
from sagemaker_local.resources.store import Region

RETRY_SECONDS: Final = 10.0


@dataclass(slots=True)
class BaseComponent:
    """A base component; a lock allows one change at a time."""

    region: Region
    hosting: Hosting
    alarms: AlarmStates
    record: ComponentRecord
    fleet: Fleet = field(init=False)
    _reservations: dict[int, Reservation] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.fleet = self.hosting.fleet(self.record.name, self._replace_lost)

    async def create(self) -> None:
        """Creating -> InService with all its copies, or Failed with the reason and none."""
        async with self._turn:
            await self.region.clock.sleep(self.region.config.durations.component)
            reason = await self._fill(self.record.spec, self.record.desired)
            if reason:
                await self._trim(0)
            self._settle("Failed" if reason else "InService", reason)

    async def scale(self) -> None:
        """Updating -> InService with as many copies as fit; missing ones are retried."""
        async with self._turn:
            await self.region.clock.sleep(self.region.config.durations.component)
            await self._trim(self.record.desired)
            reason = await self._fill(self.record.spec, self.record.desired)
            self._settle("InService", reason)
        if reason:
            self.region.spawn(self._retry())

    async def roll(self, spec: dict[str, Any], deployment: dict[str, Any] | None) -> None:
        """Replace the copies batch by batch; a failed start or an alarm rolls the update back."""
        async with self._turn:
            await self.region.clock.sleep(self.region.config.durations.component)
            self.fleet.read_anew()
            before = list(self.fleet.copies)
            policy = (deployment or {}).get("RollingUpdatePolicy", {})
            reason = await self._replace(spec, before, self.record.desired, policy, deployment or {})
            if reason:
                incoming = [copy for copy in self.fleet.copies if copy not in before]
                reason = f"{reason} {await self._roll_back(incoming, policy)}".strip()
            else:
                self.record.spec, self.record.deployment = spec, deployment
                await self._trim(self.record.desired)
                reason = await self._fill(spec, self.record.desired)
            self._settle("InService", reason)

    async def close(self, *, drain: bool) -> None:
        """End all copies and release their instances' capacity."""
        copies = list(self.fleet.copies)
        await self.fleet.stop(copies, drain=drain)
        self._release(copies)
        await self.fleet.close()

    async def _replace(
        self,
        spec: dict[str, Any],
        outgoing: list[Copy],
        desired: int,
        policy: dict[str, Any],
        deployment: dict[str, Any],
    ) -> str:
        """Start new copies before old ones end, in the policy's batches; return "" or why it stopped."""
        size = _batch(policy.get("MaximumBatchSize", {}), max(desired, 1))
        limit = self.region.clock.now() + policy.get("MaximumExecutionTimeoutInSeconds", math.inf)
        while outgoing:
            batch, outgoing = outgoing[:size], outgoing[size:]
            if reason := await self._add(spec, len(batch)):
                return reason
            await self.fleet.stop(batch)
            self._release(batch)
            if reason := await self.alarms.bake(deployment, policy.get("WaitIntervalInSeconds", 0)):
                return reason
            if self.region.clock.now() > limit:
                return "The update did not end within MaximumExecutionTimeoutInSeconds and was rolled back."
        return ""

    async def _roll_back(self, incoming: list[Copy], policy: dict[str, Any]) -> str:
        """Roll back in batches of RollbackMaximumBatchSize: restore old copies while the new ones end.

        Returns "" or the reason why old copies are missing.
        """
        spec, desired = self.record.spec, self.record.desired
        size = _batch(policy.get("RollbackMaximumBatchSize", {}), max(desired, 1))
        while incoming:
            batch, incoming = incoming[:size], incoming[size:]
            missing = desired - (len(self.fleet.copies) - len(batch) - len(incoming))
            # Start copies that fit beside the new ones first, then those that need the new ones' capacity.
            await self._add(spec, min(missing, size))
            await self.fleet.stop(batch)
            self._release(batch)
        return await self._fill(spec, desired)

    async def _fill(self, spec: dict[str, Any], desired: int) -> str:
        """Start the missing copies; return "" or the reason why some are still missing."""
        return await self._add(spec, desired - len(self.fleet.copies))

    async def _add(self, spec: dict[str, Any], count: int) -> str:
        results = await asyncio.gather(*(self._one_more(spec) for _ in range(count)))
        self.record.current = len(self.fleet.serving)
        return next((reason for reason in results if reason), "")

    async def _one_more(self, spec: dict[str, Any]) -> str:
        capacity = self.hosting.capacity(self.record.endpoint, self.record.variant)
        strategy = spec.get("SchedulingConfig", {}).get("PlacementStrategy", "SPREAD")
        seconds = spec.get("StartupParameters", {}).get(
            "ContainerStartupHealthCheckTimeoutInSeconds", DEFAULT_START_SECONDS
        )
        try:
            variant = self._variant()
            wanted = {
                kind: instances.need(specification_for(spec, kind).get("ComputeResourceRequirements", {}))
                for kind in pool_types(variant)
            }
            reservation = await capacity.reserve(self.record.name, wanted, strategy)
        except NoRoom as error:
            return str(error)
        try:
            kind = reservation.instance.kind
            container = self._container(specification_for(spec, kind))
            if problem := driver_problem(container.image, variant, kind):
                raise StartError(problem)
            copy = await self.fleet.start(container, seconds)
        except CopyError as error:
            capacity.release(reservation)
            return str(error)
        except BaseException:
            capacity.release(reservation)
            raise
        self._reservations[copy.number] = reservation
        return ""

    def copies_by_type(self, types: list[str]) -> dict[str, int]:
        """Return the number of serving copies on instances of each type."""
        serving = [copy.number for copy in self.fleet.serving]
        kinds = [
            self._reservations[number].instance.kind for number in serving if number in self._reservations
        ]
        return {kind: kinds.count(kind) for kind in types}

    async def _trim(self, desired: int) -> None:
        """End surplus copies, the least loaded first."""
        surplus = len(self.fleet.copies) - desired
        copies = sorted(self.fleet.copies, key=lambda copy: copy.load.outstanding)[: max(surplus, 0)]
        await self.fleet.stop(copies)
        self._release(copies)

    def _release(self, copies: list[Copy]) -> None:
        for copy in copies:
            if (reservation := self._reservations.pop(copy.number, None)) is not None:
                self.hosting.capacity(self.record.endpoint, self.record.variant).release(reservation)
        self.record.current = len(self.fleet.serving)

    def _replace_lost(self, copy: Copy) -> None:
        self._release([copy])
        if self.record.status in ("InService", "Updating"):
            self.region.spawn(self.scale())

    async def _retry(self) -> None:
        await self.region.clock.sleep(RETRY_SECONDS)
        if self.record.status == "InService" and len(self.fleet.copies) < self.record.desired:
            await self.scale()

    def _variant(self) -> dict[str, Any]:
        endpoint = self.region.store.endpoints[self.record.endpoint]
        return next(item for item in endpoint.variants if item["VariantName"] == self.record.variant)

    def _settle(self, status: str, reason: str) -> None:
        self.record.current = len(self.fleet.serving)
        self.region.touch(self.record, status, reason)

    def _container(self, spec: dict[str, Any]) -> ContainerSpec:
        """Return the container of a specification, from its model or its own container."""
        if (model := spec.get(MODEL)) is not None:
            return container_of(model)
        container = spec["Container"]
        return ContainerSpec(
            container.get("Image", ""), container.get("ArtifactUrl", ""), container.get("Environment", {})
        )


def _batch(size: dict[str, Any], copies: int) -> int:
    """Return MaximumBatchSize in copies, at least one; without a size all copies."""
    if not size:
        return copies
    value = int(size["Value"])
    return max(1, value if size["Type"] == "COPY_COUNT" else copies * value // 100)
