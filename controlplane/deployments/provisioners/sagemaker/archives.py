"""Archives in S3 that SageMaker loads: one adapter's files at the root, or several in `adapters/`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, Final

from boto3.s3.transfer import TransferConfig

from contracts.adapters.reference import ADAPTER_FILES, AdapterRef
from controlplane.artifacts.store import artifact_store
from controlplane.catalog.checkpoint_sources import checkpoint_source
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.account import Account, aws_answers

_TRANSFER: Final = TransferConfig(use_threads=False)
_SPOOL: Final = 32 << 20
_DELETED_AT_ONCE: Final = 1000
_CONFIG_FILE: Final = ADAPTER_FILES[0]


class ArtifactMissingError(ProvisioningError):
    """An adapter's file is not in the artifact store: it cannot be placed, while others can."""


class Store:
    """A target's own folder in its `s3://bucket/prefix`. `heartbeat` is called during transfers."""

    def __init__(self, account: Account, target: Target, *, heartbeat: Callable[[], None]) -> None:
        self._s3, self._heartbeat = account.s3, heartbeat
        self._bucket, _, prefix = f"{target.store}/{target.owner}".removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def url(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def keys(self, folder: str) -> set[str]:
        """Return the keys below `folder`; empty if the bucket does not exist, which `put` reports."""
        found = set[str]()
        with _ignore_missing_bucket(), aws_answers("list_objects_v2", self.url(folder)):
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}{folder}/"
            )
            found |= {item["Key"] for page in pages for item in page.get("Contents", ())}
        return {key.removeprefix(self._prefix) for key in found}

    def put(self, key: str, stream: IO[bytes] | Any) -> None:
        """Store the bytes of `stream`; nothing appears under `key` until the upload is complete.

        Raises the error that `heartbeat` raised. botocore calls it during the upload, and would turn its
        error into a connection failure and retry.
        """
        self.abort(key)
        errors: list[Exception] = []

        def on_progress(_: int) -> None:
            try:
                self._heartbeat()
            except Exception as error:
                errors.append(error)
                raise

        try:
            with aws_answers("put_object", self.url(key)):
                self._s3.upload_fileobj(
                    stream, self._bucket, self._prefix + key, Config=_TRANSFER, Callback=on_progress
                )
        except ProvisioningError:
            if errors:
                raise errors[0] from None
            raise

    def abort(self, prefix: str) -> None:
        """Abort unfinished uploads to keys with this prefix, since their parts are stored and billed."""
        with _ignore_missing_bucket(), aws_answers("list_multipart_uploads", self.url(prefix)):
            pages = self._s3.get_paginator("list_multipart_uploads")
            found = [
                (item["Key"], item["UploadId"])
                for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
                for item in page.get("Uploads", ())
            ]
            for key, upload in found:
                self._heartbeat()
                try:
                    self._s3.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
                except self._s3.exceptions.NoSuchUpload:
                    continue

    def remove(self, keys: Iterable[str]) -> None:
        """Delete up to a thousand keys in one call."""
        batch = [{"Key": self._prefix + key} for key in sorted(keys)[:_DELETED_AT_ONCE]]
        with aws_answers("delete_objects", self.url("")):
            answer = self._s3.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
        if errors := answer.get("Errors"):
            first = errors[0]
            raise ProvisioningError(
                f"{self.url(first.get('Key', ''))} cannot be removed: allow s3:DeleteObject"
                f" ({first.get('Code')}: {first.get('Message')})"
            )


@contextmanager
def _ignore_missing_bucket() -> Iterator[None]:
    """Ignore a missing bucket, so that a deployment can be removed after its bucket."""
    try:
        yield
    except ProvisioningError as error:
        if error.code != "NoSuchBucket":
            raise


def adapter_key(deployment: str, sha256: str) -> str:
    """Return the key of an adapter's archive; each deployment has its own, so removals affect no other."""
    return f"adapters/{deployment}/{sha256}.tar.gz"


def preloaded_folder(deployment: str, adapters: Iterable[AdapterRef]) -> str:
    """Return the key of the folder of all adapters; another set of adapters has another folder."""
    lines = "".join(f"{ref.sha256}  {ref.name}\n" for ref in _ordered(adapters))
    return f"preloaded/{deployment}/{hashlib.sha256(lines.encode()).hexdigest()}"


def preloaded_key(deployment: str, adapters: Iterable[AdapterRef]) -> str:
    """Return the key of the archive of all adapters."""
    return f"{preloaded_folder(deployment, adapters)}/adapters.tar.gz"


def preloaded_files(
    folder: str, adapters: Iterable[AdapterRef], *, by_name: bool = False
) -> dict[str, tuple[AdapterRef, str]]:
    """Return the adapters' files as single objects, each adapter's in a folder of its own.

    Args:
        by_name: the folders are named by engine names, else by numbers from 0, which are short.

    Returns:
        key -> (adapter, file name).
    """
    return {
        f"{folder}/{ref.name if by_name else number}/{name}": (ref, name)
        for number, ref in enumerate(_ordered(adapters))
        for name in ADAPTER_FILES
    }


def numbered(adapters: Iterable[AdapterRef]) -> dict[str, int]:
    """Return the number of each adapter's folder in `preloaded_files`, by engine name."""
    return {ref.name: number for number, ref in enumerate(_ordered(adapters))}


def adapter_file_put(store: Store, ref: AdapterRef, name: str, key: str, *, base: str = "") -> None:
    """Store one file of an adapter under `key`.

    Args:
        base: base model that the stored configuration names; "" for the file's own. vLLM's resolver loads
            only adapters whose configuration names the base model as the server does.

    Raises:
        ArtifactMissingError: the file is no longer in the artifact store.
    """
    _, opened = _adapter_file(ref, name)
    with opened as stream:
        if base and name == _CONFIG_FILE:
            config = {**json.loads(stream.read()), "base_model_name_or_path": base}
            store.put(key, io.BytesIO(json.dumps(config).encode()))
        else:
            store.put(key, stream)


def _ordered(adapters: Iterable[AdapterRef]) -> list[AdapterRef]:
    return sorted(adapters, key=lambda ref: ref.name)


@contextmanager
def adapter_archive(ref: AdapterRef, *, heartbeat: Callable[[], None]) -> Iterator[IO[bytes]]:
    """Yield an archive with the adapter's files at its root, as adapter components need it."""
    with _archive([("", ref)], heartbeat) as stream:
        yield stream


@contextmanager
def preloaded_archive(
    adapters: Iterable[AdapterRef], *, heartbeat: Callable[[], None]
) -> Iterator[IO[bytes]]:
    """Yield an archive of `adapters/<engine name>/...`, which LMI loads at its start."""
    with _archive([(f"adapters/{ref.name}/", ref) for ref in _ordered(adapters)], heartbeat) as stream:
        yield stream


def checkpoint_files(source: str) -> list[str]:
    """Return the names of a checkpoint's files."""
    return sorted(checkpoint_source(source).sizes())


def checkpoint_put(store: Store, source: str, name: str, key: str) -> None:
    """Store one file of a checkpoint under `key`."""
    with checkpoint_source(source).open(name) as stream:
        store.put(key, stream)


@contextmanager
def _archive(members: list[tuple[str, AdapterRef]], heartbeat: Callable[[], None]) -> Iterator[IO[bytes]]:
    """Yield a reproducible archive: its header has no time, owner or file name."""
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spool:
        with (
            gzip.GzipFile(fileobj=spool, mode="wb", mtime=0, filename="", compresslevel=1) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for folder, ref in members:
                for name in ADAPTER_FILES:
                    member = tarfile.TarInfo(folder + name)
                    member.size, opened = _adapter_file(ref, name)
                    member.mode = 0o644
                    with opened as stream:
                        archive.addfile(member, _HeartbeatReader(stream, heartbeat))
        spool.seek(0)
        yield spool


def _adapter_file(ref: AdapterRef, name: str) -> tuple[int, AbstractContextManager[Any]]:
    """Return the size of an adapter's file, and what opens it."""
    artifacts, key = artifact_store(), f"adapters/{ref.sha256}/{name}"
    if (size := artifacts.size(key)) is None:
        raise ArtifactMissingError(
            f"{ref.name}: {name} is no longer in the artifact store: register that version again"
        )
    return size, artifacts.open(key)


class _HeartbeatReader(io.RawIOBase):
    """Calls the heartbeat on each read, and reads as many bytes as requested."""

    def __init__(self, stream: Any, heartbeat: Callable[[], None]) -> None:
        self._stream, self._heartbeat = stream, heartbeat

    def read(self, size: int = -1, /) -> bytes:
        self._heartbeat()
        data = bytearray()
        while len(data) < size and (part := self._stream.read(size - len(data))):
            data += part
        return bytes(data)
