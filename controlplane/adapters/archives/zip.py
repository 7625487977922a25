"""Adapters in .zip files."""

from __future__ import annotations

import stat
import tempfile
import zipfile
from typing import IO, Any, Final, cast

from controlplane.adapters.archives.base import MAX_RATIO, MAX_READ, RATIO_COUNTS_FROM, Entries, Put, place_of
from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.uploads.file_names import EXTRA_FILES, MAX_ARCHIVE_BYTES
from controlplane.errors import RefusedError

_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_KINDS: Final = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
_CHUNK: Final = 1 << 20


def unpack_zip(stream: ByteStream, put: Put) -> None:
    """See `archives.unpack`. A stream that cannot seek goes to a nameless temporary file first."""
    with tempfile.TemporaryFile() as spool:
        file = cast(IO[bytes], stream)
        if not (hasattr(stream, "seekable") and stream.seekable()):
            _spool(stream, spool)
            file = spool
        # zipfile reads the directory in one piece, as long as the file says that it is.
        with zipfile.ZipFile(cast(IO[bytes], _BoundedReads(file))) as archive:
            _unpack(archive, put)


def _unpack(archive: zipfile.ZipFile, put: Put) -> None:
    entries, wanted, total = Entries(), dict[str, zipfile.ZipInfo](), 0
    extras = dict[tuple[str, str], zipfile.ZipInfo]()
    for info in archive.infolist():
        mode = stat.S_IFMT(info.external_attr >> 16)
        # orig_filename: zipfile cuts a name at its first NUL.
        name = entries.admit(
            info.orig_filename, kind=_KINDS.get(mode, "file"), is_folder=info.filename.endswith("/")
        )
        _check_size(info)
        total += info.file_size
        if total > MAX_ARCHIVE_BYTES:
            raise RefusedError(f"the archive unpacks to more than the {MAX_ARCHIVE_BYTES} bytes accepted")
        if name in EXTRA_FILES:
            extras.setdefault(place_of(info.orig_filename), info)
        elif name is not None:
            wanted[name] = info
    entries.finish()
    wanted |= {name: info for (folder, name), info in extras.items() if folder == entries.folder}
    for name, info in wanted.items():
        with archive.open(info) as stream:
            put(name, stream)


def _check_size(info: zipfile.ZipInfo) -> None:
    if info.flag_bits & 0x1:
        raise RefusedError(f"{info.filename!r} in the archive is encrypted: pack it without a password")
    if info.compress_type not in _METHODS:
        raise RefusedError(
            f"{info.filename!r} in the archive is packed by an unsupported method: use deflate"
        )
    if info.file_size > max(RATIO_COUNTS_FROM, MAX_RATIO * info.compress_size):
        raise RefusedError(
            f"{info.filename!r} in the archive unpacks to more than {MAX_RATIO} times its size: upload "
            f"the files unpacked"
        )


def _spool(stream: ByteStream, spool: IO[bytes]) -> None:
    size = 0
    while chunk := stream.read(_CHUNK):
        if (size := size + len(chunk)) > MAX_ARCHIVE_BYTES:
            raise RefusedError(f"the archive is larger than the {MAX_ARCHIVE_BYTES} bytes accepted")
        spool.write(chunk)
    spool.seek(0)


class _BoundedReads:
    """A file with bounded reads, since a hostile archive can state lengths that exhaust the memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if 0 <= size <= MAX_READ else MAX_READ + 1)
        if len(data) > MAX_READ:
            raise RefusedError(
                "the archive's directory is too long for an adapter: pack the adapter's folder"
            )
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
