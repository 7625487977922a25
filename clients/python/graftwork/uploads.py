"""Files sent part by part (tus 1.0), going on where an earlier attempt was broken off."""

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
"""Bytes a request: what is lost when one breaks, and what is held in memory."""
_PIECE: Final = 256 << 10
_PAUSES: Final = (1.0, 2.0, 4.0, *(8.0,) * 9)
"""Seconds between attempts while another request holds the upload: the server may not have seen yet that ours
broke, and one whose web process died with it holds it for 60."""


class Upload(msgspec.Struct, frozen=True):
    """An upload on the server: `offset` bytes of `size` are there."""

    id: str
    name: str
    size: int
    offset: int = 0


class Unfinished:
    """Remembers in a file which uploads were begun; without a file for as long as it lives."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._ids: dict[str, str] = {}
        if path is not None and path.exists():
            try:
                self._ids = dict(json.loads(path.read_text()))
            except (ValueError, TypeError):
                self._ids = {}  # it only saves time

    def find(self, file: Path) -> str | None:
        """The upload begun for `file`, if it is the same file still."""
        return self._ids.get(_fingerprint(file))

    def remember(self, file: Path, upload_id: str) -> None:
        """Notes the upload of `file`."""
        self._ids[_fingerprint(file)] = upload_id
        self._save()

    def forget(self, file: Path) -> None:
        """Its upload has been used."""
        self._ids.pop(_fingerprint(file), None)
        self._save()

    def _save(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            fresh.write_text(json.dumps(self._ids))
            fresh.replace(self._path)


class Uploads:
    """Sends files. Each part has its checksum; a part whose answer was lost is not sent twice."""

    def __init__(self, transport: Transport, unfinished: Unfinished) -> None:
        self._transport, self._unfinished = transport, unfinished

    def send(self, file: Path, *, progress: Callable[[int], None]) -> str:
        """The id of the finished upload; `progress` hears how many of the file's bytes are there.

        Raises ConnectionFailedError when another process holds the upload for longer than `_PAUSES`.
        """
        upload = self._begun(file)
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
                                f"another process is sending {file.name} to the same upload: wait for its end"
                            ) from error
                        time.sleep(_PAUSES[waits])
                    offset, waits = now, waits + 1 if now == offset else 0
                progress(offset)
        return upload.id

    def forget(self, file: Path) -> None:
        """Its upload has become a version."""
        self._unfinished.forget(file)

    def discard(self, file: Path) -> None:
        """Removes the file's upload from the server, whole or not, and forgets it."""
        if (known := self._unfinished.find(file)) is not None:
            # An upload that cannot be removed now expires within a day.
            with suppress(GraftworkError):
                self._transport.delete(f"/uploads/{known}")
            self._unfinished.forget(file)

    def _begun(self, file: Path) -> Upload:
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
    """A body in small pieces, as often as it is asked for: of one that is sent whole the HTTP library copies
    what is left at each turn of the socket.

    Closed it holds nothing: a request lies in a cycle with its answer, and with its body until collected.
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
