"""Updates labels, notes and lineage of adapters and versions, and deletes, restores and purges them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.adapters.lineage import lineage_check
from controlplane.adapters.models import Adapter, AdapterVersion, Alias, ArtifactRemoval
from controlplane.adapters.selectors import version_get
from controlplane.adapters.services import adapter_locked, adapter_publish
from controlplane.artifacts.store import artifact_store
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.row_security.scope import every_row
from controlplane.routes.services import route_lock
from controlplane.webhooks.outbox import event_emit

MAX_LABELS: Final = 32
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9._/-]{0,61}[a-z0-9])?")
_BATCH: Final = 100


@transaction.atomic
def adapter_update(
    *, adapter: Adapter, labels: Mapping[str, str] | None = None, notes: str | None = None
) -> Adapter:
    """Replace labels or notes; None leaves them unchanged.

    Raises:
        InvalidInputError: more than MAX_LABELS labels, or a malformed key or value.
    """
    adapter = adapter_locked(adapter)
    before = {"labels": adapter.labels, "notes": adapter.notes}
    if labels is not None:
        adapter.labels = _checked(labels)
    if notes is not None:
        adapter.notes = notes
    adapter.save(update_fields=["labels", "notes"])
    after = {"labels": adapter.labels, "notes": adapter.notes}
    audit_record(
        tenant=adapter.tenant_id, action="adapter.update", target=adapter, before=before, after=after
    )
    return adapter


@transaction.atomic
def version_update(*, version: AdapterVersion, **values: str) -> AdapterVersion:
    """Replace the given fields of `lineage.FIELDS`. Raises as `lineage_check` does."""
    values = lineage_check(values)
    adapter = adapter_locked(version.adapter)
    version.refresh_from_db()
    before = {name: getattr(version, name) for name in values}
    AdapterVersion.objects.filter(pk=version.pk).update(**values)
    version.refresh_from_db()
    audit_record(
        tenant=adapter.tenant_id, action="adapter_version.update", target=version, before=before, after=values
    )
    return version


@transaction.atomic
def adapter_delete(*, adapter: Adapter) -> None:
    """Remove an adapter from routes and lists; it can be restored within the grace time."""
    adapter = adapter_locked(adapter)
    adapter.deleted_at = timezone.now()
    adapter.save(update_fields=["deleted_at"])
    adapter_publish(adapter=adapter)
    audit_record(tenant=adapter.tenant_id, action="adapter.delete", target=adapter, before=snapshot(adapter))
    event_emit(tenant=adapter.tenant_id, type="adapter.deleted", data={"adapter": adapter.name})


@transaction.atomic
def adapter_restore(*, adapter: Adapter) -> Adapter:
    """Restore a deleted adapter with its versions and aliases; callable within a second.

    Raises:
        NotFoundError: it is not deleted, or was purged.
        ConflictError: a base model has the name now.
    """
    adapter = adapter_locked(adapter, deleted=True)
    # This lock keeps base models from being registered.
    route_lock()
    if BaseModel.objects.filter(name=adapter.name).exists():
        raise ConflictError(f"a base model is now called {adapter.name!r}, so the adapter cannot be restored")
    adapter.deleted_at = None
    adapter.save(update_fields=["deleted_at"])
    adapter_publish(adapter=adapter)
    audit_record(tenant=adapter.tenant_id, action="adapter.restore", target=adapter, after=snapshot(adapter))
    event_emit(tenant=adapter.tenant_id, type="adapter.restored", data={"adapter": adapter.name})
    return adapter


def adapter_purge(*, adapter: Adapter) -> None:
    """Remove a deleted adapter for good, with its files unless another version has the same. Usage stays.

    Raises:
        NotFoundError: it is not deleted (delete it first), or was purged.
    """
    with transaction.atomic():
        adapter = adapter_locked(adapter, deleted=True)
        stagings, digests = _files(list(adapter.versions.all()))
        audit_record(
            tenant=adapter.tenant_id, action="adapter.purge", target=adapter, before=snapshot(adapter)
        )
        adapter.delete()
    _discard(stagings, digests)


@transaction.atomic
def version_delete(*, version: AdapterVersion) -> None:
    """Remove a version from routes and lists; it can be restored within the grace time.

    Raises:
        ConflictError: a name refers to it; the text says which.
    """
    adapter = adapter_locked(version.adapter)
    aliases = Alias.objects.filter(Q(version=version) | Q(arms__version=version), adapter=adapter)
    if names := sorted(set(aliases.values_list("name", flat=True))):
        held = ", ".join(f"{adapter.name}@{name}" for name in names)
        raise ConflictError(
            f"version {version.number} is the target of {held}: point {held} at another version first"
        )
    if adapter.pinned_id == version.pk:
        raise ConflictError(f"version {version.number} is pinned as {adapter.name}: unpin it first")
    if AdapterVersion.objects.filter(pk=version.pk, deleted_at=None).update(deleted_at=timezone.now()):
        adapter_publish(adapter=adapter)
        audit_record(
            tenant=adapter.tenant_id,
            action="adapter_version.delete",
            target=version,
            before=_audit_values(version),
        )


@transaction.atomic
def version_restore(*, adapter: Adapter, number: int) -> AdapterVersion:
    """Restore a deleted version.

    Raises:
        NotFoundError: it is not deleted, or was purged.
    """
    adapter = adapter_locked(adapter)
    version = version_get(adapter=adapter, number=number, deleted=True)
    version.deleted_at = None
    version.save(update_fields=["deleted_at"])
    adapter_publish(adapter=adapter)
    audit_record(
        tenant=adapter.tenant_id,
        action="adapter_version.restore",
        target=version,
        after=_audit_values(version),
    )
    return version


def purge_expired() -> int:
    """Purge adapters and versions whose grace time is over; return how many."""
    before = timezone.now() - timedelta(days=settings.GRAFTWORK.adapter_grace_days)
    purged = 0
    for adapter in Adapter.objects.filter(deleted_at__lte=before).order_by("pk")[:_BATCH]:
        adapter_purge(adapter=adapter)
        purged += 1
    expired = AdapterVersion.objects.filter(deleted_at__lte=before).order_by("pk")[:_BATCH]
    for version in expired.select_related("adapter"):
        purged += _purge(version, before)
    for removal in ArtifactRemoval.objects.order_by("pk")[:_BATCH]:
        _remove(removal.pk)
    return purged


def _purge(version: AdapterVersion, before: datetime) -> bool:
    with transaction.atomic():
        # The condition spares a version that was restored meanwhile.
        gone, _ = AdapterVersion.objects.filter(pk=version.pk, deleted_at__lte=before).delete()
        if gone:
            audit_record(
                tenant=version.adapter.tenant_id,
                action="adapter_version.purge",
                target=version,
                before=_audit_values(version),
            )
    if gone:
        _discard(*_files([version]))
    return bool(gone)


def _audit_values(version: AdapterVersion) -> dict[str, Any]:
    return {"number": version.number, "status": version.status, "sha256": version.sha256}


def _files(versions: list[AdapterVersion]) -> tuple[list[str], list[str]]:
    """Return (staging folders, digests) of the versions' files."""
    stagings = [version.staging for version in versions if version.staging]
    return stagings, sorted({version.sha256 for version in versions if version.sha256})


def artifacts_discard(digests: Iterable[str]) -> None:
    """Remove the stored files of those digests that no version uses any more."""
    for digest in digests:
        # Another tenant's version may use the same files; the request's own row scope would hide it.
        with every_row(), transaction.atomic():
            # The lock orders this with ValidationAttempt's claim of a digest: either this sees a version
            # that now uses the files, or that attempt sees their removal.
            route_lock()
            if AdapterVersion.objects.filter(sha256=digest).exists():
                continue
            ArtifactRemoval.objects.get_or_create(pk=digest)
        _remove(digest)


def _discard(stagings: list[str], digests: list[str]) -> None:
    for staging in stagings:
        artifact_store().remove(staging)
    artifacts_discard(digests)


def _remove(digest: str) -> None:
    """Remove the files, then the removal's row; after a crash in between `purge_expired` repeats it."""
    with transaction.atomic():
        # Locked, so that a late second removal cannot delete files that were stored again since.
        rows = ArtifactRemoval.objects.select_for_update(skip_locked=True).filter(pk=digest)
        if rows.first() is not None:
            artifact_store().remove(f"adapters/{digest}")
            ArtifactRemoval.objects.filter(pk=digest).delete()


def _checked(labels: Mapping[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise InvalidInputError(f"at most {MAX_LABELS} labels, got {len(labels)}", field="labels")
    for key, value in labels.items():
        if _LABEL.fullmatch(key) is None or len(value) > 100 or "\0" in value:
            raise InvalidInputError(
                f"label {key[:80]!r}: a key has 1-63 lower-case letters, digits and inner . _ / -,"
                " a value at most 100 characters",
                field="labels",
            )
    return dict(labels)
