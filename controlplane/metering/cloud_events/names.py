"""Checks who may report for whom, and resolves the names in events. Names are looked up once a batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from contracts.route_table import AdapterRoute
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.selectors import adapter_route
from controlplane.catalog.models import BaseModel
from controlplane.metering.cloud_events.envelope import CloudEvent
from controlplane.metering.cloud_events.errors import EventDeadError, EventRefusedError
from controlplane.metering.cloud_events.usage import Meant, UsageData
from controlplane.metering.models import UsageSource
from controlplane.tenants.models import ApiKey, Project, Tenant


@dataclass(frozen=True, slots=True)
class Reporter:
    """The key that sent an event, and the tenants that it may report for.

    Attributes:
        tenant, project: the key's own.
        tenants: tenants that it may report for, with all their projects; None for every one. Without a
            `UsageSource` it is its own tenant, and there its own project only.
        only_project: True if it may report for `project` only.
    """

    key_id: str
    tenant: str
    project: str
    tenants: Collection[str] | None
    only_project: bool

    @classmethod
    def of_key(cls, api_key: ApiKey) -> Reporter:
        """Return the key's present permissions, from its service account's `UsageSource`."""
        source = UsageSource.objects.filter(service_account=api_key.service_account_id).first()
        tenants = (api_key.tenant_id,) if source is None else source.tenants
        return cls(api_key.pk, api_key.tenant_id, api_key.project.slug, tenants, source is None)

    def owner(self, tenant: str | None, project: str | None) -> tuple[str, str]:
        """Return the tenant and project that an event with these names counts for, without checking them."""
        tenant = tenant or self.tenant
        return tenant, project or (self.project if tenant == self.tenant else Project.DEFAULT)


@dataclass(slots=True)
class Names:
    """Tenants, projects and models, cached for one batch."""

    reporter: Reporter
    _tenants: dict[str, bool] = field(default_factory=dict)
    _projects: dict[tuple[str, str], bool] = field(default_factory=dict)
    _models: dict[tuple[str, str], Meant | None] = field(default_factory=dict)

    def owner(self, event: CloudEvent, data: UsageData) -> tuple[str, str]:
        """Return the tenant and project that the event counts for.

        Raises:
            EventRefusedError: the reporter may not report for them.
            EventDeadError: the tenant or project does not exist.
        """
        reporter = self.reporter
        tenant, project = reporter.owner(data.tenant, data.project)
        known = {"id": event.id, "source": event.source}
        if reporter.tenants is not None and tenant not in reporter.tenants:
            raise EventRefusedError(f"this key cannot report for tenant {tenant!r}", **known)
        if reporter.only_project and project != reporter.project:
            raise EventRefusedError(f"this key may report only for project {reporter.project!r}", **known)
        if tenant not in self._tenants:
            self._tenants[tenant] = Tenant.objects.filter(pk=tenant).exists()
        if not self._tenants[tenant]:
            raise EventDeadError(f"there is no tenant {tenant!r}", **known)
        if (tenant, project) not in self._projects:
            found = Project.objects.filter(tenant_id=tenant, slug=project).exists()
            self._projects[tenant, project] = found
        if not self._projects[tenant, project]:
            raise EventDeadError(f"tenant {tenant} has no project {project!r}", **known)
        return tenant, project

    def meant(self, event: CloudEvent, tenant: str, model: str) -> Meant:
        """Resolve `model` for the tenant. Raises EventDeadError if it names nothing."""
        if (tenant, model) not in self._models:
            self._models[tenant, model] = _resolve(tenant, model)
        if (found := self._models[tenant, model]) is None:
            reason = f"tenant {tenant} has no model {model!r}"
            raise EventDeadError(reason, id=event.id, source=event.source)
        return found


def _resolve(tenant: str, model: str) -> Meant | None:
    try:
        return _by_engine_name(tenant, EngineName.parse(model))
    except ContractError:
        pass
    name, at, tag = model.partition("@")
    adapter = Adapter.objects.filter(tenant_id=tenant, name=name, deleted_at=None).first()
    route = None if adapter is None else adapter_route(adapter=adapter)
    if route is None:
        known = not at and BaseModel.objects.filter(name=name).exists()
        return Meant(name) if known else None
    number = _number(route, tag) if at else route.default
    if number is None or number not in route.versions:
        return None
    return Meant(route.base, route.versions[number].name, tag if at and tag in route.aliases else "")


def _number(route: AdapterRoute, tag: str) -> int | None:
    if tag in route.aliases:
        return route.aliases[tag]
    digits = tag.removeprefix("v")
    return int(digits) if digits != tag and digits.isdecimal() and len(digits) < 10 else None


def _by_engine_name(tenant: str, name: EngineName) -> Meant | None:
    """Find a version by its content, even a deleted one: external fleets may report late."""
    if name.tenant != tenant:
        return None
    versions = AdapterVersion.objects.filter(adapter__tenant_id=tenant, adapter__name=name.adapter)
    version = versions.filter(number=name.version, sha256__startswith=name.sha12)
    found = version.select_related("adapter__base_model").first()
    return None if found is None else Meant(found.adapter.base_model.name, found.engine_name)
