"""Source of finished uploads: one archive, or both adapter files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from controlplane.adapters.sources.base import MissingFileError
from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.uploads.file_names import is_archive
from controlplane.artifacts.uploads.models import Upload
from controlplane.artifacts.uploads.selectors import upload_open, uploads_taken
from controlplane.errors import NotFoundError, RefusedError
from controlplane.tenants.models import Tenant

SCHEME = "upload"


def upload_uri(upload_ids: list[str]) -> str:
    """Return the URI that a version stores for its uploads."""
    return f"{SCHEME}:{'+'.join(upload_ids)}"


class UploadSource:
    """The tenant's uploads from which a version was registered."""

    def __init__(self, path: str, tenant: Tenant) -> None:
        """Raises RefusedError if an upload was removed."""
        try:
            self.uploads = uploads_taken(tenant=tenant, upload_ids=path.split("+"))
        except NotFoundError as error:
            raise RefusedError(str(error)) from error
        only = self.uploads[0].name if len(self.uploads) == 1 else ""
        self.archive = only if is_archive(only) else ""
        self.uri = upload_uri([upload.pk for upload in self.uploads])

    def pinned(self) -> Self:
        return self

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        found: Upload | None = next((upload for upload in self.uploads if upload.name == name), None)
        if found is None:
            raise MissingFileError(name)
        with upload_open(found) as stream:
            yield stream
