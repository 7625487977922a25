"""Adds the bytes of one request to an upload, in memory bounded by one part."""

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
"""How long a writer that says nothing counts as alive."""
MAX_PARTS: Final = 20_000
CHECKSUMS: Final[dict[str, Callable[[], Any]]] = {
    "sha256": hashlib.sha256,
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
}
"""tus asks for SHA-1. It tells damage on the way, not intent: content is held to its SHA-256 later."""
_QUIET: Final = 2
"""Waits without a byte, of half a lease each, after which the sender counts as gone."""


class Body(Protocol):
    """What is sent."""

    @property
    def ended(self) -> bool:
        """Whether all of it has been read."""

    @property
    def cut(self) -> bool:
        """Whether the sender went away before its end."""

    def read(self, size: int, *, seconds: float) -> bytes:
        """At most `size` bytes, as many as came within `seconds`."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """What the bytes of one request must add up to."""

    algorithm: str
    digest: bytes


def upload_append(*, upload: Upload, offset: int, body: Body, checksum: Checksum | None = None) -> Upload:
    """Adds what `body` yields behind `offset`, and gives the upload as it is then.

    Without a checksum each part counts once it is stored, also when the sender goes away later; with one
    all of them or none.

    Raises:
        ConflictError: the upload is not at `offset`, or another request is writing to it.
        InvalidInputError: more came than the upload has room for, or in too small pieces.
        ChecksumError: the bytes are not those that were meant; nothing of them is kept.
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
    """The one request that holds the upload. All it changes holds only while its token stands."""

    def __init__(self, upload: Upload, offset: int, checksum: Checksum | None) -> None:
        self._upload, self._begin, self._token = upload, offset, secrets.token_hex(8)
        self._checksum, self._digest = checksum, CHECKSUMS[checksum.algorithm]() if checksum else None
        self._pending: list[UploadPart] = []
        self._count = upload.parts.count()
        now = timezone.now()
        free = Q(writer="") | Q(writer_seen_at__lt=now - LEASE)
        rows = Upload.objects.filter(free, pk=upload.pk, offset=offset, registered_at=None)
        # The conditional UPDATE lets one request in, at the offset that it has seen.
        if not rows.update(writer=self._token, writer_seen_at=now):
            upload.refresh_from_db()
            if upload.offset != offset:
                raise ConflictError(f"the upload is at byte {upload.offset}, not {offset}: go on from there")
            raise ConflictError("another request is writing to this upload: wait for its end")

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
                self._beat()
        if data:
            self._store(data)
        if self._checksum is not None and self._digest is not None:
            if body.cut or not body.ended or self._digest.digest() != self._checksum.digest:
                raise ChecksumError("the bytes do not have the checksum sent with them: send them again")
            self._commit(self._pending)
            self._pending = []

    def release(self) -> None:
        """Lets the next request in. What was not committed is removed."""
        for part in self._pending:
            artifact_store().remove_file(part.key)
        Upload.objects.filter(pk=self._upload.pk, writer=self._token).update(writer="")

    def _store(self, data: bytearray) -> None:
        end = self._begin + len(data)
        self._count += 1
        if end > self._upload.size or self._count > MAX_PARTS:
            raise InvalidInputError(
                f"this makes more than the {self._upload.size} bytes that were announced"
                if end > self._upload.size
                else f"this makes more than {MAX_PARTS} pieces: send larger ones",
                field="Upload-Offset",
            )
        # The token in the key: two writers, of whom one lost its lease, do not meet in one file.
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
            self._beat()

    @transaction.atomic
    def _commit(self, parts: list[UploadPart]) -> None:
        if not parts:
            return
        now = timezone.now()
        rows = Upload.objects.filter(pk=self._upload.pk, writer=self._token, offset=parts[0].begin)
        end = parts[-1].begin + parts[-1].size
        if not rows.update(offset=end, writer_seen_at=now, expires_at=now + LIFETIME):
            raise ConflictError("another request took the upload over, or it was deleted: ask for its offset")
        UploadPart.objects.bulk_create(parts)

    def _beat(self) -> None:
        rows = Upload.objects.filter(pk=self._upload.pk, writer=self._token)
        if not rows.update(writer_seen_at=timezone.now()):
            raise ConflictError("another request took the upload over, or it was deleted: ask for its offset")
