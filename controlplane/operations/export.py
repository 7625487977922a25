"""Export of a tenant's data as a streamed tar archive."""

from __future__ import annotations

import json
import tarfile
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any, Final

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model
from django.http import HttpRequest, StreamingHttpResponse

from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES
from controlplane.adapters.models import AdapterVersion
from controlplane.artifacts.store import artifact_store
from controlplane.artifacts.store.base import ByteStream
from controlplane.operations.selectors import tenant_paths, tenant_rows
from controlplane.platform.audit.snapshot import is_secret
from controlplane.platform.http.streaming import streamed
from controlplane.tenants.models import Tenant

_PIECE: Final = 1 << 20
_README: Final = """\
Export of tenant {slug} from Graftwork, as of {when}.

tables/      one file per table, one JSON object per line. Secrets and their digests are excluded.
adapters/    the files of each ready version, as registered.

The tables were read one after another: a concurrent change may appear in one table and not in another.
"""


def export_download(request: HttpRequest, tenant: Tenant) -> StreamingHttpResponse:
    """Stream the tenant's archive."""
    name = f"{tenant.pk}.tar"
    response = streamed(request, export_pieces(tenant), content_type="application/x-tar", file_name=name)
    # Compressing weights takes minutes and saves nothing.
    response["Content-Encoding"] = "identity"
    return response


def export_pieces(tenant: Tenant) -> Iterator[bytes]:
    """Yield the archive in chunks of at most 1 MiB; memory and disk hold one table at a time, no adapter."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    readme = _README.format(slug=tenant.pk, when=when).encode()
    yield from _entry("README.txt", len(readme), iter([readme]))
    for model, path in sorted(tenant_paths().items(), key=lambda item: item[0]._meta.label):
        with tempfile.TemporaryFile() as file:
            _write_table(file, tenant, model, path)
            yield from _file(f"tables/{model._meta.label_lower}.jsonl", file.tell(), file)
    for version in tenant_rows(slug=tenant.pk, model=AdapterVersion, path="adapter__tenant_id"):
        assert isinstance(version, AdapterVersion)
        yield from _adapter_files(version)
    yield bytes(2 * tarfile.BLOCKSIZE)


def row_values(row: Model) -> dict[str, Any]:
    """Return the row's complete columns without secrets."""
    fields = row._meta.concrete_fields
    return {field.name: field.value_from_object(row) for field in fields if not is_secret(field.name)}


def _write_table(file: IO[bytes], tenant: Tenant, model: type[Model], path: str) -> None:
    for row in tenant_rows(slug=tenant.pk, model=model, path=path):
        file.write(json.dumps(row_values(row), cls=DjangoJSONEncoder).encode() + b"\n")


def _adapter_files(version: AdapterVersion) -> Iterator[bytes]:
    if not version.sha256:
        return
    store, folder = artifact_store(), f"adapters/{version.sha256}"
    for name in (*ADAPTER_FILES, *POOLING_FILES):
        size = store.size(f"{folder}/{name}")
        if size is None:
            continue
        with store.open(f"{folder}/{name}") as stream:
            path = f"adapters/{version.adapter.name}/v{version.number}/{name}"
            yield from _entry(path, size, _pieces(stream, size))


def _file(name: str, size: int, file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    yield from _entry(name, size, _pieces(file, size))


def _entry(name: str, size: int, content: Iterator[bytes]) -> Iterator[bytes]:
    """Yield an archive member: header, content, and zero padding to a full block."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, int(time.time())
    yield info.tobuf(tarfile.PAX_FORMAT)
    yield from content
    yield bytes(-size % tarfile.BLOCKSIZE)


def _pieces(stream: ByteStream, size: int) -> Iterator[bytes]:
    """Yield exactly `size` bytes. Raises OSError for fewer, so that a truncated archive is not valid."""
    left = size
    while left:
        piece = stream.read(min(_PIECE, left))
        if not piece:
            raise OSError(f"{left} bytes of {size} are missing")
        left -= len(piece)
        yield piece
