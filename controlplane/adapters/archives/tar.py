"""Adapters in .tar.gz files, read once from front to back."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import IO, Any, Final, Self, cast

from controlplane.adapters.archives.base import MAX_RATIO, MAX_READ, RATIO_COUNTS_FROM, Entries, Put, place_of
from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.uploads.file_names import EXTRA_FILES, MAX_ARCHIVE_BYTES, MAX_CARD_BYTES
from controlplane.errors import RefusedError

_KINDS: Final = {
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "pipe",
    tarfile.GNUTYPE_SPARSE: "sparse file",
    tarfile.CONTTYPE: "contiguous file",
}
_NOTES: Final = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_MAX_NOTE: Final = 64 << 10


def unpack_tar(stream: ByteStream, put: Put) -> None:
    """See `archives.unpack`."""
    packed = _Packed(stream)
    with gzip.GzipFile(fileobj=cast(IO[bytes], packed)) as plain:
        unpacked = cast(IO[bytes], _Unpacked(plain, packed))
        with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Member) as archive:
            entries, extras = Entries(), dict[tuple[str, str], bytes]()
            for member in archive:
                is_plain = (member.isreg() and not member.issparse()) or member.isdir()
                kind = "file" if is_plain else "file of unknown kind"
                name = entries.admit(member.name, kind=kind, is_folder=member.isdir())
                body = archive.extractfile(member) if name is not None else None
                if name in EXTRA_FILES and body is not None:
                    # The adapter's folder, and so what belongs to it, is known only after the last entry.
                    extras.setdefault(place_of(member.name), body.read(MAX_CARD_BYTES))
                elif name is not None and body is not None:
                    put(name, body)
            entries.finish()
            for (folder, name), data in extras.items():
                if folder == entries.folder:
                    put(name, io.BytesIO(data))


class _Member(tarfile.TarInfo):
    """Refuses by their headers entries that tarfile would read into memory or follow."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _NOTES and member.size > _MAX_NOTE:
            raise RefusedError(f"the archive has a header of {member.size} bytes: pack the adapter's folder")
        if member.type in _KINDS:
            raise RefusedError(
                f"{member.name[:200]!r} in the archive is a {_KINDS[member.type]}: pack only plain files"
            )
        if member.size < 0:
            raise RefusedError(f"{member.name[:200]!r} in the archive has a negative size")
        return member

    def _proc_gnusparse_10(self, *_: Any) -> None:
        # tarfile would read a map of unbounded size.
        raise RefusedError("the archive holds a sparse file: pack only plain files")


class _Packed:
    """Counts the packed bytes read, and compares them with the unpacked bytes."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self.taken, self.given = stream, 0, 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.taken += len(data)
        # Packed data that unpacks to nothing (endless names, empty members) would only cost time.
        if self.taken > MAX_READ + 2 * self.given:
            raise RefusedError("the archive is larger than its contents: pack it again")
        return data


class _Unpacked:
    """Counts the unpacked bytes, and compares them with the packed bytes."""

    def __init__(self, plain: gzip.GzipFile, packed: _Packed) -> None:
        self._plain, self._packed = plain, packed

    def read(self, size: int) -> bytes:
        data = self._plain.read(size)
        packed = self._packed
        packed.given += len(data)
        if packed.given > MAX_ARCHIVE_BYTES:
            raise RefusedError(f"the archive unpacks to more than the {MAX_ARCHIVE_BYTES} bytes accepted")
        if packed.given > max(RATIO_COUNTS_FROM, MAX_RATIO * packed.taken):
            raise RefusedError(
                f"the archive unpacks to more than {MAX_RATIO} times its size: upload the files unpacked"
            )
        return data
