"""Reads of adapters, versions and aliases."""

from __future__ import annotations

from django.db.models import Prefetch, QuerySet

from controlplane.adapters.models import Adapter, AdapterVersion, Alias
from controlplane.errors import NotFoundError
from controlplane.tenants.models import Tenant
from gateway.wire import AdapterRoute


def adapter_list(*, tenant: Tenant) -> QuerySet[Adapter]:
    """The tenant's adapters by name, each with its versions (newest first) and aliases."""
    aliases = Prefetch("aliases", Alias.objects.select_related("version"))
    adapters = Adapter.objects.filter(tenant=tenant).select_related("base_model", "pinned")
    return adapters.prefetch_related("versions", aliases).order_by("name")


def adapter_get(*, tenant: Tenant, name: str) -> Adapter:
    """Raises NotFoundError, also for another tenant's adapter."""
    adapter = adapter_list(tenant=tenant).filter(name=name).first()
    if adapter is None:
        raise NotFoundError(f"tenant {tenant.pk} has no adapter {name!r}")
    return adapter


def version_list(*, adapter: Adapter) -> QuerySet[AdapterVersion]:
    """The adapter's versions, newest first."""
    return AdapterVersion.objects.filter(adapter=adapter).select_related("adapter")


def version_get(*, adapter: Adapter, number: int) -> AdapterVersion:
    """Raises NotFoundError."""
    version = version_list(adapter=adapter).filter(number=number).first()
    if version is None:
        raise NotFoundError(f"adapter {adapter.name} has no version {number}")
    return version


def alias_list(*, adapter: Adapter) -> QuerySet[Alias]:
    """The adapter's aliases, by name."""
    return Alias.objects.filter(adapter=adapter).select_related("version", "adapter").order_by("name")


def alias_get(*, adapter: Adapter, name: str) -> Alias:
    """Raises NotFoundError."""
    alias = alias_list(adapter=adapter).filter(name=name).first()
    if alias is None:
        raise NotFoundError(f"adapter {adapter.name} has no alias {name!r}")
    return alias


def adapter_route(*, adapter: Adapter) -> AdapterRoute | None:
    """The adapter's route entry as the rows are now; None while no version is ready."""
    versions = list(version_list(adapter=adapter).filter(status=AdapterVersion.Status.READY))
    if not versions:
        return None
    pinned = adapter.pinned
    return AdapterRoute(
        base=adapter.base_model.name,
        default=pinned.number if pinned else versions[0].number,
        versions={version.number: version.ref() for version in versions},
        aliases={alias.name: alias.version.number for alias in alias_list(adapter=adapter)},
    )
