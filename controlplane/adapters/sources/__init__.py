"""Adapters by URI: checked first, then read with the least rights that suffice."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack, suppress
from urllib.parse import parse_qs, urlsplit

from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.foreign_weights import OTHER_FORMS, refusal_of_others
from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES
from controlplane.adapters.archives import Put, unpack
from controlplane.adapters.sources.base import MissingFileError, Source, WatchedStream, bad_uri
from controlplane.adapters.sources.bucket import BucketSource, TenantBucketSource
from controlplane.adapters.sources.folder import FolderSource
from controlplane.adapters.sources.hub import HubSource
from controlplane.adapters.sources.upload import SCHEME, UploadSource, upload_uri
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.selectors import credential_get
from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.uploads.file_names import MODEL_CARD
from controlplane.artifacts.uploads.models import Upload
from controlplane.artifacts.uploads.services import upload_discard
from controlplane.errors import InvalidInputError, NotFoundError, RefusedError
from controlplane.tenants.models import Tenant

__all__ = ["Source", "source_discard", "source_fetch", "source_of", "source_saved", "upload_uri"]


def source_of(uri: str, *, tenant: Tenant, credential: str = "") -> Source:
    """Return the source of a URI for this tenant, checked but not opened.

    Args:
        credential: name of the tenant's credential; also taken from `?credential=` in the URI.

    Raises:
        InvalidInputError: the source is not accepted; the text lists the accepted ones.
    """
    try:
        parts = urlsplit(uri.strip())
        query = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise bad_uri(uri, "it is not a URI") from error
    if set(query) <= {"credential"}:
        credential = "".join(query.get("credential", ())) or credential
        parts = parts._replace(query="")
    access = _credential(tenant, credential) if credential else None
    match parts.scheme, access and access.kind:
        case "file", None:
            return FolderSource(parts)
        case "s3", None:
            return BucketSource(parts)
        case "s3", SourceCredential.Kind.S3 if access is not None:
            return TenantBucketSource(parts, access)
        case "hf", None | SourceCredential.Kind.HUGGINGFACE:
            return HubSource(parts, access)
    if access is not None and parts.scheme in ("file", "s3", "hf"):
        raise InvalidInputError(
            f"{access.name} is not a credential for {parts.scheme}://", field="credential"
        )
    raise bad_uri(
        uri,
        "accepted URIs are hf://owner/name, s3://bucket/prefix and file:///folder (for other sources, "
        "download the files and upload them)",
    )


def source_saved(uri: str, *, tenant: Tenant) -> Source:
    """Return the stored source of a version: one of `source_of`, or its uploads.

    Raises:
        InvalidInputError, RefusedError: it can no longer be imported from.
    """
    scheme, _, path = uri.partition(":")
    return UploadSource(path, tenant) if scheme == SCHEME else source_of(uri, tenant=tenant)


def source_discard(uri: str, *, tenant: Tenant) -> None:
    """Remove the uploads of a settled version, if it was made from uploads."""
    scheme, _, path = uri.partition(":")
    if scheme == SCHEME:
        for upload in Upload.objects.filter(tenant=tenant, pk__in=path.split("+")):
            upload_discard(upload=upload)


def source_fetch(source: Source, put: Put, *, progress: Callable[[], None]) -> None:
    """Pass the ADAPTER_FILES of a source to `put`, and those of its EXTRA_FILES that it has.

    Args:
        progress: called now and then while something arrives.

    Raises:
        RefusedError: it does not hold them, or an archive that is not acceptable.
        UnavailableError: it does not answer.
    """
    if source.archive:
        try:
            with source.open(source.archive) as stream:
                unpack(source.archive, _telling(stream, progress), put)
        except MissingFileError as error:
            raise RefusedError(f"{source.uri} does not exist") from error
        return
    config = bytearray()
    for name in ADAPTER_FILES:
        try:
            with source.open(name) as stream:
                told = _telling(stream, progress)
                put(name, WatchedStream(told, config.extend) if name == ADAPTER_FILES[0] else told)
        except MissingFileError as error:
            raise RefusedError(_missing(source, name)) from error
    for name in POOLING_FILES if _embeds_only(bytes(config)) else ():
        with ExitStack() as opened:
            try:
                stream = opened.enter_context(source.open(name))
            except (MissingFileError, RefusedError):
                continue  # S3 says that a file which is not there may not be read.
            put(name, _telling(stream, progress))
    # Nobody's adapter fails for its card. S3 says that a file which is not there may not be read.
    with suppress(MissingFileError, RefusedError, OSError), source.open(MODEL_CARD) as stream:
        put(MODEL_CARD, _telling(stream, progress))


def _embeds_only(config: bytes) -> bool:
    """Return True for an embedding adapter's configuration; a malformed one is refused later."""
    try:
        return LoraConfig.from_bytes(config).embeds_only
    except AdapterConfigError:
        return False


def _telling(stream: ByteStream, progress: Callable[[], None]) -> ByteStream:
    # An uploaded file is local, and unpacking seeks in it.
    if isinstance(stream, io.IOBase) and stream.seekable():
        return stream
    return WatchedStream(stream, lambda _: progress())


def _credential(tenant: Tenant, name: str) -> SourceCredential:
    try:
        return credential_get(tenant=tenant, name=name)
    except NotFoundError as error:
        raise InvalidInputError(str(error), field="credential") from error


def _missing(source: Source, name: str) -> str:
    if name == ADAPTER_FILES[1]:
        for other in OTHER_FORMS:
            with suppress(MissingFileError), source.open(other):
                return refusal_of_others([other]) or ""
    return f"{source.uri} holds no {name}, expected {' and '.join(ADAPTER_FILES)}"
