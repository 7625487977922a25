"""s3://: buckets that the operator opened for import, and a tenant's own buckets by credential."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self, cast
from urllib.parse import SplitResult, unquote

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.conf import settings

from controlplane.adapters.sources.base import MissingFileError, SourceRefusedError, bad_uri, is_plain
from controlplane.adapters.sources.download import download
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.services import credential_secret
from controlplane.artifacts.store import ByteStream, s3_answers, s3_client
from controlplane.artifacts.uploads.file_names import is_archive
from controlplane.errors import InvalidInputError, RefusedError

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_LINK_SECONDS: Final = 900


class BucketSource:
    """A prefix, or an archive, read with the control plane's own rights: in opened buckets alone."""

    def __init__(self, parts: SplitResult) -> None:
        """Raises InvalidInputError: it lies in no bucket that is open."""
        self.bucket, self._prefix, self.archive = _split(parts)
        whole = f"{self.bucket}/{self._prefix}"
        opened = settings.GRAFTWORK.import_buckets
        if not any(whole.startswith(f"{item}/") for item in opened):
            raise InvalidInputError(
                f"s3://{whole} is not in a bucket open for imports of adapters: name one of your"
                " credentials for it, or upload the files",
                field="uri",
            )
        self.uri = f"s3://{whole}{self.archive}"

    def pinned(self) -> Self:
        return self

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        key = self._prefix + name
        with s3_answers(f"read s3://{self.bucket}/{key}"):
            try:
                body = s3_client().get_object(Bucket=self.bucket, Key=key)["Body"]
            except ClientError as error:
                if error.response["Error"]["Code"] == "NoSuchBucket":
                    raise RefusedError(f"bucket {self.bucket} does not exist: check its name") from error
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                    raise MissingFileError(name) from error
                raise
            try:
                yield cast(ByteStream, body)
            finally:
                body.close()


class TenantBucketSource:
    """A prefix, or an archive, read with a tenant's own key from the tenant's own endpoint.

    boto3 only signs: the request itself leaves by the guarded client.
    """

    def __init__(self, parts: SplitResult, credential: SourceCredential) -> None:
        """Raises InvalidInputError: it reads like no bucket."""
        self.bucket, self._prefix, self.archive = _split(parts)
        self._credential = credential
        self.uri = f"s3://{self.bucket}/{self._prefix}{self.archive}?credential={credential.name}"

    def pinned(self) -> Self:
        return self

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        what = f"s3://{self.bucket}/{self._prefix}{name}"
        try:
            with download(self._link(self._prefix + name), what=what) as body:
                yield body
        except MissingFileError as error:
            if b"<Code>NoSuchBucket</Code>" in error.answer:
                at = self._credential.endpoint or "AWS"
                raise RefusedError(
                    f"bucket {self.bucket} does not exist at {at}: check its name and the credential's "
                    f"endpoint"
                ) from error
            raise
        except SourceRefusedError as error:
            if b"<Code>InvalidObjectState</Code>" in error.answer:
                raise RefusedError(
                    f"{what} is archived (S3 Glacier): restore the object, and register the adapter again"
                ) from error
            raise

    def _link(self, key: str) -> str:
        credential = self._credential
        options = Config(
            signature_version="s3v4", s3={"addressing_style": "path" if credential.endpoint else "virtual"}
        )
        session = boto3.Session(
            aws_access_key_id=credential.access_key_id,
            aws_secret_access_key=credential_secret(credential=credential),
            region_name=credential.region or "us-east-1",
        )
        try:
            client = session.client("s3", endpoint_url=credential.endpoint or None, config=options)
            parameters = {"Bucket": self.bucket, "Key": key}
            return cast(str, client.generate_presigned_url("get_object", parameters, ExpiresIn=_LINK_SECONDS))
        except (BotoCoreError, ValueError) as error:
            raise RefusedError(f"s3://{self.bucket}/{key} cannot be requested: {error}") from error


def _split(parts: SplitResult) -> tuple[str, str, str]:
    """Bucket, prefix with its trailing slash or '', archive or ''."""
    path = unquote(parts.path).strip("/")
    if not is_plain(parts) or _BUCKET.fullmatch(parts.netloc) is None:
        raise bad_uri(parts.geturl(), "write a bucket's prefix as s3://bucket/prefix")
    folder, _, last = path.rpartition("/")
    archive = last if is_archive(last) else ""
    prefix = folder if archive else path
    if {"..", "."} & set(path.split("/")) or not path.isprintable():
        raise InvalidInputError(
            f"{parts.geturl()[:200]!r} is not a bucket's prefix: remove the segments . and ..", field="uri"
        )
    return parts.netloc, f"{prefix}/" if prefix else "", archive
