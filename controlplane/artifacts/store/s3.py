"""Artifacts in an S3 bucket, or in anything that speaks S3's API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from controlplane.artifacts.store.base import ByteStream
from controlplane.artifacts.store.bounded import BoundedStream
from controlplane.artifacts.store.refusals import s3_advice
from controlplane.errors import UnavailableError

# Without threads: memory stays at one part, and what a stream or a callback does (such as a heartbeat in
# the database) happens in the caller's thread.
_UPLOAD: Final = TransferConfig(use_threads=False)
_COPY: Final = TransferConfig(use_threads=False, multipart_chunksize=256 << 20, multipart_threshold=256 << 20)


@contextmanager
def s3_answers(doing: str) -> Iterator[None]:
    """Turn S3's errors and timeouts into UnavailableError with advice; `doing` reads like `store x`."""
    try:
        yield
    except ClientError as error:
        raise UnavailableError(f"S3 refused to {doing}: {s3_advice(error)} ({error})") from error
    except (BotoCoreError, Boto3Error) as error:
        raise UnavailableError(f"S3 cannot {doing} now: {s3_advice(error)} ({error})") from error


class S3Store:
    """Keys are object keys below `prefix`. `client` is a boto3 S3 client. S3 away: UnavailableError."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        self._client, self._bucket = client, bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def put(self, key: str, stream: ByteStream, *, limit: int) -> int:
        bounded = BoundedStream(stream, name=key.rpartition("/")[2], limit=limit)
        with s3_answers(f"store {key} in bucket {self._bucket}"):
            # Uploads in parts of 8 MiB; an error aborts it, so a half-written object never shows.
            self._client.upload_fileobj(bounded, self._bucket, self._prefix + key, Config=_UPLOAD)
        return bounded.count

    def size(self, key: str) -> int | None:
        with s3_answers(f"look up {key} in bucket {self._bucket}"):
            try:
                head = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                    return None
                raise
        return cast(int, head["ContentLength"])

    @contextmanager
    def open(self, key: str) -> Iterator[ByteStream]:
        with s3_answers(f"read {key} in bucket {self._bucket}"):
            body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"]
            try:
                yield cast(ByteStream, body)
            finally:
                body.close()

    def copy(self, source: str, target: str, *, progress: Callable[[], None]) -> None:
        with s3_answers(f"copy {source} to {target} in bucket {self._bucket}"):
            for key in self._keys(source):
                name = key.removeprefix(f"{self._prefix}{source}/")
                self._client.copy(
                    {"Bucket": self._bucket, "Key": key},
                    self._bucket,
                    f"{self._prefix}{target}/{name}",
                    Callback=lambda _: progress(),
                    Config=_COPY,
                )

    def remove_file(self, key: str) -> None:
        with s3_answers(f"remove {key} in bucket {self._bucket}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def remove(self, folder: str) -> None:
        with s3_answers(f"remove {folder} in bucket {self._bucket}"):
            for key in self._keys(folder):
                self._client.delete_object(Bucket=self._bucket, Key=key)

    def uri(self, folder: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{folder}/"

    def _keys(self, folder: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{folder}/"
        )
        return [item["Key"] for page in pages for item in page.get("Contents", ())]
