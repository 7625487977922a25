"""Stores files sent with a request: a PEFT folder's, or one archive."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from django.core.files.uploadedfile import UploadedFile

from contracts.adapters.foreign_weights import refusal_of_others
from contracts.adapters.reference import ADAPTER_FILES
from controlplane.adapters.archives import unpack
from controlplane.adapters.card import file_put
from controlplane.artifacts.store import ByteStream, artifact_store
from controlplane.artifacts.uploads.file_names import EXTRA_FILES, is_archive, name_fault, one_name
from controlplane.errors import InvalidInputError, RefusedError, UnavailableError


def files_by_name(uploads: Iterable[UploadedFile[Any]]) -> dict[str, BinaryIO]:
    """Uploads by file name, for `adapter_register`. Raises InvalidInputError on a name sent twice."""
    files: dict[str, BinaryIO] = {}
    names = set[str]()
    for upload in uploads:
        if (folded := one_name(upload.name or "")) in names:
            raise InvalidInputError(f"the file {upload.name} was sent twice", field="files")
        names.add(folded)
        files[upload.name or ""] = upload  # type: ignore[assignment]  # it reads as a binary stream
    return files


@contextmanager
def staged(files: Mapping[str, BinaryIO]) -> Iterator[str]:
    """Store the ADAPTER_FILES and return their folder's key; an error leaves nothing stored.

    Args:
        files: a PEFT folder's files by name, of which ADAPTER_FILES and EXTRA_FILES are stored; or one
            archive.

    Raises:
        InvalidInputError: a name, a size or the archive is not acceptable.
    """
    staging, store = f"incoming/{uuid.uuid4().hex}", artifact_store()

    def put(name: str, stream: ByteStream) -> None:
        file_put(store, staging, name, stream)

    try:
        if len(files) == 1 and is_archive(archive := next(iter(files))):
            unpack(archive, files[archive], put)
        else:
            _check_names(files)
            for name in (*ADAPTER_FILES, *sorted(files.keys() & set(EXTRA_FILES))):
                put(name, files[name])
        yield staging
    except BaseException as error:
        # Report the first error, even if cleaning the store fails as well.
        with suppress(UnavailableError):
            store.remove(staging)
        if isinstance(error, RefusedError):
            raise InvalidInputError(str(error), field="files") from error
        raise


def _check_names(files: Mapping[str, BinaryIO]) -> None:
    for name in files:
        if fault := name_fault(name):
            raise InvalidInputError(f"the file name {name[:200]!r} {fault}: rename the file", field="files")
    if not set(ADAPTER_FILES) <= set(files):
        if ADAPTER_FILES[1] not in files and (refusal := refusal_of_others(files)):
            raise InvalidInputError(refusal, field="files")
        got = ", ".join(sorted(files))[:300] or "none"
        raise InvalidInputError(
            f"send the files {' and '.join(ADAPTER_FILES)}, or one .zip or .tar.gz of them; got {got}",
            field="files",
        )
