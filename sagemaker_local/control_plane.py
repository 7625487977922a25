"""Composition of the control plane: the JSON services over one store, one clock and one host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from sagemaker_local.autoscaling.service import AutoScaling
from sagemaker_local.aws.cloudwatch import CloudWatch
from sagemaker_local.aws.json_service import JsonService
from sagemaker_local.clock import Clock
from sagemaker_local.config import Config
from sagemaker_local.copies.fleet import Host
from sagemaker_local.gate import Gate
from sagemaker_local.prices import Prices
from sagemaker_local.resources.ai_jobs import AIJobs, WorkloadConfigs
from sagemaker_local.resources.alarms import AlarmStates
from sagemaker_local.resources.components import Components
from sagemaker_local.resources.directory import Directory
from sagemaker_local.resources.endpoints import Endpoints
from sagemaker_local.resources.hosting import Hosting
from sagemaker_local.resources.jobs import OptimizationJobs
from sagemaker_local.resources.models import EndpointConfigs, Models
from sagemaker_local.resources.records import BENCHMARK, RECOMMENDATION
from sagemaker_local.resources.store import Region, Store
from sagemaker_local.resources.tags import Tags
from sagemaker_local.state import ConfigError
from sagemaker_local.traffic import Traffic

log = logging.getLogger(__name__)


class ControlPlane:
    """`services` answer AWS JSON; `directory` resolves the runtime's invocations."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        host: Host,
        cloudwatch: CloudWatch,
        gate: Gate,
        s3: Callable[[], Any],
    ) -> None:
        """Raises ConfigError if the state file cannot be read."""
        self._region = region = Region(config, clock, _stored(config))
        self._clock, self._hosting = clock, Hosting(region, host)
        alarms = AlarmStates(clock, cloudwatch.call)
        self._endpoints = Endpoints(region, self._hosting, alarms)
        self._components = Components(region, self._hosting, alarms)
        self._jobs = (
            OptimizationJobs(region, s3),
            AIJobs(region, BENCHMARK, s3),
            AIJobs(region, RECOMMENDATION, s3),
        )
        self.traffic = Traffic()
        self.directory = Directory(region, self._hosting, self._components, self.traffic)
        owners = (
            Models(region),
            EndpointConfigs(region),
            self._endpoints,
            self._components,
            *self._jobs,
            WorkloadConfigs(region),
            Tags(region),
        )
        operations = {name: handler for owner in owners for name, handler in owner.operations.items()}
        scaling = AutoScaling(
            region,
            self._components,
            self._endpoints,
            self._hosting,
            self.traffic,
            cloudwatch.call,
            cloudwatch.is_running,
        )
        clock.every_step(scaling.step)
        prices = Prices(config.region)
        self.services = [
            JsonService("sagemaker", operations, gate),
            JsonService("application-autoscaling", scaling.operations, gate),
            JsonService("pricing", {"GetProducts": prices.products}, gate),
            JsonService("savingsplans", {"DescribeSavingsPlansOfferingRates": prices.offering_rates}, gate),
        ]
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the clock, and restore the state file's resources."""
        self._ticking = asyncio.create_task(self._clock.serve())
        self._region.spawn(self._revive())

    async def close(self) -> None:
        """End all started processes; the state file keeps the records."""
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        await self._components.close()
        await self._region.close()
        await self._hosting.close_all()

    async def _revive(self) -> None:
        store = self._region.store
        for endpoint in [item for item in store.endpoints.values() if item.status == "Deleting"]:
            del store.endpoints[endpoint.name]
        for component in [item for item in store.components.values() if item.status == "Deleting"]:
            del store.components[component.name]
        for endpoint in store.endpoints.values():
            endpoint.status, endpoint.pending = "Creating", ""
        await asyncio.gather(*(self._endpoints.bring_up(item) for item in store.endpoints.values()))
        # Bases first, since adapters live in their bases' copies.
        for record in sorted(store.components.values(), key=lambda item: bool(item.base)):
            if record.status != "Failed" or not record.base:
                record.status = "Creating"
            self._components.revive(record)
        for jobs in self._jobs:
            jobs.revive()


def _stored(config: Config) -> Store:
    if config.state_file is None or not config.state_file.exists():
        return Store()
    try:
        return Store.load(config.state_file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{config.state_file} is no state of this server: {error!r}; remove it") from error
