"""Lists the resources that hosting time is counted for, from deployments, placements and versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from controlplane.adapters.models import AdapterVersion
from controlplane.deployments.comparison import observed_instances
from controlplane.deployments.models import Copy, Deployment, Placement, Target
from controlplane.metering.models import HostingKind
from controlplane.optimization.metered import attempts_unmetered

_HELD: Final = (Target.Kind.SAGEMAKER, Target.Kind.LOCAL)
"""Targets whose machines belong to deployments; an `openai_http` server is external."""


class Hosted(NamedTuple):
    """One hosted resource, in `HostingSpan`'s fields.

    Attributes:
        since: its start in Unix seconds, 0 if unknown.
        until: its end, if it ended since the last observation; 0 while it runs.
        exact: it records its start and end itself, so they count however late they are observed.
    """

    kind: str
    subject: str
    quantity: int
    tenant: str = ""
    base_model: str = ""
    adapter: str = ""
    deployment: str = ""
    tier: str = ""
    instance_type: str = ""
    since: int = 0
    until: int = 0
    exact: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.subject

    def values(self) -> dict[str, Any]:
        """Return the fields that a span stores."""
        return {
            name: value for name, value in self._asdict().items() if name not in ("since", "until", "exact")
        }


def hosted_now() -> Iterator[Hosted]:
    """Yield all hosted resources, kind by kind."""
    yield from _copies()
    yield from _machines()
    yield from _placed()
    yield from _stored()
    yield from _optimizations()


def _copies() -> Iterator[Hosted]:
    rows = Copy.objects.select_related("base_model", "deployment").iterator(chunk_size=1000)
    for copy in rows:
        deployment = copy.deployment
        # Gateways call an inference component as one copy, but it runs the configured number of them.
        many = deployment.min_copies if deployment and copy.kind == Copy.Kind.SAGEMAKER else 1
        yield Hosted(
            HostingKind.COPY,
            copy.pk,
            many,
            base_model=copy.base_model.name,
            deployment=deployment.name if deployment else "",
            instance_type=deployment.instance_type if deployment else "",
            since=int(copy.created_at.timestamp()),
        )


def _machines() -> Iterator[Hosted]:
    """Accelerators by deployment, and machines by endpoint, from their first observation on."""
    endpoints: dict[tuple[int, str], tuple[int, str]] = {}
    pools: dict[tuple[int, str], dict[str, int]] = {}
    there = Deployment.objects.filter(removed_at=None, target__kind__in=_HELD).exclude(resources=[])
    for deployment in there.select_related("base_model").order_by("pk"):
        accelerators = int(deployment.compute.get("accelerators") or 0)
        if accelerators:
            yield Hosted(
                HostingKind.GPU,
                f"deployment-{deployment.pk}",
                accelerators * deployment.min_copies,
                base_model=deployment.base_model.name,
                deployment=deployment.name,
                instance_type=deployment.instance_type,
            )
        if deployment.endpoint:
            key = (deployment.target_id, deployment.endpoint)
            # Deployments of one endpoint share its machines.
            most = max(deployment.min_instances, endpoints.get(key, (0, ""))[0])
            endpoints[key] = (most, deployment.instance_type)
            pools[key] = observed_instances(deployment) or pools.get(key, {})
    for (target, endpoint), (instances, instance_type) in endpoints.items():
        if not (by_type := pools[target, endpoint]):
            by_type = {"": instances}
        for kind, count in by_type.items():
            if kind and not count:
                continue
            yield Hosted(
                HostingKind.INSTANCE,
                f"target-{target}/{endpoint}" + (f"/{kind}" if kind else ""),
                count,
                deployment=endpoint,
                instance_type=kind or instance_type,
            )


def _placed() -> Iterator[Hosted]:
    ready = (Placement.Status.READY, Placement.Status.LEAVING)
    rows = Placement.objects.filter(status__in=ready).select_related("deployment__base_model")
    for row in rows.iterator(chunk_size=1000):
        try:
            tenant = EngineName.parse(row.engine_name).tenant
        except ContractError:
            continue
        yield Hosted(
            HostingKind.ADAPTER,
            f"placement-{row.pk}",
            1,
            tenant=tenant,
            adapter=row.engine_name,
            base_model=row.deployment.base_model.name,
            deployment=row.deployment.name,
            tier="placed",
        )


def _stored() -> Iterator[Hosted]:
    """Versions with stored files, deleted ones too until they are purged; each counts its own bytes."""
    rows = AdapterVersion.objects.filter(status=AdapterVersion.Status.READY)
    for row in rows.select_related("adapter__base_model").iterator(chunk_size=1000):
        names: dict[str, Any] = {
            "tenant": row.adapter.tenant_id,
            "adapter": row.engine_name,
            "base_model": row.adapter.base_model.name,
            "since": int(row.created_at.timestamp()),
        }
        yield Hosted(HostingKind.ADAPTER, f"version-{row.pk}", 1, tier="stored", **names)
        yield Hosted(HostingKind.STORAGE, f"version-{row.pk}", row.size_bytes or 0, **names)


def _optimizations() -> Iterator[Hosted]:
    """Attempts at optimization jobs and comparisons, which record their start and end to the second."""
    for row in attempts_unmetered():
        yield Hosted(
            HostingKind.OPTIMIZATION,
            row.subject,
            1,
            base_model=row.base_model,
            instance_type=row.instance_type,
            since=int(row.started_at.timestamp()),
            until=int(row.ended_at.timestamp()) if row.ended_at else 0,
            exact=True,
        )
