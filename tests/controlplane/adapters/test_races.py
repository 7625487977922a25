"""Concurrent changes: versions stay consecutive, and names stay unique."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from controlplane.adapters.aliases import adapter_pin, alias_move
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.errors import ConflictError
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import Tenant
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results, or the ConflictError raised, of calls that run in threads at once."""

    def run(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ConflictError as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def register(tenant: Tenant, base_model: BaseModel) -> AdapterVersion:
    files = {name: BytesIO(data) for name, data in adapter_files().items()}
    return adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=files)


def test_versions_registered_at_once_are_numbered_without_gap(tenant: Tenant, base_model: BaseModel) -> None:
    versions = at_once([lambda: register(tenant, base_model)] * 6)
    assert sorted(version.number for version in versions) == [1, 2, 3, 4, 5, 6]
    at_once([partial(version_validate, version_id=version.pk) for version in versions])
    route = route_table().adapters["acme"]["pirate"]
    assert (set(route.versions), route.default) == ({1, 2, 3, 4, 5, 6}, 6)
    adapter = Adapter.objects.get()
    moves = at_once(
        [partial(alias_move, adapter=adapter, name="prod", number=number) for number in (1, 2, 3, 4)]
    )
    assert len(moves) == 4
    alias = adapter.aliases.get()
    assert route_table().adapters["acme"]["pirate"].aliases == {"prod": alias.version.number}


def test_an_adapter_registered_at_once_for_two_base_models_belongs_to_one(
    tenant: Tenant, base_model: BaseModel
) -> None:
    other = base_model_register(name="other-base", source=Path(base_model.source))
    results = at_once([partial(register, tenant, base) for base in (base_model, other) * 3])
    adapter = Adapter.objects.get()
    assert len([item for item in results if isinstance(item, ConflictError)]) == 3
    assert adapter.versions.count() == 3


def test_a_name_is_never_both_a_base_model_and_an_adapter(tenant: Tenant, base_model: BaseModel) -> None:
    version = register(tenant, base_model)
    at_once(
        [
            lambda: version_validate(version_id=version.pk),
            lambda: base_model_register(name="pirate", source=Path(base_model.source)),
        ]
    )
    table = route_table()
    assert ("pirate" in table.bases) != ("pirate" in table.adapters.get("acme", {}))


def test_changes_of_several_adapters_names_wait_for_each_other(tenant: Tenant, base_model: BaseModel) -> None:
    """All of them lock the route table before the audit log: in another order two could block each other."""
    adapters = []
    for name in ("one", "two"):
        files = {item: BytesIO(data) for item, data in adapter_files().items()}
        version = adapter_register(tenant=tenant, name=name, base_model=base_model, files=files)
        version_validate(version_id=version.pk)
        adapters.append(version.adapter)

    def aliased(adapter: Adapter) -> None:
        for number in range(10):
            alias_move(adapter=adapter, name=f"alias-{number}", number=1)

    def pinned(adapter: Adapter) -> None:
        for number in range(20):
            adapter_pin(adapter=adapter, number=None if number % 2 else 1)

    at_once([partial(aliased, adapters[0]), partial(pinned, adapters[1])])
    table = route_table().adapters["acme"]
    assert (len(table["one"].aliases), table["two"].default) == (10, 1)
