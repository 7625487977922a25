"""Registers and publishes adapters. A Celery task validates them by `validation.version_validate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, BinaryIO, Final

from django.db import transaction
from django.db.models import Max

from contracts.adapters.reference import SLUG_PATTERN
from controlplane.adapters.intake import staged
from controlplane.adapters.lineage import FIELDS, lineage_check
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.quotas import quota_check_registration
from controlplane.adapters.selectors import adapter_route, default_number, version_get
from controlplane.adapters.sources import source_of, upload_uri
from controlplane.adapters.steps import first_steps
from controlplane.artifacts.store import artifact_store
from controlplane.artifacts.uploads.services import uploads_take
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue
from controlplane.routes.services import route_remove, route_set
from controlplane.tenants.models import Tenant, User

VALIDATE_TASK: Final = "adapters.validate"


def adapter_register(**values: Any) -> AdapterVersion:
    """Register an adapter or its next version; see `adapter_registration`."""
    with adapter_registration(**values) as version:
        return version


@contextmanager
def adapter_registration(
    *,
    tenant: Tenant,
    name: str,
    base_model: BaseModel,
    files: Mapping[str, BinaryIO] | None = None,
    uri: str | None = None,
    credential: str = "",
    uploads: Sequence[str] | None = None,
    lineage: Mapping[str, str] | None = None,
    make_default: bool | None = None,
    created_by: User | None = None,
) -> Iterator[AdapterVersion]:
    """Register a new adapter, or the next version of an existing one, and enqueue its validation.

    The block gets the version, `pending`, and runs in the transaction that creates it. A Celery task makes
    the version `ready` or `refused`.

    Args:
        files: a PEFT folder's files by name (see `intake.files_by_name`), or one archive of them; or
        uri: location of the files, see `sources`; and
        credential: name of the tenant's credential for the URI; '' for none; or
        uploads: ids of finished uploads: one archive, or both files.
        lineage: values of `lineage.FIELDS`.
        make_default: True points the bare name at the version once it is ready. False pins the bare name's
            current version. None lets it follow the newest ready version, unless one is pinned.

    Raises:
        InvalidInputError: the name, files, URI or lineage are not acceptable; nothing is stored.
        ConflictError: the name is a base model's, or belongs to an adapter of another base model.
    """
    _check_name(tenant, name, base_model)
    values = lineage_check(lineage or {})
    if (files is not None) + (uri is not None) + (uploads is not None) != 1:
        raise InvalidInputError("send either files, or a uri, or uploads", field="files")
    source = "" if uri is None else source_of(uri, tenant=tenant, credential=credential).uri
    # Files are staged before the transaction, which would hold locks meanwhile.
    with nullcontext("") if files is None else staged(files) as staging, transaction.atomic():
        if uploads is not None:
            uploads_take(tenant=tenant, upload_ids=uploads)
            source = upload_uri(list(uploads))
        yield _create_version(
            tenant,
            name,
            base_model,
            make_default=make_default,
            created_by=created_by,
            source=source,
            staging=staging,
            **values,
        )


@transaction.atomic
def adapter_check(
    *,
    tenant: Tenant,
    name: str,
    base_model: BaseModel,
    size_bytes: int = 0,
    lineage: Mapping[str, str] | None = None,
    make_default: bool | None = None,
) -> tuple[int | None, bool]:
    """Check a registration before its files are sent; changes nothing.

    Args:
        size_bytes: of the adapter's files; 0 if unknown.

    Returns:
        (version number of the bare name, whether the new version replaces it once it is ready).

    Raises:
        InvalidInputError, ConflictError: as `adapter_register`.
    """
    _check_name(tenant, name, base_model)
    lineage_check(lineage or {})
    quota_check_registration(tenant=tenant, name=name, adding=size_bytes)
    adapter = Adapter.objects.filter(tenant=tenant, name=name).select_related("pinned").first()
    default = None if adapter is None else default_number(adapter=adapter)
    # The next version that is served ends an automatic pin.
    is_pinned = adapter is not None and adapter.pinned_id is not None and not adapter.pinned_automatically
    return default, bool(make_default) or default is None or not (is_pinned or make_default is False)


def staging_discard(*, version: AdapterVersion) -> None:
    """Remove a settled version's staged files, and then their key from the row."""
    if version.staging:
        artifact_store().remove(version.staging)
        AdapterVersion.objects.filter(pk=version.pk, staging=version.staging).update(staging="")


def adapter_publish(*, adapter: Adapter) -> None:
    """Publish the adapter's current rows to the route table, within this transaction."""
    path = f"adapters/{adapter.tenant_id}/{adapter.name}"
    if (entry := adapter_route(adapter=adapter)) is None:
        route_remove(path=path)
    else:
        route_set(path=path, entry=entry)


def _check_name(tenant: Tenant, name: str, base_model: BaseModel) -> None:
    if SLUG_PATTERN.fullmatch(name) is None:
        raise InvalidInputError(
            "an adapter's name is 1-63 lower-case letters, digits and inner hyphens", field="name"
        )
    if BaseModel.objects.filter(name=name).exists():
        raise ConflictError(f"{name!r} is a base model: choose another name for the adapter")
    adapter = Adapter.objects.filter(tenant=tenant, name=name).select_related("base_model").first()
    if adapter is not None and adapter.deleted_at is not None:
        raise ConflictError(
            f"adapter {name!r} is deleted and keeps its name for the grace time: restore it, or purge it now"
        )
    if adapter is not None:
        _check_base(adapter, base_model)


def _check_base(adapter: Adapter, base_model: BaseModel) -> None:
    if adapter.base_model_id != base_model.pk:
        raise ConflictError(
            f"adapter {adapter.name!r} belongs to base model {adapter.base_model.name}: its versions"
            f" cannot use {base_model.name}; register the new adapter under another name"
        )


def _create_version(
    tenant: Tenant, name: str, base_model: BaseModel, *, make_default: bool | None, **values: Any
) -> AdapterVersion:
    """Create the version with the fields `values`, and its adapter if needed."""
    quota_check_registration(tenant=tenant, name=name)
    adapter, _ = Adapter.objects.get_or_create(
        tenant=tenant, name=name, defaults={"base_model": base_model, "created_by": values["created_by"]}
    )
    # The lock makes the second of two concurrent registrations of one name see the first's version number
    # and base model.
    adapter = adapter_locked(adapter)
    _check_base(adapter, base_model)
    newest = adapter.versions.aggregate(newest=Max("number"))["newest"] or 0
    adapter.last_number = max(newest, adapter.last_number) + 1
    adapter.save(update_fields=["last_number"])
    if make_default is False:
        _keep_default(adapter)
    version = AdapterVersion.objects.create(
        adapter=adapter,
        number=adapter.last_number,
        steps=first_steps(),
        makes_default=bool(make_default),
        **values,
    )
    enqueue(VALIDATE_TASK, version_id=version.pk)
    lineage = {name: values[name] for name in FIELDS if values.get(name)}
    after = {"number": version.number, "base_model": base_model.name, "source": version.source, **lineage}
    audit_record(tenant=adapter.tenant_id, action="adapter_version.register", target=version, after=after)
    return version


def _keep_default(adapter: Adapter) -> None:
    """Pin the bare name's current version, so that no newer one replaces it."""
    number = default_number(adapter=adapter)
    if number is None or (adapter.pinned_id is not None and not adapter.pinned_automatically):
        return
    before = {"pinned": adapter.pinned.number if adapter.pinned else None}
    adapter.pinned, adapter.pinned_automatically = version_get(adapter=adapter, number=number), False
    adapter.save(update_fields=["pinned", "pinned_automatically"])
    after = {"pinned": number}
    audit_record(tenant=adapter.tenant_id, action="adapter.pin", target=adapter, before=before, after=after)


def adapter_locked(adapter: Adapter, *, deleted: bool = False) -> Adapter:
    """Lock and return the adapter. Every change of its names must hold this lock.

    Raises NotFoundError when it was deleted meanwhile (`deleted`: restored or purged).
    """
    rows = Adapter.objects.select_for_update(of=("self",)).select_related("base_model")
    locked = rows.filter(pk=adapter.pk, deleted_at__isnull=not deleted).first()
    if locked is None:
        what = "restored or purged" if deleted else "deleted"
        raise NotFoundError(f"adapter {adapter.name!r} was {what} meanwhile")
    return locked
