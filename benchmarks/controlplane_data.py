"""Fills a migrated database with one tenant's adapters and keys: `python -m benchmarks.controlplane_data`.

Rows are written in bulk as the services would leave them, with their entries in the route table. Prints a
key with both scopes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
from collections.abc import Iterator
from itertools import islice
from typing import Final

import django

from contracts.keys import KeyRoute
from contracts.route_table import AdapterRoute, RouteEntry, entry_to_dict

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from django.db import connection, transaction  # noqa: E402  # models need Django to be set up

from controlplane.adapters.models import Adapter, AdapterVersion, Alias  # noqa: E402
from controlplane.catalog.models import BaseModel  # noqa: E402
from controlplane.deployments.copies.services import copy_register  # noqa: E402
from controlplane.routes.models import RouteCounter, RouteEntryRow  # noqa: E402
from controlplane.tenants.models import ApiKey, Tenant  # noqa: E402
from controlplane.tenants.services import api_key_create, tenant_create  # noqa: E402

TENANT: Final = "scale"
SECRET: Final = "secret"
"""Of every key made in bulk."""
_BATCH: Final = 2_000
_STEPS: Final = [
    {"name": name, "title": name.title(), "status": "done", "detail": "as expected"}
    for name in ("structure", "config", "tensors", "values", "store", "smoke")
]


def build(*, adapters: int, keys: int, upstream: str = "http://127.0.0.1:1") -> str:
    """A tenant with so many adapters (two versions and an alias each) and keys; the text of one more key."""
    tenant = tenant_create(slug=TENANT, name="Scale")
    base = BaseModel.objects.create(
        name="base",
        served_name="base",
        source="/",
        architecture="Llama",
        max_model_len=2048,
        dtype="bfloat16",
        modules={},
    )
    copy_register(base_model=base, kind="openai_http", url=upstream)
    key, text = api_key_create(tenant=tenant, name="bench", scopes=["manage", "inference"])
    adapters_add(tenant, base, adapters)
    keys_add(tenant, key, keys)
    # The entries written here belong to a version of their own.
    RouteCounter.objects.update(version=RouteCounter.objects.get().version + 1)
    # As autovacuum does within minutes: without figures of the tables every plan is a guess.
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return text


def name_of(number: int) -> str:
    """The number-th adapter's name."""
    return f"bot-{number:06}"


def adapters_add(tenant: Tenant, base: BaseModel, count: int) -> None:
    """Adapters with two versions and an alias each."""
    for start in range(0, count, _BATCH):
        numbers = range(start, min(start + _BATCH, count))
        with transaction.atomic():
            rows = Adapter.objects.bulk_create(
                Adapter(tenant=tenant, name=name_of(number), base_model=base, last_number=2)
                for number in numbers
            )
            versions = AdapterVersion.objects.bulk_create(
                _version(adapter, number) for adapter in rows for number in (1, 2)
            )
            pairs = list(zip(versions[::2], versions[1::2], strict=True))
            Alias.objects.bulk_create(
                Alias(adapter=first.adapter, name="prod", version=first) for first, _ in pairs
            )
            _route(
                (
                    f"adapters/{tenant.pk}/{first.adapter.name}",
                    AdapterRoute(
                        base.name,
                        2,
                        {1: first.ref(), 2: second.ref()},
                        {"prod": 1},
                        created=int(first.adapter.created_at.timestamp()),
                    ),
                )
                for first, second in pairs
            )


def _version(adapter: Adapter, number: int) -> AdapterVersion:
    sha256 = hashlib.sha256(f"{adapter.name}/{number}".encode()).hexdigest()
    return AdapterVersion(
        adapter=adapter,
        number=number,
        status="ready",
        steps=_STEPS,
        sha256=sha256,
        rank=8,
        uri=f"file:///store/{sha256}/",
        size_bytes=1_000_000,
        config={"r": 8, "target_modules": ["q_proj"]},
    )


def keys_add(tenant: Tenant, like: ApiKey, count: int) -> None:
    """Keys for inference, of the project that `like` is of."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    rows = (
        ApiKey(
            public_id=secrets.token_hex(6),
            tenant=tenant,
            name=f"key {number}",
            project=like.project,
            secret_sha256=digest,
            scopes=["inference"],
        )
        for number in range(count)
    )
    while batch := list(islice(rows, _BATCH)):
        with transaction.atomic():
            ApiKey.objects.bulk_create(batch)
            _route((f"keys/{row.pk}", KeyRoute(tenant.pk, digest)) for row in batch)


def _route(entries: Iterator[tuple[str, RouteEntry]]) -> None:
    RouteEntryRow.objects.bulk_create(
        (RouteEntryRow(path=path, entry=entry_to_dict(entry)) for path, entry in entries), batch_size=_BATCH
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapters", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--upstream", default="http://127.0.0.1:1")
    arguments = parser.parse_args()
    print(build(adapters=arguments.adapters, keys=arguments.keys, upstream=arguments.upstream))


if __name__ == "__main__":
    main()
