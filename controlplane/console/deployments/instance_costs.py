"""Hourly costs of instance types beside their sizes, from the table of instance prices."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone

from controlplane.billing.reports.api import REGION
from controlplane.billing.reports.instance_rates import InstanceRate
from controlplane.billing.reports.tenant_savings import machines_priced
from controlplane.deployments.models import Deployment
from controlplane.deployments.sizing.instances import INSTANCES, Instance


@dataclass(frozen=True, slots=True)
class CopyCost:
    """Cost of a deployment's instance and of one of its copies, by the on-demand rate."""

    rate: InstanceRate
    copies: int

    @property
    def copy_nano(self) -> int:
        """Nano-units per hour of one copy, rounded half up."""
        return (2 * self.rate.hour_nano + self.copies) // (2 * self.copies)


def instances_priced(region: str = REGION) -> list[tuple[Instance, InstanceRate | None]]:
    """Return every known instance type with its on-demand rate today, if the table has one."""
    rates = _rates(region)
    return [(instance, rates.get(instance.name)) for instance in INSTANCES.values()]


def copy_cost(deployment: Deployment) -> CopyCost | None:
    """Return the hourly cost of the deployment's copies; None if its instance type has no rate."""
    if not deployment.instance_type:
        return None
    rate = _rates(deployment.target.region or REGION).get(deployment.instance_type)
    return CopyCost(rate, deployment.compute.get("copies_per_instance") or 1) if rate else None


def fallback_costs(deployment: Deployment) -> list[tuple[str, CopyCost | None]]:
    """Return the hourly cost of copies on each further instance type; None for a type without a rate."""
    if not deployment.fallback_instance_types:
        return []
    rates, by_type = _rates(deployment.target.region or REGION), deployment.compute.get("by_type", {})
    found = []
    for kind in deployment.fallback_instance_types:
        copies = by_type.get(kind, deployment.compute).get("copies_per_instance") or 1
        found.append((kind, CopyCost(rates[kind], copies) if kind in rates else None))
    return found


def _rates(region: str) -> dict[str, InstanceRate]:
    found = machines_priced(day=timezone.now().date(), region=region)
    return {rate.instance_type: rate for rate in found}
