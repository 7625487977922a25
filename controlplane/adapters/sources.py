"""Adapters by URI: only from folders and buckets that the operator opened for import.

The control plane reads with its own rights, so a URI that a tenant writes is never simply followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from botocore.exceptions import ClientError
from django.conf import settings

from controlplane.adapters.artifact_store import ByteStream, s3_answers, s3_client
from controlplane.errors import InvalidInputError, RefusedError


class MissingFileError(Exception):
    """The source has no such file."""


def check_source_uri(uri: str) -> str:
    """The URI in one spelling, with a trailing slash.

    Raises:
        InvalidInputError: it is not one that may be imported from; the text says what is.
    """
    parts = urlsplit(uri.strip())
    plain = not (parts.query or parts.fragment or parts.username)
    if parts.scheme == "file" and not parts.netloc and plain:
        return _import_folder(Path(unquote(parts.path))).as_uri() + "/"
    if parts.scheme == "s3" and parts.netloc and plain:
        return _import_prefix(parts.netloc, parts.path)
    raise InvalidInputError(
        f"cannot register from {uri!r}: accepted are file:///folder and s3://bucket/prefix"
        " (download anything else and upload its files)",
        field="uri",
    )


@contextmanager
def open_source(uri: str, name: str) -> Iterator[ByteStream]:
    """Opens one file of a checked source.

    Raises:
        MissingFileError: it is not there.
        RefusedError: there is no such bucket.
        UnavailableError: S3 does not answer or refuses.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file":
        folder = _import_folder(Path(unquote(parts.path)))
        try:
            # No link may lead out of the import root.
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise MissingFileError(name) from error
        with os.fdopen(handle, "rb") as stream:
            yield stream
        return
    with s3_answers(f"read {uri}{name}"):
        try:
            body = s3_client().get_object(Bucket=parts.netloc, Key=parts.path.lstrip("/") + name)["Body"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchBucket":
                raise RefusedError(f"there is no bucket {parts.netloc}: register from another") from error
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                raise MissingFileError(name) from error
            raise
        try:
            yield cast(ByteStream, body)
        finally:
            body.close()


def _import_folder(path: Path) -> Path:
    folder, roots = path.resolve(), settings.GRAFTWORK.import_roots
    if not any(folder.is_relative_to(root) for root in roots):
        raise InvalidInputError(
            f"{path} lies in no folder that adapters may be imported from; upload the files instead",
            field="uri",
        )
    return folder


def _import_prefix(bucket: str, path: str) -> str:
    prefix = path.strip("/")
    whole = f"{bucket}/{prefix}/"
    opened = settings.GRAFTWORK.import_buckets
    if ".." in prefix.split("/") or not any(whole.startswith(f"{item}/") for item in opened):
        raise InvalidInputError(
            f"s3://{whole} lies in no bucket that adapters may be imported from; upload the files instead",
            field="uri",
        )
    return f"s3://{whole}" if prefix else f"s3://{bucket}/"
