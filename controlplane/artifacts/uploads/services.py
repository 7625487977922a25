"""Creates, claims and removes uploads. Stored parts are final: an interrupted upload resumes after them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from controlplane.artifacts.store import artifact_store
from controlplane.artifacts.uploads.file_names import accepted_bytes, name_fault, upload_refusal
from controlplane.artifacts.uploads.models import Upload
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.tenants.models import Tenant, User

LIFETIME: Final = timedelta(hours=24)
"""Lifetime of an upload, from its last byte on."""
REGISTERED_LIFETIME: Final = timedelta(days=3)
"""Longer than a version's wait for validation."""
MAX_OPEN: Final = 16
MAX_OPEN_BYTES: Final = 16 << 30


@transaction.atomic
def upload_create(*, tenant: Tenant, name: str, size: int, created_by: User | None = None) -> Upload:
    """Create an upload of a file of `size` bytes.

    Raises:
        InvalidInputError: no file of this name or size can be registered.
        ConflictError: the tenant has too many uploads in progress.
    """
    _check(name, size)
    # The row's lock makes concurrent uploads count each other.
    Tenant.objects.select_for_update().get(pk=tenant.pk)
    now = timezone.now()
    opened = Upload.objects.filter(tenant=tenant, registered_at=None, expires_at__gt=now)
    claimed = opened.aggregate(bytes=Sum("size"))["bytes"] or 0
    if opened.count() >= MAX_OPEN or claimed + size > MAX_OPEN_BYTES:
        raise ConflictError(
            f"at most {MAX_OPEN} uploads of {MAX_OPEN_BYTES} bytes in total can be in progress: register,"
            " finish or delete others"
        )
    return Upload.objects.create(
        pk=secrets.token_hex(16),
        tenant=tenant,
        name=name,
        size=size,
        created_by=created_by,
        expires_at=now + LIFETIME,
    )


@transaction.atomic
def uploads_take(*, tenant: Tenant, upload_ids: Sequence[str]) -> None:
    """Claim finished uploads for a version, in the transaction that registers it.

    Raises:
        InvalidInputError: an upload is missing or incomplete.
        ConflictError: another registration has claimed one.
    """
    now = timezone.now()
    for upload_id in upload_ids:
        row = Upload.objects.filter(tenant=tenant, pk=upload_id, expires_at__gt=now).first()
        if row is None or not row.is_whole:
            state = "missing" if row is None else f"at byte {row.offset} of {row.size}"
            raise InvalidInputError(
                f"the upload {upload_id[:32]!r} is {state}: upload the whole file first", field="uploads"
            )
        taken = Upload.objects.filter(pk=row.pk, registered_at=None)
        if not taken.update(registered_at=now, expires_at=now + REGISTERED_LIFETIME):
            raise ConflictError(f"the upload {upload_id[:32]!r} is already registered: upload the file again")


def upload_discard(*, upload: Upload) -> None:
    """Remove an upload's parts and then its row, so that no part is left without a row."""
    artifact_store().remove(upload.folder)
    upload.delete()


def uploads_expire() -> int:
    """Remove expired uploads without an active writer; return how many."""
    now = timezone.now()
    expired = Upload.objects.filter(expires_at__lt=now)
    idle = expired.filter(Q(writer="") | Q(writer_seen_at__lt=now - timedelta(minutes=5)))
    rows = list(idle[:1000])
    for upload in rows:
        upload_discard(upload=upload)
    return len(rows)


def _check(name: str, size: int) -> None:
    limit = None if name_fault(name) else accepted_bytes(name)
    if limit is None:
        raise InvalidInputError(upload_refusal(name), field="name")
    if not 0 < size <= limit:
        raise InvalidInputError(f"{name[:200]} may have 1 to {limit} bytes", field="size")
