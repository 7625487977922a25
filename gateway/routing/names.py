"""Resolves model names: a pure look-up in one immutable route table."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Final

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import BaseRoute, CopyRoute
from contracts.route_table import AdapterRoute, RouteTable
from gateway.errors import ModelNotFound
from gateway.routing.splits import choose_arm, passed_over

FALLBACK: Final = "fallback"
"""The arm of a fallback model."""
_VERSION: Final = re.compile(r"v([1-9][0-9]{0,8})")
_LISTED: Final = 50
"""Most names in a `model_not_found` message."""


@dataclass(slots=True)
class Resolution:
    """The current target of a model name.

    Attributes:
        base: name of the base model; `route` its entry, without copies when it is not deployed.
        adapter: the adapter version to apply, None for the base model.
        model: the served model's permanent name: `<base>` or `<adapter>@v<n>`.
        alias: the alias in the client's model name, or "".
        arm: the request's arm of a split, as `v<n>`; FALLBACK; "" without a split.
        fallbacks: names of the models to serve instead, in order, when no copy can.
        passed_over: ids of copies that get this caller's requests only while no other copy accepts any.
    """

    base: str
    route: BaseRoute
    adapter: AdapterRef | None
    model: str
    alias: str = ""
    arm: str = ""
    fallbacks: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def copies(self) -> tuple[CopyRoute, ...]:
        """Every copy that can serve it, in no order."""
        return self.route.copies_for(self.adapter)

    @property
    def merged_copies(self) -> tuple[CopyRoute, ...]:
        """The copies that have the adapter merged into their weights; they get its requests first."""
        return self.route.merged_copies(self.engine_name)

    @property
    def is_excluded(self) -> bool:
        """True if the base model has copies or deployments, and none of them can serve the adapter."""
        return self.adapter is not None and self.route.excludes(self.adapter)

    @property
    def engine_name(self) -> str:
        """Engine name of the adapter, "" for the base model."""
        return "" if self.adapter is None else self.adapter.name


def resolve(
    table: RouteTable, tenant: str, model: str, subject: str = "", *, allowed: Container[str] | None = None
) -> Resolution:
    """Resolve `model` for `tenant`: `<base>`, `<adapter>`, `<adapter>@<alias>` or `<adapter>@v<n>`.

    Args:
        subject: keeps its arm of a split alias or canary: a user of the tenant's, or the request.
        allowed: names that the key may call (`KeyScope.models`); None for all of the tenant.

    Raises:
        ModelNotFound: unknown, another tenant's, or outside of `allowed`, without saying which.
    """
    name, at, tag = model.partition("@")
    if not _within(allowed, model, name):
        raise _not_found(table, tenant, model, allowed)
    adapter = _adapter(table, tenant, name)
    if adapter is not None:
        alias = tag if at and tag in adapter.aliases else ""
        arms = _arms(adapter, alias)
        if arms:
            number: int | None = choose_arm(arms, f"{tenant}\0{name}\0{alias}\0{subject}")
        else:
            number = _version(adapter, tag) if at else adapter.default
        reference = None if number is None else adapter.versions.get(number)
        if reference is None:
            raise _not_found(table, tenant, model, allowed)
        route = table.bases.get(adapter.base) or BaseRoute(adapter.base, 0)
        return Resolution(
            adapter.base,
            route,
            reference,
            f"{name}@v{number}",
            alias,
            f"v{number}" if arms else "",
            () if at and not alias else adapter.fallbacks.get(alias, ()),
            () if route.canary is None else passed_over(route, tenant, subject),
        )
    base = table.bases.get(model)
    if base is None or not _permitted(table, tenant, model):
        raise _not_found(table, tenant, model, allowed)
    others = () if base.canary is None else passed_over(base, tenant, subject)
    return Resolution(model, base, None, model, passed_over=others)


def fallbacks(
    table: RouteTable,
    tenant: str,
    resolution: Resolution,
    subject: str = "",
    *,
    allowed: Container[str] | None = None,
) -> Iterator[Resolution]:
    """Yield the fallbacks of `resolution` in the tenant's order, without unknown or forbidden names."""
    for name in resolution.fallbacks:
        try:
            found = resolve(table, tenant, name, subject, allowed=allowed)
        except ModelNotFound:
            continue
        if found.model != resolution.model:
            yield replace(found, alias=resolution.alias, arm=FALLBACK, fallbacks=())


def dropped_parameters(
    table: RouteTable, tenant: str, model: str, *, allowed: Container[str] | None = None
) -> tuple[str, ...]:
    """Return the parameters to remove from requests for the base model behind `model`.

    Empty for a model that the caller may not call, so that a refusal does not reveal that the model exists.
    """
    name = model.partition("@")[0]
    adapter = _adapter(table, tenant, name)
    base = model if adapter is None else adapter.base
    if not _within(allowed, model, name) or (adapter is None and not _permitted(table, tenant, base)):
        return ()
    route = table.bases.get(base)
    return () if route is None else route.dropped_parameters


def callable_models(
    table: RouteTable, tenant: str, *, allowed: Container[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (model name, base model) of all models that `tenant` may call: bases, adapters and aliases.

    If `allowed` is not None, only names in it are included.
    """
    for name in sorted(table.bases):
        if _permitted(table, tenant, name) and _within(allowed, name):
            yield name, name
    for name, adapter in sorted(table.adapters.get(tenant, {}).items()):
        if adapter.default in adapter.versions and _within(allowed, name):
            yield name, adapter.base
        for alias, number in sorted(adapter.aliases.items()):
            if number in adapter.versions and _within(allowed, f"{name}@{alias}", name):
                yield f"{name}@{alias}", adapter.base


def _adapter(table: RouteTable, tenant: str, name: str) -> AdapterRoute | None:
    return table.adapters.get(tenant, {}).get(name)


def _within(allowed: Container[str] | None, *names: str) -> bool:
    return allowed is None or any(name in allowed for name in names)


def _permitted(table: RouteTable, tenant: str, base: str) -> bool:
    bases = table.tenants[tenant].bases
    return bases is None or base in bases


def _arms(adapter: AdapterRoute, alias: str) -> list[tuple[int, int]]:
    return [arm for arm in adapter.splits.get(alias, ()) if arm[1] > 0 and arm[0] in adapter.versions]


def _version(adapter: AdapterRoute, tag: str) -> int | None:
    number = adapter.aliases.get(tag)
    if number is None and (match := _VERSION.fullmatch(tag)):
        return int(match[1])
    return number


def _not_found(
    table: RouteTable, tenant: str, model: str, allowed: Container[str] | None = None
) -> ModelNotFound:
    names = [name for name, _ in callable_models(table, tenant, allowed=allowed)]
    listed = ", ".join(names[:_LISTED]) + (
        f" and {len(names) - _LISTED} more (see GET /v1/models)" if len(names) > _LISTED else ""
    )
    return ModelNotFound(
        f"The model {model[:200]!r} does not exist or you do not have access to it. "
        f"This key may call: {listed or 'no model yet'}.",
        param="model",
    )
