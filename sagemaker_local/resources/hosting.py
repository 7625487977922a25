"""The capacity behind endpoints: instances of each variant, and fleets of models and components."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_local.aws_errors import ApiError
from sagemaker_local.copies.command import ContainerSpec
from sagemaker_local.copies.copy import Copy
from sagemaker_local.copies.errors import CopyError, StartError
from sagemaker_local.copies.fleet import Fleet, Host
from sagemaker_local.resources.drivers import driver_problem
from sagemaker_local.resources.instances import size
from sagemaker_local.resources.models import container_of
from sagemaker_local.resources.placement import Capacity, NoRoom
from sagemaker_local.resources.pools import pool_types
from sagemaker_local.resources.store import Region
from sagemaker_local.state import Target

DEFAULT_START_SECONDS: Final = 480.0
"""SageMaker's default health check timeout of a container."""


@dataclass(slots=True)
class Variant:
    """A running variant; `fleet` is set if the variant names a model."""

    capacity: Capacity
    weight: float
    spec: ContainerSpec | None = None
    fleet: Fleet | None = None


@dataclass(slots=True)
class Hosting:
    """All variants by endpoint and name."""

    region: Region
    host: Host
    _variants: dict[str, dict[str, Variant]] = field(default_factory=dict)

    def fleet(self, name: str, lost: Callable[[Copy], None]) -> Fleet:
        return Fleet(self.host, name, lost)

    def capacity(self, endpoint: str, variant: str) -> Capacity:
        return self._variants[endpoint][variant].capacity

    def instances(self, endpoint: str, variant: str) -> tuple[int, int]:
        """Return the numbers of running and requested instances."""
        running = self._variants.get(endpoint, {}).get(variant)
        return (0, 0) if running is None else (running.capacity.num_running, len(running.capacity.instances))

    async def open(
        self,
        endpoint: str,
        config: dict[str, Any],
        models: dict[str, dict[str, Any]],
        desired: dict[str, dict[str, float]],
    ) -> str:
        """Bring an endpoint's variants to a configuration, starting new copies before old ones end.

        Args:
            models: inputs of the variants' models.

        Returns:
            "" or the reason why it cannot serve; then nothing has changed.
        """
        old = self._variants.get(endpoint, {})
        new: dict[str, Variant] = {}
        try:
            for variant in config["ProductionVariants"]:
                name, model = variant["VariantName"], models.get(variant.get("ModelName", ""))
                new[name] = await self._variant(endpoint, variant, model, desired[name], old.get(name))
        except (CopyError, ApiError, NoRoom) as error:
            await asyncio.gather(
                *(self._close(item) for name, item in new.items() if item is not old.get(name))
            )
            return str(error)
        self._variants[endpoint] = new
        left = [
            item for name, item in old.items() if new.get(name) is None or new[name].fleet is not item.fleet
        ]
        await asyncio.gather(*(self._close(item) for item in left))
        return ""

    async def close(self, endpoint: str) -> None:
        await asyncio.gather(*(self._close(item) for item in self._variants.pop(endpoint, {}).values()))

    def models(self) -> dict[str, Fleet]:
        """Return the fleets of variants with a model, by `endpoint/variant`."""
        return {
            f"{endpoint}/{name}": item.fleet
            for endpoint, variants in self._variants.items()
            for name, item in variants.items()
            if item.fleet is not None
        }

    async def close_all(self) -> None:
        """End the copies of models; components end their own."""
        fleets = [
            item.fleet for variants in self._variants.values() for item in variants.values() if item.fleet
        ]
        await asyncio.gather(*(fleet.close() for fleet in fleets))

    def model_target(self, endpoint: str, variant: str | None) -> Target | None:
        """Return a copy of the named variant, or of one chosen by weight, among variants with a model."""
        variants = {
            name: item
            for name, item in self._variants.get(endpoint, {}).items()
            if item.fleet is not None and variant in (None, name)
        }
        if not variants:
            return None
        names, weights = list(variants), [max(item.weight, 0.0) for item in variants.values()]
        chosen = random.choices(names, weights)[0] if sum(weights) else names[0]  # noqa: S311
        fleet = variants[chosen].fleet
        target = None if fleet is None else fleet.target()
        return None if target is None else Target(target.container, "", chosen, target.load)

    async def _variant(
        self,
        endpoint: str,
        variant: dict[str, Any],
        model: dict[str, Any] | None,
        desired: dict[str, float],
        old: Variant | None,
    ) -> Variant:
        count = int(desired["count"])
        managed = variant.get("ManagedInstanceScaling", {})
        enabled = managed.get("Status") == "ENABLED"
        low = managed.get("MinInstanceCount", count) if enabled else count
        high = managed.get("MaxInstanceCount", count) if enabled else count
        if model is None:
            capacity = self._capacity(variant)
            if old is not None:
                old.capacity.sizes = capacity.sizes
                capacity = old.capacity
            capacity.resize(count if enabled and old is None else low, high)
            capacity.low = low
            return Variant(capacity, desired["weight"])
        spec = container_of(model)
        for kind in pool_types(variant):
            if problem := driver_problem(spec.image, variant, kind):
                raise StartError(problem)
        seconds = variant.get("ContainerStartupHealthCheckTimeoutInSeconds", DEFAULT_START_SECONDS)
        capacity = self._capacity(variant)
        capacity.resize(count, max(count, high))
        if old is not None and old.spec == spec and old.fleet is not None:
            await _scale(old.fleet, spec, count, seconds)
            return Variant(capacity, desired["weight"], spec, old.fleet)

        def replace_lost(_: Copy) -> None:
            self.region.spawn(_scale(fleet, spec, count, seconds))

        fleet = self.fleet(f"{endpoint}.{variant['VariantName']}", replace_lost)
        try:
            await _scale(fleet, spec, count, seconds)
        except BaseException:
            await asyncio.shield(fleet.close())
            raise
        return Variant(capacity, desired["weight"], spec, fleet)

    def _capacity(self, variant: dict[str, Any]) -> Capacity:
        async def grow() -> None:
            await self.region.clock.sleep(self.region.config.durations.instance)

        def is_available(kind: str) -> bool:
            there = [item.capacity for variants in self._variants.values() for item in variants.values()]
            used = sum(item.count(kind) for item in {id(one): one for one in [*there, made]}.values())
            return used < self.region.config.capacity.get(kind, used + 1)

        known = self.region.config.instance_types
        made = Capacity({kind: size(kind, known) for kind in pool_types(variant)}, grow, is_available)
        return made

    async def _close(self, variant: Variant) -> None:
        if variant.fleet is not None:
            await variant.fleet.stop(list(variant.fleet.copies))
            await variant.fleet.close()


async def _scale(fleet: Fleet, spec: ContainerSpec, count: int, seconds: float) -> None:
    """Start or stop copies to reach `count`. Raises CopyError."""
    missing = count - len(fleet.copies)
    await asyncio.gather(*(fleet.start(spec, seconds) for _ in range(missing)))
    if missing < 0:
        await fleet.stop(fleet.copies[missing:])
