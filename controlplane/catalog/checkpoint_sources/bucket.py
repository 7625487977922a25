"""A prefix of an S3 bucket, or of what speaks S3's API, such as MinIO."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from urllib.parse import SplitResult

from botocore.exceptions import ClientError

from controlplane.artifacts.store import ByteStream, s3_advice, s3_answers, s3_client
from controlplane.catalog.checkpoint_sources.base import refusal


class BucketCheckpoint:
    """Objects below a prefix, read with the control plane's own rights."""

    def __init__(self, parts: SplitResult) -> None:
        """Raises InvalidInputError."""
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise refusal("write an S3 source as s3://bucket/prefix")
        self._bucket, prefix = parts.netloc, parts.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    def sizes(self) -> dict[str, int]:
        with s3_answers(f"list {self.uri}"):
            try:
                pages = s3_client().get_paginator("list_objects_v2")
                found = pages.paginate(Bucket=self._bucket, Prefix=self._prefix, Delimiter="/")
                objects = [item for page in found for item in page.get("Contents", ())]
            except ClientError as error:
                raise self._refused(error) from error
        sizes = {item["Key"].removeprefix(self._prefix): item["Size"] for item in objects}
        return {name: size for name, size in sizes.items() if name and name[0] != "."}

    def read_range(self, name: str, start: int, size: int) -> bytes:
        with self._body(name, Range=f"bytes={start}-{start + size - 1}") as stream:
            return stream.read(size)

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        with self._body(name) as stream:
            yield stream

    @contextmanager
    def _body(self, name: str, **options: str) -> Iterator[ByteStream]:
        with s3_answers(f"read {self.uri}{name}"):
            try:
                key = self._prefix + name
                body = s3_client().get_object(Bucket=self._bucket, Key=key, **options)["Body"]
            except ClientError as error:
                raise self._refused(error) from error
            try:
                yield cast(ByteStream, body)
            finally:
                body.close()

    def _refused(self, error: ClientError) -> Exception:
        """Return the error: the source's fault for a status of its own, else the store's outage."""
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        told = refusal(f"cannot read {self.uri}: {s3_advice(error)} ({error})")
        return told if status in (403, 404) else error
