"""Adapters packed as .zip, .tar.gz or .tgz: bounded reads of the adapter's files."""

from __future__ import annotations

import errno
import gzip
import struct
import tarfile
import zipfile
import zlib
from typing import Final

from controlplane.adapters.archives.base import Put
from controlplane.adapters.archives.tar import unpack_tar
from controlplane.adapters.archives.zip import unpack_zip
from controlplane.artifacts.store import ByteStream
from controlplane.errors import RefusedError

__all__ = ["Put", "unpack"]

_TAR: Final = (".tar.gz", ".tgz")
_BROKEN: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    UnicodeError,
    ValueError,
    LookupError,
    struct.error,
)
"""Exceptions of the standard library for a file that is damaged or crafted."""


def unpack(name: str, stream: ByteStream, put: Put) -> None:
    """Hands the ADAPTER_FILES and EXTRA_FILES of an archive to `put`; other files are skipped.

    What was put before an error is the caller's to remove.

    Raises:
        RefusedError: it is damaged, larger than is accepted, or holds what no adapter does.
    """
    try:
        (unpack_tar if name.lower().endswith(_TAR) else unpack_zip)(stream, put)
    except _BROKEN as error:
        raise RefusedError(f"{name} is damaged: {error}; pack it again") from error
    except OSError as error:
        # A damaged directory makes zipfile seek before the file's start. Other errors are the disk's.
        if error.errno != errno.EINVAL:
            raise
        raise RefusedError(
            f"{name} is damaged: its directory points outside the file; pack it again"
        ) from error
