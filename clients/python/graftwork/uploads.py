"""Resumable uploads of files, part by part (tus 1.0)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from graftwork.errors import ConflictError, ConnectionFailedError, GraftworkError, NotFoundError
from graftwork.transport import Transport

CHUNK = 8 << 20
"""Bytes per request: a broken one loses this much, and memory holds this much."""
_PIECE: Final = 256 << 10
_PAUSES: Final = (1.0, 2.0, 4.0, *(8.0,) * 9)
"""Seconds between attempts while another request holds the upload. The server may not have noticed yet that
our connection broke; if its web process died, the upload is held for 60 s."""


class Upload(msgspec.Struct, frozen=True):
    """An upload on the server, which has received `offset` of `size` bytes."""

    id: str
    name: str
    size: int
    offset: int = 0


class Unfinished:
    """Records started uploads in a file; without a path, in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._ids: dict[str, str] = {}
        if path is not None and path.exists():
            try:
                self._ids = dict(json.loads(path.read_text()))
            except (ValueError, TypeError):
                self._ids = {}  # the record only saves time

    def find(self, file: Path) -> str | None:
        """Returns the upload started for `file`, if the file has not changed since."""
        return self._ids.get(_fingerprint(file))

    def remember(self, file: Path, upload_id: str) -> None:
        """Records the upload of `file`."""
        self._ids[_fingerprint(file)] = upload_id
        self._save()

    def forget(self, file: Path) -> None:
        """Removes the record of the file's upload."""
        self._ids.pop(_fingerprint(file), None)
        self._save()

    def _save(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            fresh.write_text(json.dumps(self._ids))
            fresh.replace(self._path)


class Uploads:
    """Uploads files in parts with checksums; a part that arrived is not sent again if its answer was lost."""

    def __init__(self, transport: Transport, unfinished: Unfinished) -> None:
        self._transport, self._unfinished = transport, unfinished

    def send(self, file: Path, *, progress: Callable[[int], None]) -> str:
        """Uploads a file, and returns the upload's id; `progress` gets the bytes that the server has.

        Raises ConnectionFailedError when another process holds the upload for longer than `_PAUSES`.
        """
        upload = self._resume_or_create(file)
        offset, waits = upload.offset, 0
        progress(offset)
        with file.open("rb") as source:
            while offset < upload.size:
                source.seek(offset)
                try:
                    offset, waits = self._part(upload.id, offset, source.read(CHUNK)), 0
                except ConflictError as error:
                    now = self._transport.read(Upload, f"/uploads/{upload.id}").offset
                    if now == offset:
                        if waits == len(_PAUSES):
                            raise ConnectionFailedError(
                                f"another process is sending {file.name} to the same upload: wait until "
                                f"it ends"
                            ) from error
                        time.sleep(_PAUSES[waits])
                    offset, waits = now, waits + 1 if now == offset else 0
                progress(offset)
        return upload.id

    def forget(self, file: Path) -> None:
        """Removes the record of an upload that became a version."""
        self._unfinished.forget(file)

    def discard(self, file: Path) -> None:
        """Deletes the file's upload from the server, complete or not, and its record."""
        if (known := self._unfinished.find(file)) is not None:
            # If the deletion fails, the upload expires within a day.
            with suppress(GraftworkError):
                self._transport.delete(f"/uploads/{known}")
            self._unfinished.forget(file)

    def _resume_or_create(self, file: Path) -> Upload:
        size = file.stat().st_size
        if (known := self._unfinished.find(file)) is not None:
            try:
                upload = self._transport.read(Upload, f"/uploads/{known}")
                if (upload.name, upload.size) == (file.name, size):
                    return upload
            except NotFoundError:
                pass  # it has expired
        upload = self._transport.create(Upload, "/uploads", {"name": file.name, "size": size})
        self._unfinished.remember(file, upload.id)
        return upload

    def _part(self, upload_id: str, offset: int, data: bytes) -> int:
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        headers = {
            "Content-Type": "application/offset+octet-stream",
            "Content-Length": str(len(data)),
            "Tus-Resumable": "1.0.0",
            "Upload-Offset": str(offset),
            "Upload-Checksum": f"sha256 {digest}",
        }
        body = _Pieces(data)
        try:
            answer: Any = self._transport.send(
                "PATCH", f"/uploads/{upload_id}", content=body, headers=headers
            )
        finally:
            body.close()
        return int(answer.headers["Upload-Offset"])


class _Pieces:
    """A request body in small pieces, iterable again for each attempt.

    The HTTP library copies the rest of a body that is given whole at each write to the socket. `close`
    releases the data, because a request stays alive in a reference cycle with its response until it is
    collected.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def close(self) -> None:
        self._data = b""

    def __iter__(self) -> Iterator[bytes]:
        for begin in range(0, len(self._data), _PIECE):
            yield self._data[begin : begin + _PIECE]


def _fingerprint(file: Path) -> str:
    stat = file.stat()
    return f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}"
