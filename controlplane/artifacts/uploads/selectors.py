"""Reads of uploads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.artifacts.store import ByteStream, artifact_store
from controlplane.artifacts.uploads.models import Upload
from controlplane.errors import NotFoundError
from controlplane.platform.row_lookup import row_get
from controlplane.tenants.models import Tenant


def upload_list(*, tenant: Tenant) -> QuerySet[Upload]:
    """List the tenant's uploads that are neither expired nor registered, newest first."""
    live = Upload.objects.filter(expires_at__gt=timezone.now(), registered_at=None)
    return live.filter(tenant=tenant).order_by("-created_at", "id")


def upload_get(*, tenant: Tenant, upload_id: str) -> Upload:
    """Return the upload. Raises NotFoundError, also for another tenant's or an expired one."""
    rows = upload_list(tenant=tenant).filter(pk=upload_id)
    return row_get(
        rows, f"tenant {tenant.pk} has no upload {upload_id[:32]!r}: uploads expire, start a new one"
    )


def uploads_taken(*, tenant: Tenant, upload_ids: list[str]) -> list[Upload]:
    """Return the uploads of a registered version. Raises NotFoundError if one was removed."""
    found = {row.pk: row for row in Upload.objects.filter(tenant=tenant, pk__in=upload_ids)}
    if missing := [upload_id for upload_id in upload_ids if upload_id not in found]:
        raise NotFoundError(f"the upload {missing[0][:32]} no longer exists: upload the file again")
    return [found[upload_id] for upload_id in upload_ids]


@contextmanager
def upload_open(upload: Upload) -> Iterator[ByteStream]:
    """Open the whole file as one stream; only one part is open at a time."""
    keys = list(upload.parts.values_list("key", flat=True))
    parts = _Parts(keys)
    try:
        yield parts
    finally:
        parts.close()


class _Parts:
    """A stream over consecutive parts in the artifact store."""

    def __init__(self, keys: list[str]) -> None:
        self._store, self._pieces = artifact_store(), self._read(keys)
        self._buffer = b""

    def read(self, size: int = -1, /) -> bytes:
        if not self._buffer:
            self._buffer = next(self._pieces, b"")
        cut = len(self._buffer) if size < 0 else size
        data, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return data

    def close(self) -> None:
        self._pieces.close()

    def _read(self, keys: list[str]) -> Generator[bytes, None, None]:
        for key in keys:
            with self._store.open(key) as stream:
                while piece := stream.read(1 << 20):
                    yield piece
