"""Artifacts in an S3 bucket, or in anything that speaks S3's API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from botocore.exceptions import ClientError

from controlplane.adapters.artifact_store.base import ByteStream
from controlplane.adapters.artifact_store.bounded import BoundedStream


class S3Store:
    """Keys are object keys below `prefix`. `client` is a boto3 S3 client."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        self._client, self._bucket = client, bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def put(self, key: str, stream: ByteStream, *, limit: int) -> int:
        bounded = BoundedStream(stream, name=key.rpartition("/")[2], limit=limit)
        # Uploads in parts of 8 MiB; an error aborts it, so a half-written object never shows.
        self._client.upload_fileobj(bounded, self._bucket, self._prefix + key)
        return bounded.count

    def size(self, key: str) -> int | None:
        try:
            head = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return None
            raise
        return cast(int, head["ContentLength"])

    @contextmanager
    def open(self, key: str) -> Iterator[ByteStream]:
        body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"]
        try:
            yield cast(ByteStream, body)
        finally:
            body.close()

    def move(self, source: str, target: str) -> None:
        for key in self._keys(source):
            name = key.removeprefix(f"{self._prefix}{source}/")
            origin = {"Bucket": self._bucket, "Key": key}
            self._client.copy(origin, self._bucket, f"{self._prefix}{target}/{name}")
        self.remove(source)

    def remove(self, folder: str) -> None:
        for key in self._keys(folder):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def uri(self, folder: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{folder}/"

    def _keys(self, folder: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{folder}/"
        )
        return [item["Key"] for page in pages for item in page.get("Contents", ())]
