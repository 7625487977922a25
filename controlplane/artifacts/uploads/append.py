"""Appends the bytes of one request to an upload, with memory bounded by one part."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO
from typing import Any, Final, Protocol

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.artifacts.store import artifact_store
from controlplane.artifacts.uploads.models import Upload, UploadPart
from controlplane.artifacts.uploads.services import LIFETIME
from controlplane.errors import ChecksumError, ConflictError, InvalidInputError

PART_BYTES: Final = 4 << 20
LEASE: Final = timedelta(seconds=60)
"""How long a writer without a heartbeat counts as alive."""
MAX_PARTS: Final = 20_000
CHECKSUMS: Final[dict[str, Callable[[], Any]]] = {
    "sha256": hashlib.sha256,
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
}
"""tus requires SHA-1. Here it detects transfer errors only; content is verified by SHA-256 later."""
_QUIET: Final = 2
"""Reads without a byte, of half a lease each, after which the sender counts as disconnected."""


class Body(Protocol):
    """The body of a request."""

    @property
    def ended(self) -> bool:
        """True once the whole body has been read."""

    @property
    def cut(self) -> bool:
        """True if the sender disconnected before the end."""

    def read(self, size: int, *, seconds: float) -> bytes:
        """Return up to `size` bytes that arrive within `seconds`."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Expected checksum of the bytes of one request."""

    algorithm: str
    digest: bytes


def upload_append(*, upload: Upload, offset: int, body: Body, checksum: Checksum | None = None) -> Upload:
    """Append the body's bytes at `offset`, and return the updated upload.

    Without a checksum each stored part counts, even if the sender disconnects later. With one, all bytes
    count or none.

    Raises:
        ConflictError: the upload is not at `offset`, or another request is writing to it.
        InvalidInputError: the bytes exceed the announced size, or there are too many parts.
        ChecksumError: the checksum does not match; none of the bytes are kept.
        UnavailableError: the store does not answer.
    """
    writer = _Writer(upload, offset, checksum)
    try:
        writer.take(body)
    finally:
        writer.release()
    upload.refresh_from_db()
    return upload


class _Writer:
    """The single request that may write to the upload; it can write only while its token is valid."""

    def __init__(self, upload: Upload, offset: int, checksum: Checksum | None) -> None:
        self._upload, self._begin, self._token = upload, offset, secrets.token_hex(8)
        self._checksum, self._digest = checksum, CHECKSUMS[checksum.algorithm]() if checksum else None
        self._pending: list[UploadPart] = []
        self._count = upload.parts.count()
        now = timezone.now()
        free = Q(writer="") | Q(writer_seen_at__lt=now - LEASE)
        rows = Upload.objects.filter(free, pk=upload.pk, offset=offset, registered_at=None)
        # The conditional UPDATE admits one request, at the offset that it expects.
        if not rows.update(writer=self._token, writer_seen_at=now):
            upload.refresh_from_db()
            if upload.offset != offset:
                raise ConflictError(
                    f"the upload is at byte {upload.offset}, not {offset}: continue from that offset"
                )
            raise ConflictError("another request is writing to this upload: wait until it ends")

    def take(self, body: Body) -> None:
        data, quiet = bytearray(), 0
        while not body.ended and quiet < _QUIET:
            piece = body.read(PART_BYTES - len(data), seconds=LEASE.total_seconds() / 2)
            quiet = 0 if piece else quiet + 1
            data += piece
            if len(data) == PART_BYTES:
                self._store(data)
                data = bytearray()
            else:
                self._heartbeat()
        if data:
            self._store(data)
        if self._checksum is not None and self._digest is not None:
            if body.cut or not body.ended or self._digest.digest() != self._checksum.digest:
                raise ChecksumError("the bytes do not match their checksum: send them again")
            self._commit(self._pending)
            self._pending = []

    def release(self) -> None:
        """Remove uncommitted parts and let the next request write."""
        for part in self._pending:
            artifact_store().remove_file(part.key)
        Upload.objects.filter(pk=self._upload.pk, writer=self._token).update(writer="")

    def _store(self, data: bytearray) -> None:
        end = self._begin + len(data)
        self._count += 1
        if end > self._upload.size or self._count > MAX_PARTS:
            raise InvalidInputError(
                f"the upload exceeds its announced size of {self._upload.size} bytes"
                if end > self._upload.size
                else f"the upload has more than {MAX_PARTS} parts: send larger ones",
                field="Upload-Offset",
            )
        # The key holds the token, so that a writer that lost its lease never shares a file with the next.
        key = f"{self._upload.folder}/{self._begin:013}-{self._token}"
        artifact_store().put(key, BytesIO(data), limit=PART_BYTES)
        part = UploadPart(upload=self._upload, begin=self._begin, size=len(data), key=key)
        self._pending.append(part)
        self._begin = end
        if self._digest is None:
            self._commit([part])
            self._pending = []
        else:
            self._digest.update(data)
            self._heartbeat()

    @transaction.atomic
    def _commit(self, parts: list[UploadPart]) -> None:
        if not parts:
            return
        now = timezone.now()
        rows = Upload.objects.filter(pk=self._upload.pk, writer=self._token, offset=parts[0].begin)
        end = parts[-1].begin + parts[-1].size
        if not rows.update(offset=end, writer_seen_at=now, expires_at=now + LIFETIME):
            raise ConflictError("another request took over the upload, or it was deleted: request its offset")
        UploadPart.objects.bulk_create(parts)

    def _heartbeat(self) -> None:
        rows = Upload.objects.filter(pk=self._upload.pk, writer=self._token)
        if not rows.update(writer_seen_at=timezone.now()):
            raise ConflictError("another request took over the upload, or it was deleted: request its offset")
