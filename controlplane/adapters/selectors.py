"""Reads of adapters, versions and aliases."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from django.db.models import Count, Exists, Max, OuterRef, Prefetch, QuerySet

from contracts.route_table import AdapterRoute
from controlplane.adapters.models import Adapter, AdapterVersion, Alias, AliasArm, AliasChange
from controlplane.catalog.models import BaseModel
from controlplane.errors import NotFoundError
from controlplane.platform.row_lookup import row_get
from controlplane.platform.row_security.name_search import ADAPTER_NAMES, labelled, named
from controlplane.tenants.models import Tenant

_LONG: Final = {
    name: (f"{name}__steps", f"{name}__smoke", f"{name}__notes", f"{name}__card", f"{name}__card_html")
    for name in ("pinned", "version")
}


def adapter_list(*, tenant: Tenant, deleted: bool = False) -> QuerySet[Adapter]:
    """List the tenant's adapters by name, each with `live_versions` (newest first) and `live_aliases`.

    `deleted` lists the deleted adapters, which can be restored, instead of the live ones.
    """
    # Prefetched to lists, not to the managers' caches, for which Django builds a queryset per row. It still
    # sets each row's adapter.
    live = AdapterVersion.objects.filter(deleted_at=None).defer("card", "card_html")
    versions = Prefetch("versions", live, to_attr="live_versions")
    rows = alias_rows().select_related(None).select_related("version")
    aliases = Prefetch("aliases", rows, to_attr="live_aliases")
    adapters = Adapter.objects.filter(tenant=tenant, deleted_at__isnull=not deleted)
    # Defer long columns that no list shows.
    adapters = adapters.select_related("base_model", "pinned").defer("base_model__modules", *_LONG["pinned"])
    # The model declares both attributes itself.
    return adapters.prefetch_related(versions, aliases).order_by("name")  # type: ignore[no-redef]


def adapter_named(adapters: QuerySet[Adapter], part: str) -> QuerySet[Adapter]:
    """Filter adapters by names that contain `part`."""
    return named(adapters, ADAPTER_NAMES, part)


def adapter_names(*, tenant: Tenant | None, part: str) -> QuerySet[Adapter, tuple[str, str]]:
    """List (tenant, name) of live adapters whose name contains `part`; of all tenants for None."""
    rows = Adapter.objects.filter(deleted_at=None) if tenant is None else adapter_list(tenant=tenant)
    rows = adapter_named(rows.prefetch_related(None).select_related(None), part)
    return rows.order_by("name", "tenant_id").values_list("tenant_id", "name")


def adapter_callable(*, tenant: Tenant) -> QuerySet[Adapter]:
    """List the tenant's adapters that have a ready version, by name."""
    return adapter_with_status(adapter_list(tenant=tenant), AdapterVersion.Status.READY)


def adapter_callable_names(*, tenant: Tenant) -> QuerySet[Adapter, str]:
    """List the names of the tenant's adapters that have a ready version."""
    return adapter_callable(tenant=tenant).prefetch_related(None).values_list("name", flat=True)


def adapter_callable_find(*, tenant: Tenant, name: str) -> Adapter | None:
    """Return the tenant's adapter if it has a ready version, else None."""
    return adapter_callable(tenant=tenant).filter(name=name).first()


def adapter_with_status(adapters: QuerySet[Adapter], status: str) -> QuerySet[Adapter]:
    """Filter adapters by those with a version in this status."""
    versions = AdapterVersion.objects.filter(adapter=OuterRef("pk"), status=status, deleted_at=None)
    return adapters.filter(Exists(versions))


def adapter_on_base(adapters: QuerySet[Adapter], base_model: str) -> QuerySet[Adapter]:
    """Filter adapters by the name of their base model."""
    return adapters.filter(base_model__name=base_model)


def adapter_labelled(adapters: QuerySet[Adapter], labels: Mapping[str, str]) -> QuerySet[Adapter]:
    """Filter adapters by those that have all of `labels`."""
    return labelled(adapters, ADAPTER_NAMES, labels)


def adapter_find(*, tenant: Tenant, name: str) -> Adapter | None:
    """Return the tenant's adapter; None if there is none."""
    return adapter_list(tenant=tenant).filter(name=name).first()


def adapter_base_model(*, tenant: str, name: str) -> BaseModel | None:
    """Return the base model of the tenant's adapter; None if there is no such adapter."""
    return BaseModel.objects.filter(adapters__tenant_id=tenant, adapters__name=name).first()


def adapter_counts(*, tenants: Collection[str]) -> dict[str, int]:
    """Count the adapters of these tenants, by tenant; tenants without any are left out. One query."""
    adapters = Adapter.objects.filter(tenant__in=tenants, deleted_at=None)
    # Clear the model's default order, which would be added to the grouping.
    return dict(adapters.order_by().values_list("tenant").annotate(Count("pk")))


def adapter_get(*, tenant: Tenant, name: str, deleted: bool = False) -> Adapter:
    """Return the tenant's adapter. Raises NotFoundError, also for another tenant's."""
    adapter = adapter_list(tenant=tenant, deleted=deleted).filter(name=name).first()
    if adapter is None:
        if deleted and Adapter.objects.filter(tenant=tenant, name=name).exists():
            raise NotFoundError(
                f"adapter {name!r} is not deleted: only deleted adapters can be restored or purged"
            )
        raise NotFoundError(f"tenant {tenant.pk} has no adapter {name!r}")
    return adapter


def version_list(*, adapter: Adapter, deleted: bool = False) -> QuerySet[AdapterVersion]:
    """List the adapter's versions, newest first; `deleted` lists the deleted ones instead."""
    versions = AdapterVersion.objects.filter(adapter=adapter, deleted_at__isnull=not deleted)
    return versions.select_related("adapter").defer("card", "card_html")


def version_counts(*, tenant: Tenant) -> dict[str, int]:
    """Count the tenant's versions by status; a status without versions is left out."""
    versions = AdapterVersion.objects.filter(
        adapter__tenant=tenant, adapter__deleted_at=None, deleted_at=None
    )
    return dict(versions.order_by().values_list("status").annotate(count=Count("*")))


def version_list_refused(*, tenant: Tenant, since: dt.datetime) -> QuerySet[AdapterVersion, tuple[str, int]]:
    """List adapter name and number of the versions that were refused since then, newest first."""
    versions = AdapterVersion.objects.filter(
        adapter__tenant=tenant,
        adapter__deleted_at=None,
        deleted_at=None,
        status=AdapterVersion.Status.REFUSED,
        created_at__gte=since,
    )
    return versions.order_by("-created_at").values_list("adapter__name", "number")


def version_get(*, adapter: Adapter, number: int, deleted: bool = False) -> AdapterVersion:
    """Return one row of the adapter. Raises NotFoundError."""
    rows = version_list(adapter=adapter, deleted=deleted).filter(number=number)
    return row_get(rows, f"adapter {adapter.name} has no version {number}")


def alias_list(*, adapter: Adapter) -> QuerySet[Alias]:
    """List the adapter's aliases by name."""
    return alias_rows().filter(adapter=adapter)


def alias_rows() -> QuerySet[Alias]:
    """List all aliases by name, each with its version and `live_arms`."""
    arms = Prefetch("arms", AliasArm.objects.select_related("version"), to_attr="live_arms")
    aliases = Alias.objects.select_related("version", "adapter").defer(*_LONG["version"])
    return aliases.prefetch_related(arms).order_by("name")  # type: ignore[no-redef]  # as above


def alias_get(*, adapter: Adapter, name: str) -> Alias:
    """Return one row of the adapter. Raises NotFoundError."""
    rows = alias_list(adapter=adapter).filter(name=name)
    return row_get(rows, f"adapter {adapter.name} has no alias {name!r}")


def alias_state(alias: Alias) -> dict[str, Any]:
    """Return the alias's current target in the form of AliasChange."""
    arms = [[arm.version.number, arm.percent] for arm in alias.arms.select_related("version")]
    return {"version": alias.version.number, "arms": arms}


def default_number(*, adapter: Adapter) -> int | None:
    """Return the version number of the bare name; None while none is ready."""
    if adapter.pinned is not None:
        return adapter.pinned.number
    ready = version_list(adapter=adapter).filter(status=AdapterVersion.Status.READY)
    newest: int | None = ready.aggregate(newest=Max("number"))["newest"]
    return newest


def alias_change_list(*, adapter: Adapter, name: str | None = None) -> QuerySet[AliasChange]:
    """List the changes of one alias, or of all the adapter's aliases, newest first; removed ones too."""
    changes = AliasChange.objects.filter(adapter=adapter).order_by("-pk")
    return changes if name is None else changes.filter(alias=name)


def alias_change_newest(*, adapter: Adapter, name: str) -> AliasChange | None:
    """Return the alias's newest change, or None."""
    return alias_change_list(adapter=adapter, name=name).first()


def alias_changes_newest(*, adapter: Adapter) -> dict[str, AliasChange]:
    """Return each alias's newest change, removed aliases included, in one query."""
    newest = AliasChange.objects.filter(adapter=adapter).order_by().values("alias").annotate(last=Max("pk"))
    changes = AliasChange.objects.filter(pk__in=newest.values("last"))
    return {change.alias: change for change in changes}


def model_exists(*, tenant: Tenant, model: str) -> bool:
    """Return True if the tenant can call `model`, a name as clients write it."""
    name, separator, tag = model.partition("@")
    versions = AdapterVersion.objects.filter(
        adapter__tenant=tenant,
        adapter__name=name,
        adapter__deleted_at=None,
        status=AdapterVersion.Status.READY,
        deleted_at=None,
    )
    if not separator:
        return versions.exists() or BaseModel.objects.filter(name=name).exists()
    if (number := tag.removeprefix("v")) != tag and number.isdecimal() and len(number) < 10:
        return versions.filter(number=int(number)).exists()
    return versions.filter(adapter__aliases__name=tag).exists()


def adapter_route(*, adapter: Adapter) -> AdapterRoute | None:
    """Build the adapter's route entry from its rows; None if it is deleted or has no ready version."""
    versions = list(version_list(adapter=adapter).filter(status=AdapterVersion.Status.READY))
    if not versions or adapter.deleted_at is not None:
        return None
    pinned = adapter.pinned
    aliases = list(alias_list(adapter=adapter))
    splits = {
        alias.name: tuple((arm.version.number, arm.percent) for arm in alias.live_arms) for alias in aliases
    }
    fallbacks = {"": adapter.fallback} | {alias.name: alias.fallback for alias in aliases}
    return AdapterRoute(
        base=adapter.base_model.name,
        default=pinned.number if pinned else versions[0].number,
        versions={version.number: version.ref() for version in versions},
        aliases={alias.name: alias.version.number for alias in aliases},
        splits={alias: arms for alias, arms in splits.items() if arms},
        fallbacks={alias: tuple(models) for alias, models in fallbacks.items() if models},
        created=int(adapter.created_at.timestamp()),
        aliases_created=_aliases_created(adapter, aliases),
    )


def _aliases_created(adapter: Adapter, aliases: Sequence[Alias]) -> dict[str, int]:
    """Return the Unix seconds at which each alias was made, or made again after its removal."""
    if not aliases:
        return {}
    names = [alias.name for alias in aliases]
    made = AliasChange.objects.filter(adapter=adapter, alias__in=names, before__isnull=True).order_by()
    newest = made.values_list("alias").annotate(Max("created_at"))
    return {name: int(created_at.timestamp()) for name, created_at in newest}
